"""Table definitions: columns with permanent ids, schema versions, key, buckets, indexes and options."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import InvalidRequest, SchemaMismatch, did_you_mean
from scankv.model.limits import DEFAULT_BUCKETS, MAX_BUCKETS, MAX_COLUMNS, MAX_INDEX_COLUMNS, MAX_INDEXES
from scankv.model.names import TableName
from scankv.model.tables.merge_spec import NO_MERGING, MergeSpec, check_merging
from scankv.model.tables.options import TableOptions
from scankv.model.types.types import (
    check_field_name,
    check_unique,
    format_type,
    is_key_type,
    names_must_be_text,
    storable_type,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scankv.model.tables.merge_functions import ColumnAggregate

_HIDDEN_IDS: Final = 1 << 20

CHANGE_TYPE: Final = "_change_type"
"""The column with the row kind: `+I`, `+U`, `-U` or `-D`."""

CHANGE_COLUMNS: Final = (CHANGE_TYPE, "_log_offset", "_bucket", "_commit_timestamp")
"""The columns that a changelog adds to those of its table; no table has columns of these names."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column of a table.

    Attributes:
        id: Permanent: the same in every version of the schema, and never used again. The first is 1.
        name: Unique in its schema, 1 to 128 printable characters.
        type: A storable type in its normal form.
        nullable: Whether it takes nulls. Key columns do not.
    """

    id: int
    name: str
    type: pa.DataType
    nullable: bool


@dataclass(frozen=True)
class Schema:
    """One version of a table's columns. Immutable.

    Attributes:
        id: The version: 1 at creation, one more with every change.
        columns: The columns in table order.
    """

    id: int
    columns: tuple[ColumnDefinition, ...]

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema, without metadata."""
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in self.columns])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in table order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def _by_name(self) -> dict[str, ColumnDefinition]:
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> ColumnDefinition:
        """Finds a column by its name.

        Raises:
            SchemaMismatch: There is no such column; the message names the nearest ones.
        """
        try:
            return self._by_name[name]
        except KeyError:
            message = f'there is no column "{name}"{did_you_mean(name, self.names)}'
            raise SchemaMismatch(message, column=name) from None

    def select(self, names: Iterable[str] | None) -> pa.Schema:
        """The Arrow schema of some columns, in the order given.

        Args:
            names: ColumnDefinition names, each once. None: all columns in table order.

        Raises:
            SchemaMismatch: There is no such column, or a name is given twice.
        """
        if names is None:
            return self.arrow
        chosen = [self.column(name) for name in names]
        check_unique([column.name for column in chosen], "is selected twice")
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in chosen])

    @names_must_be_text()
    def add_columns(self, added: pa.Schema) -> Schema:
        """The next version of the schema: new columns at the end, with new ids.

        Args:
            added: At least one nullable column.

        Raises:
            SchemaMismatch: A name is taken or refused, a type cannot be stored, a column is NOT NULL, or there would be
                more than 1,000 columns.
        """
        if not len(added):
            raise SchemaMismatch("there is no column to add")
        for field in added:
            if not field.nullable:
                raise SchemaMismatch(
                    f'column "{field.name}" is NOT NULL, but rows that exist would be null there; add it as nullable',
                    column=field.name,
                )
        next_id = max(column.id for column in self.columns) + 1
        columns = self.columns + _columns_from(added, next_id)
        _check_columns(columns)
        return Schema(self.id + 1, columns)


