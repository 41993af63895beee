"""What an exported file says of where its rows come from, in the metadata of its schema.

Each entry is JSON under a name that begins with `scankv.`; anything that reads Arrow or Parquet can read it.
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
    """A table as of one instant.

    Attributes:
        table: `database.table`.
        schema_id: The version of the table's columns.
        definition: The whole definition of the table, as `table_files` has it, whatever columns are in the file.
        table_incarnation: Differs for every creation of a table, also of the same name.
        log_offsets: For every bucket, the offset of the first change that the rows do not show.
        view_time: The instant, in UTC, as ISO 8601.
        where: The predicate that was true of the rows; None for all rows.
    """

    table: str
    schema_id: int
    definition: dict[str, Any]
    table_incarnation: str
    log_offsets: dict[str, int]
    view_time: str
    where: str | None = None

    def metadata(self) -> dict[str, str]:
        """For the metadata of an Arrow schema."""
        return {_PREFIX + field.name: json.dumps(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def of(cls, schema: pa.Schema) -> Self | None:
        """What the schema of a file says; None where it is none that was exported.

        Raises:
            UsageError: It was exported, and what it says cannot be read: no definition is dropped in silence.
        """
        entries = {name.decode(errors="replace"): text for name, text in (schema.metadata or {}).items()}
        if not any(_PREFIX + field.name in entries for field in fields(cls)):
            return None
        try:
            values: dict[str, Any] = {field.name: json.loads(entries[_PREFIX + field.name]) for field in fields(cls)}
            if not isinstance(values["definition"], dict):
                raise ValueError("scankv.definition is no JSON object")
        except (KeyError, ValueError, RecursionError) as error:
            raise UsageError(
                f"the metadata of the exported file cannot be read ({type(error).__name__}: {error}); give "
                "--ignore-definition, with --key, to take its rows alone"
            ) from error
        return cls(**values)

    def table_file(self, schema: pa.Schema) -> TableFile:
        """The definition of a table for the rows of this file.

        Args:
            schema: The columns of the file. They get the types of the table, as Parquet has no seconds.

        Raises:
            UsageError: The metadata have no definition.
            ScanKvError: Its columns cannot be read.
        """
        said = self._defined()
        return replace(said, schema=_exact(schema, said.schema))

    def columns(self) -> list[str]:
        """The columns of the table, whatever columns are in the file."""
        names: list[str] = self._defined().schema.names
        return names

    def _defined(self) -> TableFile:
        return TableFile.of_values(self.definition, "the definition in the file's metadata")


def _exact(schema: pa.Schema, known: pa.Schema) -> pa.Schema:
    exact = []
    for field in schema:
        index = known.get_field_index(field.name)
        # A program between may have made another column of it.
        same = index >= 0 and _normal(field) in (_normal(known.field(index)), _normal(_as_parquet(known.field(index))))
        exact.append(field.with_type(known.field(index).type) if same else field)
    return pa.schema(exact)


def _as_parquet(field: pa.Field) -> pa.Field:
    """What Parquet makes of a column, or the column where it cannot hold it."""
    try:
        return parquet_schema(pa.schema([field])).field(0)
    except UsageError:
        return field


def _normal(field: pa.Field) -> pa.DataType:
    return storable_type(field.type, field.name)
