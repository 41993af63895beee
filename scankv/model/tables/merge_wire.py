"""Converts the parameters of merge engines to and from the messages of `table.proto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.tables.merge_functions import ColumnAggregate, aggregate_of
from scankv.model.tables.merge_spec import NO_MERGING, MergeSpec, SequenceGroup
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable


def merging_to_proto(spec: MergeSpec) -> table_pb2.Merging | None:
    """Returns the message, or None if there are no parameters."""
    if spec == NO_MERGING:
        return None
    return table_pb2.Merging(
        version_column=spec.version_column or "",
        sequence_columns=spec.sequence_columns,
        sequence_groups=[
            table_pb2.SequenceGroup(sequence=group.sequence, columns=group.columns) for group in spec.sequence_groups
        ],
        aggregates=aggregates_to_proto(spec.aggregates),
    )


def merging_from_proto(message: table_pb2.Merging) -> MergeSpec:
    """Reads a message, without checking the parameters."""
    return MergeSpec(
        version_column=message.version_column or None,
        sequence_columns=tuple(message.sequence_columns),
        sequence_groups=tuple(
            SequenceGroup(tuple(group.sequence), tuple(group.columns)) for group in message.sequence_groups
        ),
        aggregates=aggregates_from_proto(message.aggregates),
    )


def aggregates_to_proto(aggregates: Iterable[ColumnAggregate]) -> list[table_pb2.ColumnMerge]:
    """Returns the messages of some aggregates."""
    return [
        table_pb2.ColumnMerge(column=each.column, function=each.function, parameters=dict(each.parameters))
        for each in aggregates
    ]


def aggregates_from_proto(messages: Iterable[table_pb2.ColumnMerge]) -> tuple[ColumnAggregate, ...]:
    """Reads messages, without checking the aggregates."""
    return tuple(aggregate_of(each.column, each.function, each.parameters) for each in messages)
