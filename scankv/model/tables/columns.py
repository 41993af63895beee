"""The columns of a table, with permanent ids, and the versions of its schema."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import SchemaMismatch, did_you_mean
from scankv.model.limits import MAX_COLUMNS
from scankv.model.types.ipc_compression import is_compressed
from scankv.model.types.types import check_field_name, check_unique, format_type, storable_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CHANGE_TYPE: Final = "_change_type"
"""The column with the row kind: `+I`, `+U`, `-U` or `-D`."""

CHANGE_COLUMNS: Final = (CHANGE_TYPE, "_log_offset", "_bucket", "_commit_timestamp")
"""The columns that a stream of changes adds to those of its table. No table has columns with these names."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column of a table.

    Attributes:
        id: The permanent id: the same in every schema version, and never reused. Ids start at 1.
        name: The name, unique in its schema; 1 to 128 printable characters.
        type: A storable type in its normal form.
        nullable: Whether the column can be null. Key columns cannot.
        initial_default: What rows have that were written before the column was added. None: they have a null. It never
            changes.
        write_default: What complete rows get that are written without the column. None: they get a null.
        comment: What the column means, for its readers.
    """

    id: int
    name: str
    type: pa.DataType
    nullable: bool
    initial_default: pa.Scalar | None = None
    write_default: pa.Scalar | None = None
    comment: str = ""


@dataclass(frozen=True)
class Schema:
    """One version of a table's columns. Immutable.

    Attributes:
        id: The version: 1 at creation, increased by 1 with every change.
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
    def by_id(self) -> dict[int, ColumnDefinition]:
        """The columns by id."""
        return {column.id: column for column in self.columns}

    @cached_property
    def _by_name(self) -> dict[str, ColumnDefinition]:
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> ColumnDefinition:
        """Returns the column with a name.

        Raises:
            SchemaMismatch: No such column exists. The message suggests similar names.
        """
        try:
            return self._by_name[name]
        except KeyError:
            message = f'there is no column "{name}"{did_you_mean(name, self.names)}'
            raise SchemaMismatch(message, column=name) from None

    def select(self, names: Iterable[str] | None) -> pa.Schema:
        """Returns the Arrow schema of some columns, in the order given.

        Args:
            names: Column names, each once. None: all columns in table order.

        Raises:
            SchemaMismatch: A column does not exist, or a name is given twice.
        """
        if names is None:
            return self.arrow
        chosen = [self.column(name) for name in names]
        check_unique([column.name for column in chosen], "is selected twice")
        return pa.schema([pa.field(column.name, column.type, column.nullable) for column in chosen])


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Returns a schema version as JSON values. Types are both readable text and in Arrow's format."""
    return {
        "id": schema.id,
        "columns": [_column_to_json(column) for column in schema.columns],
        "arrow": base64.b64encode(schema.arrow.serialize()).decode("ascii"),
    }


def _column_to_json(column: ColumnDefinition) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": column.id,
        "name": column.name,
        "type": format_type(column.type),
        "nullable": column.nullable,
    }
    if column.initial_default is not None:
        values["initial_default"] = _scalar_to_text(column.initial_default)
    if column.write_default is not None:
        values["write_default"] = _scalar_to_text(column.write_default)
    if column.comment:
        values["comment"] = column.comment
    return values


def schema_from_json(values: Mapping[str, Any]) -> Schema:
    """Reads the result of `schema_to_json`. Raises KeyError or ValueError if it is not valid."""
    arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["arrow"], validate=True)))
    if len(values["columns"]) != len(arrow):
        raise ValueError(
            f"schema version {values['id']} lists {len(values['columns'])} columns, but its Arrow form has {len(arrow)}"
        )
    columns = (
        ColumnDefinition(
            column["id"],
            field.name,
            field.type,
            field.nullable,
            _scalar_from_text(column.get("initial_default"), field.type),
            _scalar_from_text(column.get("write_default"), field.type),
            column.get("comment", ""),
        )
        for column, field in zip(values["columns"], arrow, strict=True)
    )
    return Schema(values["id"], tuple(columns))


def _scalar_to_text(value: pa.Scalar) -> str:
    """Returns a value as text: a batch with this value alone in Arrow's format, in Base64."""
    batch = pa.RecordBatch.from_arrays([pa.array([value], value.type)], names=["value"])
    return base64.b64encode(batch.serialize()).decode("ascii")


def _scalar_from_text(text: str | None, type_: pa.DataType) -> pa.Scalar | None:
    if text is None:
        return None
    data = pa.py_buffer(base64.b64decode(text, validate=True))
    message = pa.ipc.read_message(data)
    if message.type != "record batch" or is_compressed(message.metadata):
        raise ValueError("a default value must be an Arrow record batch without compression")
    return pa.ipc.read_record_batch(message, pa.schema([("value", type_)])).column(0)[0]


def columns_from(schema: pa.Schema, first_id: int) -> tuple[ColumnDefinition, ...]:
    """Returns new columns with ids from `first_id` on. Raises SchemaMismatch if a name or a type is not allowed."""
    if len(schema) > MAX_COLUMNS:
        raise SchemaMismatch(f"a table must have at most {MAX_COLUMNS:,} columns, not {len(schema):,}")
    for field in schema:
        check_field_name(field.name)
    return tuple(
        ColumnDefinition(column_id, field.name, storable_type(field.type, field.name), field.nullable)
        for column_id, field in enumerate(schema, first_id)
    )


def check_columns(columns: Sequence[ColumnDefinition]) -> None:
    """Raises SchemaMismatch if these cannot be the columns of a table: their number, or a name twice or reserved."""
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise SchemaMismatch(f"a table must have between 1 and {MAX_COLUMNS:,} columns, not {len(columns):,}")
    check_unique([column.name for column in columns], "exists twice; column names are unique")
    for column in columns:
        if column.name in CHANGE_COLUMNS:
            raise SchemaMismatch(
                f'column "{column.name}": the name is reserved for a column of the changelog: choose another name',
                column=column.name,
            )
