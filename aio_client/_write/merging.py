"""Converts the arguments of `create_table`, `alter_table` and writes that define how rows are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from aio_client._input.arguments import names_of
from scankv.model.errors import UsageError
from scankv.model.tables.agg import Aggregator
from scankv.model.tables.merge_functions import ColumnAggregate, aggregate_of
from scankv.model.tables.merge_spec import MergeSpec, SequenceGroup

Names: TypeAlias = str | Sequence[str]
"""One column, or several."""

WriteMode: TypeAlias = Literal["merge", "overwrite"]
"""How a write treats existing rows: the merge engine merges them, or the new rows replace them."""


def merge_spec(
    version_column: str | None,
    sequence_column: Names | None,
    sequence_groups: Mapping[Names, Names] | None,
    aggregators: Mapping[str, Aggregator] | None,
) -> MergeSpec:
    """Returns the merge rules from the arguments of `create_table`, unchecked. Raises UsageError for another form."""
    groups = tuple(
        SequenceGroup(names_of(sequence, "sequence_groups"), names_of(columns, "sequence_groups"))
        for sequence, columns in _mapping(sequence_groups, "sequence_groups").items()
    )
    return MergeSpec(
        version_column=version_column,
        sequence_columns=() if sequence_column is None else names_of(sequence_column, "sequence_column"),
        sequence_groups=groups,
        aggregates=column_aggregators(aggregators),
    )


def column_aggregators(aggregators: Mapping[str, Aggregator] | None) -> tuple[ColumnAggregate, ...]:
    """Converts aggregators by column to the form of the table model. Raises UsageError for another form."""
    found = []
    for column, each in _mapping(aggregators, "aggregators").items():
        if not isinstance(column, str):
            raise UsageError(f"the keys of aggregators must be columns, not {column!r}", option="aggregators")
        if not isinstance(each, Aggregator):
            raise UsageError(
                f'the aggregator of column "{column}" must be from scankv.agg, such as agg.sum(), not {each!r}',
                option="aggregators",
            )
        found.append(aggregate_of(column, each.function, dict(each.parameters)))
    return tuple(found)


def check_mode(mode: object) -> None:
    """Raises UsageError for an unknown mode."""
    if mode not in ("merge", "overwrite"):
        raise UsageError(f'mode must be "merge" or "overwrite", not {mode!r}', option="mode")


def _mapping(value: object, option: str) -> Mapping[Names, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{option} must be a dictionary, not a {type(value).__name__}", option=option)
    return value
