"""What an exported file says of where its rows come from, in the metadata of its schema.

Each entry is JSON under a name that begins with `scankv.`; anything that reads Arrow or Parquet can read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import pyarrow as pa

from scankv.formats.parquet_types import parquet_schema
from table_model.errors import ScanKvError
from table_model.types import parse_schema, storable_type

_PREFIX: Final = "scankv."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A table as of one instant.

    Attributes:
        table: `database.table`.
        schema_id: The version of the table's columns.
        columns: Those in the file, in the text form of `table_model.types.format_schema`, which has their exact types.
        primary_key: The key columns of the table, also when they are not in the file.
        bucket_key: Those that choose the bucket.
        buckets: The number of buckets.
        table_incarnation: Differs for every creation of a table, also of the same name.
        log_offsets: For every bucket, the offset of the first change that the rows do not show.
        view_time: The instant, in UTC, as ISO 8601.
        where: The predicate that was true of the rows; None for all rows.
    """

    table: str
    schema_id: int
    columns: str
    primary_key: list[str]
    bucket_key: list[str]
    buckets: int
    table_incarnation: str
    log_offsets: dict[str, int]
    view_time: str
    where: str | None = None

    def metadata(self) -> dict[str, str]:
        """For the metadata of an Arrow schema."""
        return {_PREFIX + field.name: json.dumps(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def of(cls, schema: pa.Schema) -> Self | None:
        """What the schema of a file says; None where it is none that was exported."""
        entries = {name.decode(errors="replace"): text for name, text in (schema.metadata or {}).items()}
        try:
            values: dict[str, Any] = {field.name: json.loads(entries[_PREFIX + field.name]) for field in fields(cls)}
        except (KeyError, ValueError):
            return None
        return cls(**values)

    def exact(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a file with the types of the table: Parquet has no seconds."""
        try:
            known = parse_schema(self.columns)
            given = parquet_schema(known)
        except ScanKvError:
            return schema
        exact = []
        for field in schema:
            index = known.get_field_index(field.name)
            # A program between may have made another column of it.
            same = index >= 0 and _normal(field) in (_normal(known.field(index)), _normal(given.field(index)))
            exact.append(field.with_type(known.field(index).type) if same else field)
        return pa.schema(exact)


def _normal(field: pa.Field) -> pa.DataType:
    return storable_type(field.type, field.name)
