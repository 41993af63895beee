"""What may the definition of a table be on this server, when the table is created and when it is altered?"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

from scankv.model.errors import InvalidRequest, UpgradeNotConfirmed
from scankv.model.limits import DEFAULT_BUCKETS
from scankv.model.tables.evolution import NO_COLUMN_CHANGES
from scankv.model.tables.schema import TableDefinition
from streaming_server.engine.merging.engine import Engines
from streaming_server.storage.tables.data_directory import (
    EVOLUTION_FORMAT,
    EXPIRY_FORMAT,
    LOG_TABLES_FORMAT,
    MARKERS_FORMAT,
    PARTITIONS_FORMAT,
    TABLETS_FORMAT,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from scankv.model.tables.evolution import ColumnChanges
    from scankv.model.tables.merge_functions import ColumnAggregate
    from scankv.model.tables.merge_spec import MergeSpec
    from streaming_server.clock import ServerClock
    from streaming_server.engine.functions.installed import Installed
    from streaming_server.storage.tables.data_directory import DataDirectory


class TableParts(TypedDict, total=False):
    """What defines a table besides its name and its columns: see `TableDefinition.create`."""

    primary_key: Required[Sequence[str]]
    bucket_key: Required[Sequence[str]]
    options: Required[Mapping[str, str]]
    buckets: int | None
    indexes: Sequence[Sequence[str]]
    merging: MergeSpec | None
    partition_by: Sequence[str]
    tablets: int


class DefinitionChanges(TypedDict, total=False):
    """What is to change of a table, all or nothing.

    Options are set and reset first. Then indexes are dropped, columns are changed, and indexes are added. The aggregate
    functions are those of added columns.
    """

    columns: ColumnChanges
    add_indexes: Sequence[Sequence[str]]
    drop_indexes: Sequence[Sequence[str]]
    add_aggregates: Sequence[ColumnAggregate]
    set_options: Mapping[str, str]
    reset_options: Sequence[str]


class DefinitionRules:
    """The rules for definitions that depend on the server. Immutable.

    Args:
        directory: The data directory, whose format limits what can be stored.
        installed: The aggregators that the server has.
        clock: The clock of the server.
    """

    def __init__(self, directory: DataDirectory, installed: Installed, clock: ServerClock) -> None:
        self._directory = directory
        self._installed = installed
        self._clock = clock

    def has_format(self, needed: int) -> bool:
        """Whether the data directory can store what a format has: see `require_format`."""
        return self._directory.format >= needed

    def require_format(self, needed: int, what: str) -> None:
        """Refuses what the format of the data directory cannot store.

        Args:
            needed: The oldest format that can store it.
            what: What is refused, for the error.

        Raises:
            UpgradeNotConfirmed: The directory has an older format.
        """
        found = self._directory.format
        if found < needed:
            raise UpgradeNotConfirmed(
                f"{what} need format {needed} of the data directory, which has format {found}: stop the server, and "
                "confirm the upgrade with `scankv upgrade DIR --confirm`",
                format=found,
            )

    def define(self, name: str, schema: pa.Schema, **parts: Unpack[TableParts]) -> TableDefinition:
        """Returns the definition of a new table, which does not exist yet.

        Raises:
            InvalidRequest: The definition is wrong; the message says where. Or the server lacks an aggregator.
            UpgradeNotConfirmed: The data directory has a format that cannot store such a table.
        """
        definition = TableDefinition.create(
            name,
            schema,
            primary_key=parts["primary_key"],
            bucket_key=parts["bucket_key"],
            options=parts["options"],
            incarnation=uuid.uuid4().hex,
            created_millis=self._clock.commit_micros() // 1000,
            buckets=parts.get("buckets") or DEFAULT_BUCKETS,
            indexes=parts.get("indexes", ()),
            merging=parts.get("merging"),
            partition_by=parts.get("partition_by", ()),
            tablets=parts.get("tablets", 1),
        )
        Engines(definition, self._installed)
        if definition.tablets > 1:
            self.require_format(TABLETS_FORMAT, "tables with tablets")
            if definition.partition_by or not definition.has_key:
                raise InvalidRequest(
                    "a table with tablets needs a primary key, and cannot be partitioned: leave out tablets"
                )
        if definition.options.changelog == "input":
            self.require_format(MARKERS_FORMAT, 'tables with changelog="input"')
        if definition.partition_by:
            self.require_format(PARTITIONS_FORMAT, "partitioned tables")
        if not definition.has_key:
            self.require_format(LOG_TABLES_FORMAT, "tables without a primary key")
        self._check_times(definition)
        return definition

    def change(self, definition: TableDefinition, **changes: Unpack[DefinitionChanges]) -> TableDefinition:
        """Returns a changed definition.

        Raises:
            SchemaMismatch, InvalidRequest: A column, an index or an option is not valid, or nothing is to change.
            UpgradeNotConfirmed: The data directory has a format that cannot store such a change.
        """
        columns, aggregates = changes.get("columns", NO_COLUMN_CHANGES), changes.get("add_aggregates", ())
        set_options, reset_options = changes.get("set_options", {}), changes.get("reset_options", ())
        add_indexes, drop_indexes = changes.get("add_indexes", ()), changes.get("drop_indexes", ())
        if not (columns or add_indexes or drop_indexes or set_options or reset_options):
            raise InvalidRequest(
                "there is nothing to change: name columns or indexes to add or to change, or options to set"
            )
        now_micros = self._clock.commit_micros()
        definition = definition.alter_options(set_options, reset_options, now_micros=now_micros)
        self._check_times(definition)
        definition = definition.drop_indexes(drop_indexes)
        if columns:
            if not columns.only_adds:
                self.require_format(EVOLUTION_FORMAT, "columns that are renamed, dropped or changed in another way")
            definition = definition.change_columns(columns, aggregates)
            Engines(definition, self._installed)
        if aggregates and columns.add is None:
            raise InvalidRequest("only columns that are added can be given an aggregate")
        return definition.add_indexes(add_indexes)

    def _check_times(self, definition: TableDefinition) -> None:
        if not definition.options.log_retention_seconds:
            self.require_format(LOG_TABLES_FORMAT, "changelogs without a limit of age (log_retention_seconds=0)")
        if definition.expiry is not None:
            self.require_format(EXPIRY_FORMAT, "tables whose rows expire")
