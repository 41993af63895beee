"""The metadata of an exported file: the table and the instant that its rows come from.

Each entry of the schema's metadata has a name that begins with `scankv.` and a JSON value. Every program that reads
Arrow or Parquet can read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import pyarrow as pa

from scankv.formats.parquet_types import parquet_schema
from scankv.formats.table_files import TableFile
from scankv.model.errors import UsageError
from scankv.model.types.types import storable_type

_PREFIX: Final = "scankv."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The table of an exported file, as of the instant of the export.

    Attributes:
        table: The table, as `database.table`.
        schema_id: The schema version of the table.
        definition: The complete definition of the table in the form of `table_files`, even if the file has only some of
            its columns.
        table_incarnation: The incarnation of the table.
        log_offsets: For each bucket, the offset of the first change that is not contained in the rows.
        view_time: The instant of the view, in UTC, as ISO 8601.
        where: The predicate that selected the rows; None if all rows were exported.
    """

    table: str
    schema_id: int
    definition: dict[str, Any]
    table_incarnation: str
    log_offsets: dict[str, int]
    view_time: str
    where: str | None = None

    def metadata(self) -> dict[str, str]:
        """Returns the entries for the metadata of an Arrow schema."""
        return {_PREFIX + field.name: json.dumps(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def of(cls, schema: pa.Schema) -> Self | None:
        """Reads the metadata of a file's schema; None if the file was not exported from a table.

        Raises:
            UsageError: The file was exported, but its metadata cannot be read. A definition is never dropped silently.
        """
        entries = {name.decode(errors="replace"): text for name, text in (schema.metadata or {}).items()}
        if not any(_PREFIX + field.name in entries for field in fields(cls)):
            return None
        try:
            values: dict[str, Any] = {field.name: json.loads(entries[_PREFIX + field.name]) for field in fields(cls)}
            if not isinstance(values["definition"], dict):
                raise ValueError("scankv.definition must be a JSON object")
        except (KeyError, ValueError, RecursionError) as error:
            raise UsageError(
                f"the metadata of the exported file cannot be read ({type(error).__name__}: {error}); give "
                "--ignore-definition, with --key, to load only its rows"
            ) from error
        return cls(**values)

    def table_file(self, schema: pa.Schema) -> TableFile:
        """Returns the definition of a table for the rows of this file.

        Args:
            schema: The columns of the file. They get back the types of the table where Parquet cannot hold them, such
                as timestamps in seconds.

        Raises:
            UsageError: The definition in the metadata is not valid.
            ScanKvError: The columns of the definition cannot be parsed.
        """
        table_file = self._table_definition()
        return replace(table_file, schema=_restore_types(schema, table_file.schema))

    def columns(self) -> list[str]:
        """Returns all columns of the table, including those that are not in the file."""
        names: list[str] = self._table_definition().schema.names
        return names

    def _table_definition(self) -> TableFile:
        return TableFile.of_values(self.definition, "the definition in the file's metadata")


def _restore_types(schema: pa.Schema, known: pa.Schema) -> pa.Schema:
    exact = []
    for field in schema:
        index = known.get_field_index(field.name)
        # Another program may have rewritten the file with a column of the same name and another type.
        same = index >= 0 and _stored_type(field) in (
            _stored_type(known.field(index)),
            _stored_type(_as_parquet(known.field(index))),
        )
        exact.append(field.with_type(known.field(index).type) if same else field)
    return pa.schema(exact)


def _as_parquet(field: pa.Field) -> pa.Field:
    """Returns the column as Parquet returns it, or unchanged if Parquet cannot hold it."""
    try:
        return parquet_schema(pa.schema([field])).field(0)
    except UsageError:
        return field


def _stored_type(field: pa.Field) -> pa.DataType:
    return storable_type(field.type, field.name)
