"""The interface of merge engines, and the engine of each table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scankv.model.errors import InvalidRequest
from scankv.model.tables.merge_functions import (
    DEFAULT_FUNCTION,
    IGNORE_RETRACT,
    ColumnAggregate,
    hidden_fields,
    retracts,
)
from scankv.model.tables.schema import hidden_name
from streaming_server.engine.functions.registry import function_of
from streaming_server.engine.merging.aggregate import AggregatedColumn, AggregateEngine
from streaming_server.engine.merging.first_row import FirstRow
from streaming_server.engine.merging.newest_row import NewestRow
from streaming_server.engine.merging.overwrite import OverwriteEngine
from streaming_server.engine.merging.partial_update import PartialUpdate
from streaming_server.engine.merging.row_merge import RowColumns

if TYPE_CHECKING:
    from collections.abc import Collection

    from scankv.model.tables.columns import ColumnDefinition
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.functions.function import Places
    from streaming_server.engine.functions.installed import Installed
    from streaming_server.engine.merging.row_merge import RowMerge
    from streaming_server.engine.merging.rows import CurrentRows, MergeResult, WrittenRows


class MergeEngine(Protocol):
    """Merges written or retracted rows into the current ones. Pure, thread-safe."""

    def last_deletes(self, standing: CurrentRows, written: WrittenRows) -> Places | None:
        """Returns, for each key, the position of the last delete that has an effect; -1 if no delete has one.

        None: the last delete of each key has an effect.
        """

    def merge(self, standing: CurrentRows, written: WrittenRows) -> MergeResult:
        """Merges written rows, which contain no deletes, into the current rows. Raises RefusedColumnError."""

    def row_merge(self, columns: RowColumns) -> RowMerge | None:
        """Returns the merge of few complete rows of one key. None: only `merge` gives its results."""


class Engines:
    """The merge engines of one version of a table.

    Args:
        definition: The table.
        installed: The aggregators that the server has from other packages.

    Attributes:
        overwriting: The engine of writes that replace the current rows.
        merging: The engine that the table's option names.
        row_merge: Merges few complete rows of one key as `merging` does. None: only columns give the results.

    Raises:
        InvalidRequest: The server does not have one of the table's functions; names the column.
    """

    def __init__(self, definition: TableDefinition, installed: Installed) -> None:
        spec = definition.merging
        columns = {column.name: column for column in definition.schema.columns}
        aggregated = {
            name: _aggregated_column(each, columns[name], installed)
            for name, each in spec.by_column.items()
            if name in columns
        }
        self._aggregated = aggregated
        self.overwriting: MergeEngine = OverwriteEngine(aggregated)
        match definition.options.merge_engine:
            case "first_row":
                self.merging: MergeEngine = FirstRow()
            case "partial_update":
                self.merging = PartialUpdate(spec.sequence_groups, aggregated)
            case "aggregate":
                others = [name for name in columns if name not in (*aggregated, *definition.primary_key)]
                default = {
                    name: _aggregated_column(ColumnAggregate(name, DEFAULT_FUNCTION), columns[name], installed)
                    for name in others
                }
                self.merging = AggregateEngine({**aggregated, **default})
            case _:
                self.merging = NewestRow(spec.order_columns)
        self.row_merge: RowMerge | None = self.merging.row_merge(RowColumns.of(definition))

    def of(self, written: WrittenRows) -> MergeEngine:
        """Returns the engine for some rows."""
        return self.overwriting if written.overwrite else self.merging

    def check_retract(self, columns: Collection[str] | None) -> None:
        """Raises InvalidRequest, naming the column, if one of `columns` (None: all) cannot be retracted."""
        for name, each in self._aggregated.items():
            if not each.retracts and (columns is None or name in columns):
                raise InvalidRequest(
                    f'column "{name}": {each.aggregate.function} cannot retract a value: name other columns, or create '
                    "the table with ignore_retract=True",
                    column=name,
                )


def _aggregated_column(aggregate: ColumnAggregate, column: ColumnDefinition, installed: Installed) -> AggregatedColumn:
    function = function_of(aggregate, column.type, installed)
    hidden = tuple(hidden_name(column.name, part) for part, _ in hidden_fields(aggregate, column.type))
    return AggregatedColumn(
        aggregate,
        column.type,
        function,
        hidden,
        retracts=aggregate.flag(IGNORE_RETRACT) or (retracts(aggregate) and getattr(function, "retracts", True)),
    )