@dataclass(frozen=True, slots=True)
class Index:
    """An index: entries in the order of some columns, written with the rows. Immutable.

    Attributes:
        id: Never used again for another index of its table. The first is 1.
        columns: The columns it is ordered by, the first one first. Nulls come last in each; rows that are equal in all
            of them are in key order.
    """

    id: int
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """The definition of a table, with all versions of its schema. Immutable.

    Attributes:
        name: `database.table`.
        incarnation: Differs for every creation of a table, also of the same name.
        schemas: All versions of the schema by ascending id; the last is the current one.
        primary_key: The key columns in key order.
        bucket_key: The key columns whose values choose the bucket, in key order.
        buckets: How many buckets the table has.
        options: What was chosen at creation.
        created_millis: When the table was created, milliseconds since 1970 UTC.
        indexes: Its indexes, in the order in which they were made.
        last_index_id: The id of the index that was made last, also when it is gone; 0 when there was none.
        merging: What its merge engine goes by.
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
        incarnation: str,
        created_millis: int,
    ) -> TableDefinition:
        """Defines a new table, and checks the complete definition.

        Args:
            name: `database.table`.
            arrow_schema: The columns; types are brought to their normal form, metadata is dropped, key columns become
                NOT NULL.
            primary_key: At least one column, each once, in key order.
            bucket_key: Columns of the primary key, kept in key order. None given: the whole primary key.
            buckets: 1 to 1024.
            options: Table options by name; those not given have their defaults.
            indexes: The columns of each index.
            merging: What its merge engine goes by.
            incarnation: A text that no other table ever had.
            created_millis: Milliseconds since 1970 UTC.

        Raises:
            InvalidRequest: The name, the key, the bucket key, the number of buckets, an index or aggregate is refused.
            SchemaMismatch: A column has a bad name, or a type that cannot be stored, or not in a key, index, aggregate.
            InvalidOption: An option does not exist, its value is not allowed, or the merge engine needs another one.
        """
        table = str(TableName.parse(name))
        columns = _columns_from(arrow_schema, 1)
        _check_columns(columns)
        schema = Schema(1, columns)
        key = _checked_key(schema, primary_key)
        schema = Schema(1, tuple(replace(c, nullable=c.nullable and c.name not in key) for c in columns))
        if not 1 <= buckets <= MAX_BUCKETS:
            raise InvalidRequest(
                f"a table must have between 1 and {MAX_BUCKETS:,} buckets, not {buckets:,}", table=table
            )
        definition = cls(
            name=table,
            incarnation=incarnation,
            schemas=(schema,),
            primary_key=key,
            bucket_key=_checked_bucket_key(key, bucket_key),
            buckets=buckets,
            options=TableOptions.from_strings(options or {}),
            created_millis=created_millis,
            merging=merging or NO_MERGING,
        )
        check_merging(definition.merging, definition.options, schema, key)
        return definition.add_indexes(indexes)

    @property
    def schema(self) -> Schema:
        """The current version of the schema."""
        return self.schemas[-1]

    def schema_at(self, schema_id: int) -> Schema:
        """Finds a version of the schema by its id.

        Raises:
            SchemaMismatch: The table has no such version.
        """
        for schema in reversed(self.schemas):
            if schema.id == schema_id:
                return schema
        raise SchemaMismatch(
            f"table {self.name} has no schema version {schema_id}; the current one is {self.schema.id}", table=self.name
        )

    def change_schema_at(self, schema_id: int) -> pa.Schema:
        """The Arrow schema of changes of rows of a version of the schema.

        Where the changelog has no rows before a change, a deleted row is its key, with null in all other columns.

        Raises:
            SchemaMismatch: As `schema_at`.
        """
        schema = self.schema_at(schema_id)
        return schema.arrow if self.options.before_images else self._keys_alone[schema.id]

    @cached_property
    def _keys_alone(self) -> dict[int, pa.Schema]:
        """Each version of the schema with all columns outside the key nullable."""
        return {
            schema.id: pa.schema([field.with_nullable(field.name not in self.primary_key) for field in schema.arrow])
            for schema in self.schemas
        }

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The key columns as an Arrow schema, in key order."""
        return self.schema.select(self.primary_key)

    def hidden_columns(self, schema: Schema) -> tuple[ColumnDefinition, ...]:
        """The hidden columns that rows of a schema version store. No projection or changelog has them.

        A column's are always the same. Their ids are those of their columns and a multiple of 1,048,576, so that no
        column has them.
        """
        ids = {column.name: column.id for column in schema.columns}
        hidden, number = [], dict.fromkeys(ids, 0)
        for name, part, type_ in self.merging.hidden(schema.columns):
            number[name] += 1
            hidden.append(
                ColumnDefinition(ids[name] + _HIDDEN_IDS * number[name], hidden_name(name, part), type_, nullable=True)
            )
        return tuple(hidden)

    def add_columns(self, added: pa.Schema, aggregates: Sequence[ColumnAggregate] = ()) -> TableDefinition:
        """The table with new nullable columns at the end, as a further version of its schema.

        Args:
            added: The columns.
            aggregates: What becomes of them when rows meet; of new columns only.

        Raises:
            SchemaMismatch: As for `Schema.add_columns`, and as for `create`.
            InvalidRequest: As for `create`; or an aggregate is of a column that was there before.
        """
        for each in aggregates:
            if each.column not in added.names:
                raise InvalidRequest(
                    f'column "{each.column}" is not added: only columns that are can be given an aggregate',
                    column=each.column,
                )
        altered = replace(
            self,
            schemas=(*self.schemas, self.schema.add_columns(added)),
            merging=self.merging.with_aggregates(aggregates),
        )
        check_merging(altered.merging, altered.options, altered.schema, altered.primary_key)
        return altered

    def add_indexes(self, added: Sequence[Sequence[str]]) -> TableDefinition:
        """The table with further indexes.

        Args:
            added: The columns of each.

        Raises:
            InvalidRequest: There is such an index already, or there would be too many, or too many columns in one.
            SchemaMismatch: A column does not exist, is named twice, or has no order.
        """
        indexes, last_id = list(self.indexes), self.last_index_id
        for columns in added:
            chosen = _checked_index(self.schema, columns)
            if any(index.columns == chosen for index in indexes):
                raise InvalidRequest(
                    f"table {self.name} has an index on ({', '.join(chosen)}) already", table=self.name
                )
            last_id += 1
            indexes.append(Index(last_id, chosen))
        if len(indexes) > MAX_INDEXES:
            raise InvalidRequest(
                f"a table must have at most {MAX_INDEXES} indexes, not {len(indexes)}", table=self.name
            )
        return replace(self, indexes=tuple(indexes), last_index_id=last_id)

    def drop_indexes(self, dropped: Sequence[Sequence[str]]) -> TableDefinition:
        """The table without some indexes, named by their columns. Raises InvalidRequest if one does not exist."""
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

    def to_json(self) -> dict[str, Any]:
        """The definition as JSON values for the catalog, with types both in Arrow's own form and readable."""
        return {
            "name": self.name,
            "incarnation": self.incarnation,
            "schemas": [_schema_to_json(schema) for schema in self.schemas],
            "primary_key": list(self.primary_key),
            "bucket_key": list(self.bucket_key),
            "buckets": self.buckets,
            "options": self.options.to_strings(),
            "created_millis": self.created_millis,
            "indexes": [{"id": index.id, "columns": list(index.columns)} for index in self.indexes],
            "last_index_id": self.last_index_id,
            "merging": self.merging.to_json(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableDefinition:
        """Reads what `to_json` made.

        Raises:
            KeyError: A field is missing.
            ValueError: A field has another form.
            InvalidOption: An option is not known to this version.
        """
        return cls(
            name=values["name"],
            incarnation=values["incarnation"],
            schemas=tuple(_schema_from_json(schema) for schema in values["schemas"]),
            primary_key=tuple(values["primary_key"]),
            bucket_key=tuple(values["bucket_key"]),
            buckets=values["buckets"],
            options=TableOptions.from_strings(values["options"]),
            created_millis=values["created_millis"],
            # Tables made before there were indexes have neither.
            indexes=tuple(Index(index["id"], tuple(index["columns"])) for index in values.get("indexes", ())),
            last_index_id=values.get("last_index_id", 0),
            merging=MergeSpec.from_json(values.get("merging", {})),
        )


def hidden_name(column: str, part: str) -> str:
    """The name of a hidden column in merges. No other column name contains this character."""
    return f"{column}\0{part}"


def _schema_to_json(schema: Schema) -> dict[str, Any]:
    return {
        "id": schema.id,
        "columns": [
            {"id": column.id, "name": column.name, "type": format_type(column.type), "nullable": column.nullable}
            for column in schema.columns
        ],
        "arrow": base64.b64encode(schema.arrow.serialize()).decode("ascii"),
    }


def _schema_from_json(values: Mapping[str, Any]) -> Schema:
    arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["arrow"], validate=True)))
    ids = [column["id"] for column in values["columns"]]
    if len(ids) != len(arrow):
        raise ValueError(f"schema version {values['id']} lists {len(ids)} columns, but its Arrow form has {len(arrow)}")
    columns = (
        ColumnDefinition(id_, field.name, field.type, field.nullable) for id_, field in zip(ids, arrow, strict=True)
    )
    return Schema(values["id"], tuple(columns))


