"""Table definitions: columns with permanent ids, schema versions, key, buckets, indexes and options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import InvalidOption, InvalidRequest, SchemaMismatch, did_you_mean
from scankv.model.limits import (
    DEFAULT_BUCKETS,
    MAX_BUCKETS,
    MAX_CHANGELOG_CHANGES,
    MAX_INDEX_COLUMNS,
    MAX_INDEXES,
)
from scankv.model.names import TableName, table_of, tablet_name
from scankv.model.tables import log_tables
from scankv.model.tables.columns import (
    ColumnDefinition,
    Schema,
    check_columns,
    columns_from,
    schema_from_json,
    schema_to_json,
)
from scankv.model.tables.evolution import ColumnChanges, ColumnUses, evolve
from scankv.model.tables.expiry import WRITE_TIME, Expiry, check_expiry, expiry_of
from scankv.model.tables.merge_functions import hidden_fields
from scankv.model.tables.merge_spec import NO_MERGING, MergeSpec, check_merging
from scankv.model.tables.options import TableOptions
from scankv.model.tables.partition_ttl import PartitionRule, partition_rule
from scankv.model.tables.partitioning import PartitionDrop, Partitioning, check_partition_by
from scankv.model.types.types import check_unique, is_key_type, names_must_be_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scankv.model.tables.merge_functions import ColumnAggregate

_HIDDEN_IDS: Final = 1 << 20
_AGGREGATED: Final = "it has an aggregate, whose values are merged from what was written"


@dataclass(frozen=True, slots=True)
class Index:
    """An index: entries in the order of some columns, written in the same transaction as the rows. Immutable.

    Attributes:
        id: The id, never reused for another index of the table. Ids start at 1.
        columns: The columns that order the entries, the most significant first. Nulls come last in each column. Rows
            with equal values in all of these columns are in key order.
    """

    id: int
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """The definition of a table, with all versions of its schema. Immutable.

    Attributes:
        name: The table, as `database.table`.
        incarnation: The table incarnation: a unique id of this creation of the table.
        schemas: All versions of the schema by ascending id; the last is the current one.
        primary_key: The key columns in key order. Empty: the table has no key, and its changelog is its storage.
        bucket_key: The key columns whose values choose the bucket, in key order. In a table without a key, any columns;
            empty if the buckets take turns.
        buckets: The number of buckets.
        options: The table options.
        created_millis: When the table was created, in milliseconds since 1970 UTC.
        indexes: The indexes, in the order of their creation.
        last_index_id: The id of the index created last, even if it was dropped; 0 if the table never had an index.
        merging: The parameters of the merge engine.
        last_column_id: The id of the column added last, even if it was dropped. 0: the greatest id in `schemas`.
        earlier_changelogs: The values that the option `changelog` had before, in their order. Buckets know from which
            offset on each of them applied.
        partition_by: The columns that the table is partitioned by, which are the first columns of the key.
        last_drop: The latest drop of partitions. None: no partition was dropped.
        write_times_from: The first schema version whose rows have the time of their last write. 0: no rows have it.
        expiry_since_micros: When the row TTL was set or changed in this table, in microseconds since 1970 UTC. 0: never
            since the table was created.
        write_times_since_micros: When rows last began to expire by their last write, in microseconds since 1970 UTC.
            Rows that existed at that time count as written then. 0: they have done so since the table was created, or
            an earlier version has altered the table. In the latter case, rows without the time of their last write
            count as written at `expiry_since_micros`.
        changed_micros: A commit time before everything that can be written under this definition, in microseconds since
            1970 UTC. 0: unknown.
        tablets: Into how many tablets the buckets are divided. 1: into none.
        tablet: The number of the tablet that this is. None: it is the table.
        has_predecessor: Whether the name has had an earlier incarnation: a table that was dropped, the table of the
            backup from which this one was restored, or the table before a recovery that could not tell where its
            history ends.
        losses: How many recoveries may have lost acknowledged changes in this incarnation.
        version: The version of the definition, which increases by 1 with every change. Compare versions only within one
            incarnation. 0: an earlier version of ScanKV has created the table, and nothing has changed since.
    """

    name: str
    incarnation: str
    schemas: tuple[Schema, ...]
    primary_key: tuple[str, ...]
    bucket_key: tuple[str, ...]
    buckets: int
    options: TableOptions
    created_millis: int
    indexes: tuple[Index, ...] = ()
    last_index_id: int = 0
    merging: MergeSpec = NO_MERGING
    earlier_changelogs: tuple[str, ...] = ()
    last_column_id: int = 0
    partition_by: tuple[str, ...] = ()
    last_drop: PartitionDrop | None = None
    write_times_from: int = 0
    expiry_since_micros: int = 0
    write_times_since_micros: int = 0
    changed_micros: int = 0
    tablets: int = 1
    tablet: int | None = None
    has_predecessor: bool = False
    losses: int = 0
    version: int = 0

    def __post_init__(self) -> None:
        greatest = max(column.id for schema in self.schemas for column in schema.columns)
        object.__setattr__(self, "last_column_id", max(greatest, self.last_column_id))

    @classmethod
    @names_must_be_text()
    def create(
        cls,
        name: str,
        arrow_schema: pa.Schema,
        primary_key: Sequence[str],
        bucket_key: Sequence[str] = (),
        buckets: int = DEFAULT_BUCKETS,
        options: Mapping[str, str] | None = None,
        *,
        indexes: Sequence[Sequence[str]] = (),
        merging: MergeSpec | None = None,
        partition_by: Sequence[str] = (),
        tablets: int = 1,
        incarnation: str,
        created_millis: int,
    ) -> TableDefinition:
        """Defines a new table, and checks the complete definition.

        Args:
            name: The table, as `database.table`.
            arrow_schema: The columns. Their types are converted to the normal form, their metadata is dropped, and key
                columns become NOT NULL.
            primary_key: The key columns in key order, each once. Empty: a table without a key.
            bucket_key: Columns of the primary key, in any order. Empty: all columns of the primary key. In a table
                without a key, any columns that could be in a key; empty: the buckets take turns.
            buckets: The number of buckets, 1 to 1024.
            options: Table options by name. Missing options have their defaults.
            indexes: The columns of each index.
            merging: The parameters of the merge engine.
            partition_by: The columns to partition by: the first columns of the primary key, in key order.
            tablets: Into how many tablets to divide the buckets, at most as many as there are buckets. 1: into none.
            incarnation: A unique id of this creation of the table.
            created_millis: The time of the creation, in milliseconds since 1970 UTC.

        Raises:
            InvalidRequest: The name, the key, the bucket key, the partition columns, the number of buckets, an index or
                an aggregate is not valid.
            SchemaMismatch: A column does not exist or has a name that is not allowed, or its type cannot be stored or
                cannot be in a key, an index or an aggregate.
            InvalidOption: An option does not exist, its value is not allowed, or the merge engine needs another one.
        """
        table = str(TableName.parse(name))
        columns = columns_from(arrow_schema, 1)
        check_columns(columns)
        schema = Schema(1, columns)
        key = _check_key(schema, primary_key)
        schema = Schema(1, tuple(replace(c, nullable=c.nullable and c.name not in key) for c in columns))
        if not 1 <= buckets <= MAX_BUCKETS:
            raise InvalidRequest(
                f"a table must have between 1 and {MAX_BUCKETS:,} buckets, not {buckets:,}", table=table
            )
        if not 1 <= tablets <= buckets:
            raise InvalidRequest(
                f"a table of {buckets} buckets must have between 1 and {buckets} tablets, not {tablets:,}",
                table=table,
            )
        given = dict(options or {}) if key else log_tables.with_defaults(options or {})
        definition = cls(
            name=table,
            incarnation=incarnation,
            schemas=(schema,),
            primary_key=key,
            bucket_key=(_check_bucket_key(key, bucket_key) if key else log_tables.check_bucket_key(schema, bucket_key)),
            buckets=buckets,
            options=TableOptions.from_strings(given),
            created_millis=created_millis,
            merging=merging or NO_MERGING,
            partition_by=check_partition_by(schema, key, partition_by),
            tablets=tablets,
        )
        if not key:
            log_tables.check_options(definition.options)
        check_merging(definition.merging, definition.options, schema, key)
        check_expiry(definition.options, schema)
        if definition.options.expires_by_write:
            definition = replace(definition, write_times_from=schema.id)
        _ = definition.partition_rule
        return definition.add_indexes(indexes)

    @property
    def own_buckets(self) -> range:
        """The numbers of the buckets that are kept under this definition. A table with tablets has none by itself."""
        if self.tablets == 1:
            return range(self.buckets)
        if self.tablet is None:
            return range(0)
        first, end = (number * self.buckets // self.tablets for number in (self.tablet, self.tablet + 1))
        return range(first, end)

    @property
    def read_buckets(self) -> range:
        """The numbers of the buckets that a read of all buckets under this name reads."""
        return range(self.buckets) if self.is_divided else self.own_buckets

    @property
    def is_divided(self) -> bool:
        """Whether it is a table whose buckets are in tablets."""
        return self.tablets > 1 and self.tablet is None

    def tablet_at(self, number: int) -> TableDefinition:
        """Returns the definition of one tablet of the table."""
        name, incarnation = tablet_name(self.name, number), f"{self.incarnation}-{number}"
        return replace(self, name=name, incarnation=incarnation, tablet=number)

    @property
    def table_name(self) -> str:
        """The name of the table; for a tablet, of the table that it belongs to."""
        return table_of(self.name)

    @property
    def table_incarnation(self) -> str:
        """The incarnation of the table; for a tablet, of the table that it belongs to."""
        return self.incarnation if self.tablet is None else self.incarnation.rpartition("-")[0]

    @property
    def history(self) -> str:
        """The name of the table's history for its writers: the incarnation, and how many recoveries have lost changes.

        A recovery may lose what a bucket knows of a writer, so writers are valid for one such history only.
        """
        return f"{self.table_incarnation}.{self.losses}" if self.losses else self.table_incarnation

    @property
    def has_other_histories(self) -> bool:
        """Whether the table of this name has had other histories."""
        return self.has_predecessor or self.losses > 0

    @property
    def all_tablets(self) -> list[TableDefinition]:
        """The definitions of all tablets, by their numbers. Empty: the buckets are not divided."""
        return [self.tablet_at(number) for number in range(self.tablets)] if self.tablets > 1 else []

    @property
    def parts(self) -> list[TableDefinition]:
        """The definitions of the table and of all its tablets."""
        return [self, *self.all_tablets]

    @property
    def has_key(self) -> bool:
        """Whether the table has a primary key. If not, its changelog is its storage."""
        return bool(self.primary_key)

    def require_key(self, consequence: str) -> None:
        """Raises NoPrimaryKey, which states the consequence, if the table has no primary key."""
        log_tables.require_key(self.name, self.primary_key, consequence)

    @property
    def schema(self) -> Schema:
        """The current version of the schema."""
        return self.schemas[-1]

    def schema_at(self, schema_id: int) -> Schema:
        """Returns the schema version with an id.

        Raises:
            SchemaMismatch: The table has no such schema version.
        """
        for schema in reversed(self.schemas):
            if schema.id == schema_id:
                return schema
        raise SchemaMismatch(
            f"table {self.name} has no schema version {schema_id}; the current one is {self.schema.id}", table=self.name
        )

    def change_schema_at(self, schema_id: int) -> pa.Schema:
        """Returns the Arrow schema of changes to rows of a schema version.

        Where the changelog does not contain the row before a change, a deleted row has its key and nulls in all other
        columns. They are therefore nullable if that was ever so.

        Raises:
            SchemaMismatch: The table has no such schema version.
        """
        schema = self.schema_at(schema_id)
        return schema.arrow if {"upsert", "input"}.isdisjoint(self.changelogs) else self._keys_alone[schema.id]

    @property
    def changelogs(self) -> tuple[str, ...]:
        """All values that the option `changelog` has had, in their order; the last is the current one."""
        return (*self.earlier_changelogs, self.options.changelog)

    @cached_property
    def _keys_alone(self) -> dict[int, pa.Schema]:
        """Each schema version by its id, with all columns outside the key nullable."""
        return {
            schema.id: pa.schema([field.with_nullable(field.name not in self.primary_key) for field in schema.arrow])
            for schema in self.schemas
        }

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The key columns as an Arrow schema, in key order."""
        return self.schema.select(self.primary_key)

    @property
    def scan_key_schema(self) -> pa.Schema:
        """The key by which scans find their place: `key_schema`, or in a table without a key the log offset."""
        return self.key_schema if self.primary_key else log_tables.OFFSET_KEY

    @cached_property
    def partitioning(self) -> Partitioning | None:
        """How the keys divide into partitions. None: the table is not partitioned."""
        types = [self.schema.column(name).type for name in self.partition_by]
        return Partitioning(self.partition_by, types) if types else None

    @cached_property
    def partition_rule(self) -> PartitionRule | None:
        """When partitions expire. None: never. Raises InvalidOption if the options do not fit the table."""
        options = self.options
        ttl, column, format_ = options.partition_ttl, options.partition_ttl_column, options.partition_ttl_format
        return partition_rule(ttl, column, format_, self.partitioning)

    def drop_partitions(self, prefixes: Iterable[bytes]) -> TableDefinition:
        """Returns the table with another drop of partitions: of those whose keys begin with one of these."""
        number = 1 if self.last_drop is None else self.last_drop.number + 1
        return replace(self, last_drop=PartitionDrop(number, tuple(sorted(prefixes))))

    def entry_columns(self, index: Index) -> tuple[str, ...]:
        """Returns the columns that order the entries of an index, before the primary key.

        In a partitioned table, the partition columns come first. So the entries of a partition are a range, and an
        index finds rows of given partitions.
        """
        return (*self.partition_by, *(name for name in index.columns if name not in self.partition_by))

    def hidden_columns(self, schema: Schema) -> tuple[ColumnDefinition, ...]:
        """Returns the hidden columns that rows of a schema version store. Scans and changes do not return them.

        A hidden column belongs to a column and is the same in every schema version. Its id is the id of that column
        plus a multiple of 1,048,576, so it differs from the ids of all columns.
        """
        return tuple(
            ColumnDefinition(column.id + _HIDDEN_IDS * number, hidden_name(column.name, part), type_, nullable=True)
            for column in schema.columns
            if column.id in self._aggregates_by_id
            for number, (part, type_) in enumerate(hidden_fields(self._aggregates_by_id[column.id], column.type), 1)
        )

    def write_time(self, schema: Schema) -> ColumnDefinition | None:
        """Returns the hidden column with the time of the last write of rows of a schema version. None: it has none.

        It is the last column of stored rows, and merges do not see it: it is set when rows are written to a bucket.
        """
        if not 0 < self.write_times_from <= schema.id:
            return None
        initial = pa.scalar(self.write_times_since_micros or self.expiry_since_micros, WRITE_TIME)
        name = hidden_name("", "written")
        return ColumnDefinition(_HIDDEN_IDS, name, WRITE_TIME, nullable=True, initial_default=initial)

    @cached_property
    def expiry(self) -> Expiry | None:
        """The row TTL. None: rows do not expire."""
        return expiry_of(self.options, self.schema, self.write_time(self.schema), self.write_times_since_micros)

    @cached_property
    def _aggregates_by_id(self) -> dict[int, ColumnAggregate]:
        """The aggregates by the ids of their columns, whose names may differ in older schema versions."""
        return {self.schema.column(each.column).id: each for each in self.merging.aggregates}

    def reused_names(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        """Returns which of these names mean another column now than in an older schema version, with the current ids.

        What refers to columns by name, such as a resume token, is only valid as long as this stays the same.
        """
        reused = {
            name
            for older in self.schemas[:-1]
            for name in set(names) & set(older.names)
            if older.column(name).id != self._current_id(name)
        }
        return tuple((name, self._current_id(name)) for name in sorted(reused))

    def _current_id(self, name: str) -> int:
        return self.schema.column(name).id if name in self.schema.names else 0

    @names_must_be_text()
    def change_columns(self, changes: ColumnChanges, aggregates: Sequence[ColumnAggregate] = ()) -> TableDefinition:
        """Returns the table with changed columns, in a new schema version.

        Args:
            changes: The changes.
            aggregates: The aggregates of added columns.

        Raises:
            SchemaMismatch: As for `evolve`, and as for `create`.
            InvalidRequest: As for `evolve` and `create`; or an aggregate is for a column that is not added.
        """
        added = () if changes.add is None else changes.add.names
        for each in aggregates:
            if each.column not in added:
                raise InvalidRequest(
                    f'column "{each.column}" is not added: only added columns can have a new aggregate',
                    column=each.column,
                )
            if changes.defaults is not None and each.column in changes.defaults.schema.names:
                raise SchemaMismatch(f'column "{each.column}" cannot have a default: {_AGGREGATED}', column=each.column)
        names = changes.rename
        altered = replace(
            self,
            schemas=(*self.schemas, evolve(self.schema, changes, self._column_uses, self.last_column_id)),
            bucket_key=tuple(names.get(name, name) for name in self.bucket_key),
            indexes=tuple(
                Index(index.id, tuple(names.get(name, name) for name in index.columns)) for index in self.indexes
            ),
            merging=self.merging.renamed(names).with_aggregates(aggregates),
            options=replace(self.options, ttl_column=names.get(self.options.ttl_column, self.options.ttl_column)),
        )
        check_merging(altered.merging, altered.options, altered.schema, altered.primary_key)
        check_expiry(altered.options, altered.schema)
        return altered

    def add_columns(self, added: pa.Schema, aggregates: Sequence[ColumnAggregate] = ()) -> TableDefinition:
        """Returns the table with new nullable columns at the end. See `change_columns`."""
        return self.change_columns(ColumnChanges(add=added), aggregates)

    @property
    def _column_uses(self) -> ColumnUses:
        aggregated = {each.column: _AGGREGATED for each in self.merging.aggregates}
        indexed = {
            name: f"it is in the index on ({', '.join(index.columns)}); drop the index first"
            for index in self.indexes
            for name in index.columns
        }
        grouped = {name for group in self.merging.sequence_groups for name in group.members}
        ordering = dict.fromkeys(
            (*self.merging.order_columns, *grouped), "it decides which rows are newer, or is in a sequence group"
        )
        key = dict.fromkeys(self.primary_key, "it is in the primary key")
        if not self.primary_key:
            # A column that it gets later by the same name would distribute rows differently, and so would a wider type.
            indexed |= dict.fromkeys(self.bucket_key, "it is in the bucket key, which distributes the rows")
        expiring = {self.options.ttl_column: "rows expire by it; change the table option ttl_column first"}
        return ColumnUses(
            key=self.primary_key,
            fixed_type={**indexed, **aggregated, **key},
            needed={**expiring, **ordering, **indexed, **aggregated, **key},
            without_default={**aggregated, **key},
            nested={
                column.name: tuple(schema.by_id[column.id].type for schema in self.schemas if column.id in schema.by_id)
                for column in self.schema.columns
                if pa.types.is_nested(column.type)
            },
            merges_nulls=self.options.merge_engine in ("aggregate", "partial_update"),
        )

    def add_indexes(self, added: Sequence[Sequence[str]]) -> TableDefinition:
        """Returns the table with additional indexes.

        Args:
            added: The columns of each index.

        Raises:
            InvalidRequest: An index on these columns already exists, the table would have too many indexes, an index
                has too many columns, or a column is named twice.
            SchemaMismatch: A column does not exist or has no order.
        """
        if added:
            self.require_key("it cannot have an index")
        indexes, last_id = list(self.indexes), self.last_index_id
        for columns in added:
            chosen = _check_index(self.schema, columns)
            if any(index.columns == chosen for index in indexes):
                raise InvalidRequest(
                    f"table {self.name} already has an index on ({', '.join(chosen)})", table=self.name
                )
            last_id += 1
            indexes.append(Index(last_id, chosen))
        if len(indexes) > MAX_INDEXES:
            raise InvalidRequest(
                f"a table must have at most {MAX_INDEXES} indexes, not {len(indexes)}", table=self.name
            )
        return replace(self, indexes=tuple(indexes), last_index_id=last_id)

    def drop_indexes(self, dropped: Sequence[Sequence[str]]) -> TableDefinition:
        """Returns the table without the indexes on these columns. Raises InvalidRequest if one does not exist."""
        indexes = list(self.indexes)
        for columns in map(tuple, dropped):
            found = [index for index in indexes if index.columns == columns]
            if not found:
                existing = ", ".join(f"({', '.join(index.columns)})" for index in indexes) or "none"
                raise InvalidRequest(
                    f"table {self.name} has no index on ({', '.join(columns)}); its indexes: {existing}",
                    table=self.name,
                )
            indexes.remove(found[0])
        return replace(self, indexes=tuple(indexes))

    def alter_options(
        self, changed: Mapping[str, str], reset: Sequence[str] = (), *, now_micros: int = 0
    ) -> TableDefinition:
        """Returns the table with other options.

        Args:
            changed: As for `TableOptions.alter`.
            reset: As for `TableOptions.alter`.
            now_micros: The time of the change, in microseconds since 1970 UTC.

        Raises:
            InvalidOption: As `TableOptions.alter` and `partition_rule`; or the changelog has changed too often, the row
                TTL does not fit the columns, or the table has no key and does not allow the value.
        """
        if not self.primary_key:
            defaults = {name: text for name, text in log_tables.DEFAULTS.items() if name in {*reset} - {*changed}}
            changed = {**changed, **defaults}
            reset = [name for name in reset if name not in defaults]
        options = self.options.alter(changed, reset)
        if not self.primary_key:
            log_tables.check_options(options)
        check_expiry(options, self.schema)
        _ = replace(self, options=options).partition_rule
        expiring = replace(self, options=options)._with_expiry_of(self.options, now_micros)
        if options.changelog == self.options.changelog:
            return expiring
        if len(self.earlier_changelogs) == MAX_CHANGELOG_CHANGES:
            raise InvalidOption(
                f'table option "changelog" has changed {MAX_CHANGELOG_CHANGES} times, which is the limit of a table: '
                "create another table with this option, such as with `scankv create --like`, and copy the rows",
                option="changelog",
            )
        return replace(expiring, earlier_changelogs=self.changelogs)

    def _with_expiry_of(self, before: TableOptions, now_micros: int) -> TableDefinition:
        """Returns the table with what a change of the row TTL adds to it, given its options before."""
        options = self.options
        if (options.ttl_seconds, options.ttl_column) == (before.ttl_seconds, before.ttl_column):
            return self
        since = max(now_micros, self.expiry_since_micros)
        changed = replace(self, expiry_since_micros=since)
        if not options.expires_by_write or before.expires_by_write:
            return changed
        changed = replace(changed, write_times_since_micros=since)
        if self.write_times_from:
            # Rows have the time of their last write, whether it counted or not.
            return changed
        following = replace(self.schema, id=self.schema.id + 1)
        return replace(changed, schemas=(*self.schemas, following), write_times_from=following.id)

    def to_json(self) -> dict[str, Any]:
        """Returns the definition as JSON values for the catalog. Types are both readable text and in Arrow's format."""
        return {
            "name": self.name,
            "incarnation": self.incarnation,
            "schemas": [schema_to_json(schema) for schema in self.schemas],
            "primary_key": list(self.primary_key),
            "bucket_key": list(self.bucket_key),
            "buckets": self.buckets,
            # Its default has changed, so the catalog always has the value.
            "options": {"columnar_base": self.options.columnar_base, **self.options.to_strings()},
            "created_millis": self.created_millis,
            "indexes": [{"id": index.id, "columns": list(index.columns)} for index in self.indexes],
            "last_index_id": self.last_index_id,
            "merging": self.merging.to_json(),
            "last_column_id": self.last_column_id,
            **({"earlier_changelogs": list(self.earlier_changelogs)} if self.earlier_changelogs else {}),
            **({"partition_by": list(self.partition_by)} if self.partition_by else {}),
            **({"last_drop": self.last_drop.to_json()} if self.last_drop else {}),
            **({"write_times_from": self.write_times_from} if self.write_times_from else {}),
            **({"expiry_since_micros": self.expiry_since_micros} if self.expiry_since_micros else {}),
            **({"write_times_since_micros": self.write_times_since_micros} if self.write_times_since_micros else {}),
            **({"changed_micros": self.changed_micros} if self.changed_micros else {}),
            **({"tablets": self.tablets} if self.tablets > 1 else {}),
            **({} if self.tablet is None else {"tablet": self.tablet}),
            **({"has_predecessor": True} if self.has_predecessor else {}),
            **({"losses": self.losses} if self.losses else {}),
            **({"version": self.version} if self.version else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableDefinition:
        """Reads the result of `to_json`.

        Raises:
            KeyError: A field is missing.
            ValueError: A field is not valid.
            InvalidOption: This version does not know an option.
        """
        return cls(
            name=values["name"],
            incarnation=values["incarnation"],
            schemas=tuple(schema_from_json(schema) for schema in values["schemas"]),
            primary_key=tuple(values["primary_key"]),
            bucket_key=tuple(values["bucket_key"]),
            buckets=values["buckets"],
            # Earlier versions left out "off", which was the default.
            options=TableOptions.from_strings({"columnar_base": "off", **values["options"]}),
            created_millis=values["created_millis"],
            # Tables created by versions without indexes have neither field.
            indexes=tuple(Index(index["id"], tuple(index["columns"])) for index in values.get("indexes", ())),
            last_index_id=values.get("last_index_id", 0),
            merging=MergeSpec.from_json(values.get("merging", {})),
            last_column_id=values.get("last_column_id", 0),
            earlier_changelogs=tuple(values.get("earlier_changelogs", ())),
            partition_by=tuple(values.get("partition_by", ())),
            last_drop=PartitionDrop.from_json(values["last_drop"]) if "last_drop" in values else None,
            write_times_from=values.get("write_times_from", 0),
            expiry_since_micros=values.get("expiry_since_micros", 0),
            write_times_since_micros=values.get("write_times_since_micros", 0),
            changed_micros=values.get("changed_micros", 0),
            tablets=values.get("tablets", 1),
            tablet=values.get("tablet"),
            has_predecessor=values.get("has_predecessor", False),
            losses=values.get("losses", 0),
            version=values.get("version", 0),
        )


def hidden_name(column: str, part: str) -> str:
    """Returns the name of a hidden column in merges. No other column name contains the NUL character."""
    return f"{column}\0{part}"


def incarnation_of(incarnation: str) -> str:
    """Returns the incarnation of the table that the incarnation of a table or of a tablet belongs to."""
    return incarnation.partition("-")[0]


def shown_name(hidden: str) -> str:
    """Returns the name of the column that a hidden column belongs to."""
    return hidden.partition("\0")[0]


def _check_key(schema: Schema, primary_key: Sequence[str]) -> tuple[str, ...]:
    check_unique(primary_key, "is in the primary key twice", InvalidRequest)
    for name in primary_key:
        type_ = schema.column(name).type
        if not is_key_type(type_):
            raise SchemaMismatch(
                f'key column "{name}": {type_} cannot be in a key; use numbers, bool, string, binary, dates or times',
                column=name,
            )
    return tuple(primary_key)


def _check_index(schema: Schema, columns: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(columns) <= MAX_INDEX_COLUMNS:
        raise InvalidRequest(f"an index must have between 1 and {MAX_INDEX_COLUMNS} columns, not {len(columns)}")
    check_unique(columns, "is in an index twice", InvalidRequest)
    for column in map(schema.column, columns):
        if not is_key_type(column.type):
            raise SchemaMismatch(
                f'column "{column.name}": {column.type} has no order and cannot be in an index; use numbers, bool, '
                "string, binary, dates or times",
                column=column.name,
            )
    return tuple(columns)


def _check_bucket_key(primary_key: tuple[str, ...], bucket_key: Sequence[str]) -> tuple[str, ...]:
    check_unique(bucket_key, "is in the bucket key twice", InvalidRequest)
    for name in bucket_key:
        if name not in primary_key:
            raise InvalidRequest(
                f'column "{name}" is in the bucket key but not in the primary key{did_you_mean(name, primary_key)}',
                column=name,
            )
    return tuple(name for name in primary_key if name in bucket_key) or primary_key
