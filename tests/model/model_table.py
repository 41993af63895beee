"""The model of a table: a dictionary from key to row, and the changes of each key."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from scankv.model.keys.buckets import bucket_of_one
from scankv.model.keys.key_codec import KeyCodec
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aio_client import Table

Row: TypeAlias = tuple[Any, ...]
"""The values of a row in column order, as `exact_rows` returns them."""


class ModelTable:
    """A table as a dictionary. Keys are tuples in key order, which sort as the stored keys do.

    Attributes:
        schema: The columns as of now.
        rows: The rows by key.
        changes: All changes of each key in their order, as the symbol of their kind and their row.
        changelog: The table option. A table with another value than "full" has no index.
    """

    def __init__(self, table: Table) -> None:
        self.schema = table.schema
        self.key = table.primary_key
        self.buckets = table.buckets
        self.rows: dict[Row, Row] = {}
        self.changes: defaultdict[Row, list[tuple[str, Row]]] = defaultdict(list)
        self.changelog = table.options.get("changelog", "full")
        self._deduplicate = table.options.get("row_deduplicate") != "false"
        self._bucket_places = [self.key.index(name) for name in table.bucket_key]
        self._bucket_codec = KeyCodec([table.schema.field(name).type for name in table.bucket_key])
        self._bucket_of: dict[Row, int] = {}

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns in key order."""
        return pa.schema([self.schema.field(name) for name in self.key])

    def upsert(self, rows: pa.RecordBatch) -> None:
        """Upserts rows. Columns that they lack are null."""
        whole = pa.RecordBatch.from_pylist([], self.schema) if rows.num_rows == 0 else self.widened(rows)
        for key, row in {self.key_of(row, self.schema.names): row for row in exact_rows(whole)}.items():
            old = self.rows.get(key)
            if self.changelog != "full":
                self.changes[key].append(("+U", row))
            elif old is None:
                self.changes[key].append(("+I", row))
            elif old != row or not self._deduplicate:
                self.changes[key] += [("-U", old), ("+U", row)]
            self.rows[key] = row

    def delete(self, keys: Sequence[Row]) -> None:
        """Deletes the existing rows among these keys."""
        for key in dict.fromkeys(keys):
            old = self.rows.pop(key, None)
            if self.changelog != "full":
                alone = dict(zip(self.key, key, strict=True))
                self.changes[key].append(("-D", tuple(alone.get(name) for name in self.schema.names)))
            elif old is not None:
                self.changes[key].append(("-D", old))

    def add_columns(self, columns: pa.Schema) -> None:
        """Adds columns, which are null in all rows and changes so far."""
        self.schema = pa.schema([*self.schema, *columns])
        nulls = (None,) * len(columns)
        self.rows = {key: row + nulls for key, row in self.rows.items()}
        for key, changes in self.changes.items():
            self.changes[key] = [(kind, row + nulls) for kind, row in changes]

    def widened(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Returns rows of an earlier schema with the current columns."""
        for field in list(self.schema)[rows.num_columns :]:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows

    def key_of(self, row: Row, columns: Sequence[str]) -> Row:
        """Returns the key of a row with these columns."""
        return tuple(row[columns.index(name)] for name in self.key)

    def bucket_of(self, key: Row) -> int:
        """Returns the bucket that a key belongs to."""
        if key not in self._bucket_of:
            encoded = self._bucket_codec.encode_one([key[place] for place in self._bucket_places])
            self._bucket_of[key] = bucket_of_one(encoded, self.buckets)
        return self._bucket_of[key]

    def rows_in(self, bucket: int) -> dict[Row, Row]:
        """Returns the rows of a bucket in key order."""
        return {key: self.rows[key] for key in self.keys() if self.bucket_of(key) == bucket}

    def keys(self) -> list[Row]:
        """Returns the keys of all rows, ascending."""
        return sorted(self.rows)

    def by_key(self, rows: pa.RecordBatch | pa.Table) -> dict[Row, Row]:
        """Returns rows by key in their order, after checking that no key occurs twice."""
        found = [(self.key_of(row, rows.schema.names), row) for row in exact_rows(rows)]
        assert len(dict(found)) == len(found), "a key is there twice"
        return dict(found)

    def changes_in(self, bucket: int) -> Iterator[tuple[Row, list[tuple[str, Row]]]]:
        """Returns the changes of each key of a bucket that ever had a row."""
        return ((key, changes) for key, changes in self.changes.items() if self.bucket_of(key) == bucket)