def _columns_from(schema: pa.Schema, first_id: int) -> tuple[ColumnDefinition, ...]:
    if len(schema) > MAX_COLUMNS:
        raise SchemaMismatch(f"a table must have at most {MAX_COLUMNS:,} columns, not {len(schema):,}")
    for field in schema:
        check_field_name(field.name)
    return tuple(
        ColumnDefinition(column_id, field.name, storable_type(field.type, field.name), field.nullable)
        for column_id, field in enumerate(schema, first_id)
    )


def _check_columns(columns: Sequence[ColumnDefinition]) -> None:
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise SchemaMismatch(f"a table must have between 1 and {MAX_COLUMNS:,} columns, not {len(columns):,}")
    check_unique([column.name for column in columns], "exists twice; column names are unique")
    for column in columns:
        if column.name in CHANGE_COLUMNS:
            raise SchemaMismatch(
                f'column "{column.name}": the name is kept for the changelog, which has a column of this name',
                column=column.name,
            )


def _checked_key(schema: Schema, primary_key: Sequence[str]) -> tuple[str, ...]:
    if not primary_key:
        raise InvalidRequest("a table must have a primary key of at least one column")
    check_unique(primary_key, "is in the primary key twice", InvalidRequest)
    for name in primary_key:
        type_ = schema.column(name).type
        if not is_key_type(type_):
            raise SchemaMismatch(
                f'key column "{name}": {type_} cannot be in a key; keys have numbers, bool, string, binary, dates and '
                "times",
                column=name,
            )
    return tuple(primary_key)


def _checked_index(schema: Schema, columns: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(columns) <= MAX_INDEX_COLUMNS:
        raise InvalidRequest(f"an index must have between 1 and {MAX_INDEX_COLUMNS} columns, not {len(columns)}")
    check_unique(columns, "is in an index twice", InvalidRequest)
    for column in map(schema.column, columns):
        if not is_key_type(column.type):
            raise SchemaMismatch(
                f'column "{column.name}": {column.type} has no order and cannot be in an index; indexes have numbers, '
                "bool, string, binary, dates and times",
                column=column.name,
            )
    return tuple(columns)


def _checked_bucket_key(primary_key: tuple[str, ...], bucket_key: Sequence[str]) -> tuple[str, ...]:
    check_unique(bucket_key, "is in the bucket key twice", InvalidRequest)
    for name in bucket_key:
        if name not in primary_key:
            raise InvalidRequest(
                f'column "{name}" is in the bucket key but not in the primary key{did_you_mean(name, primary_key)}',
                column=name,
            )
    return tuple(name for name in primary_key if name in bucket_key) or primary_key
