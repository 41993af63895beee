"""How rows of a table become one, as it is said when the table is created and told by the table later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from aio_client._input.arguments import names_of
from scankv.model.errors import UsageError
from scankv.model.tables.agg import Aggregator
from scankv.model.tables.merge_functions import ColumnAggregate, aggregate_of
from scankv.model.tables.merge_spec import MergeSpec, SequenceGroup
from scankv.model.tables.merge_wire import merging_from_proto

if TYPE_CHECKING:
    from scankv.v1 import table_pb2

Names: TypeAlias = str | Sequence[str]
"""One column, or several."""

WriteMode: TypeAlias = Literal["merge", "overwrite"]
"""What a write does with rows that stand: as the table's merge engine says, or to replace them."""


def merge_spec(
    version_column: str | None,
    sequence_column: Names | None,
    sequence_groups: Mapping[Names, Names] | None,
    aggregates: Mapping[str, Aggregator] | None,
) -> MergeSpec:
    """What was said of a table, not checked. Raises UsageError where it has another form."""
    groups = tuple(
        SequenceGroup(names_of(sequence, "sequence_groups"), names_of(columns, "sequence_groups"))
        for sequence, columns in _mapping(sequence_groups, "sequence_groups").items()
    )
    return MergeSpec(
        version_column=version_column,
        sequence_columns=() if sequence_column is None else names_of(sequence_column, "sequence_column"),
        sequence_groups=groups,
        aggregates=column_aggregates(aggregates),
    )


def column_aggregates(aggregates: Mapping[str, Aggregator] | None) -> tuple[ColumnAggregate, ...]:
    """Aggregates by column as the table model has them. Raises UsageError where it is none."""
    found = []
    for column, each in _mapping(aggregates, "aggregates").items():
        if not isinstance(column, str):
            raise UsageError(f"aggregates are by column, not by {column!r}", option="aggregates")
        if not isinstance(each, Aggregator):
            raise UsageError(
                f'aggregates of column "{column}" is one of scankv.agg, as agg.sum(), not {each!r}', option="aggregates"
            )
        found.append(aggregate_of(column, each.function, dict(each.parameters)))
    return tuple(found)


def check_mode(mode: object) -> None:
    """Raises UsageError for a mode that is none."""
    if mode not in ("merge", "overwrite"):
        raise UsageError(f'mode is "merge" or "overwrite", not {mode!r}', option="mode")


def _mapping(value: object, option: str) -> Mapping[Names, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{option} is a dictionary, not a {type(value).__name__}", option=option)
    return value


class MergedTable(ABC):
    """The part of a table that says how its rows become one."""

    @property
    @abstractmethod
    def _description(self) -> table_pb2.Table:
        """What the server said of the table."""

    @property
    def _merging(self) -> MergeSpec:
        return merging_from_proto(self._description.merging)

    @property
    def merge_engine(self) -> str:
        """What an upsert of a key that is there does."""
        return self._description.options.get("merge_engine", "last_row")

    @property
    def version_column(self) -> str | None:
        """Of a `versioned` table: the column that says which row wins."""
        return self._merging.version_column

    @property
    def sequence_column(self) -> tuple[str, ...]:
        """The columns by which older rows lose; empty where the last one written wins."""
        return self._merging.sequence_columns

    @property
    def sequence_groups(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """The sequence groups of a `partial_update` table: by their sequence columns the others."""
        return {group.sequence: group.columns for group in self._merging.sequence_groups}

    @property
    def aggregates(self) -> dict[str, Aggregator]:
        """The aggregates that columns were given, by column."""
        return {each.column: Aggregator(each.function, each.parameters) for each in self._merging.aggregates}
