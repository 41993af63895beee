"""Rows to append to a table without a primary key: they are checked, but neither encoded nor merged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_ROW_BYTES
from streaming_server.storage.bucket.bucket_change import BucketChange, FewBytes
from streaming_server.storage.changelog.records import MAX_CHANGES_PER_RECORD, MAX_RECORD_BYTES, Changes, RowKind
from streaming_server.storage.rows.conversion import convert_written
from streaming_server.storage.rows.key_encoder import rows_by_bucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.functions.function import Mask
    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.rows.single_rows import Values
    from streaming_server.storage.rows.table_codec import TableCodec

_PIECE_ROWS: Final = MAX_CHANGES_PER_RECORD
"""A request is spread over buckets in pieces of at least so many rows, which fill a record."""

_FEW_ROWS: Final = 128
_FEW_BYTES: Final = 64 * 1024
_NOTHING: Final = FewBytes()


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """Rows to append to one bucket, in their order. Each row counts as a key of its own.

    Attributes:
        bucket: The number of the bucket.
        codec: The codec of the table.
        batch: The rows.
        keys: The number of each row in its request, ascending.
    """

    bucket: int
    codec: RowCodec
    batch: pa.RecordBatch
    keys: Sequence[int]

    @property
    def are_few(self) -> bool:
        """Whether the rows are written in less time than a change of threads takes."""
        return len(self.keys) <= _FEW_ROWS and bool(self.batch.nbytes <= _FEW_BYTES)

    @property
    def key_array(self) -> pa.BinaryArray:
        """The keys of the rows, which have no keys: nothing can be locked, or have changed."""
        return pa.array([], pa.binary())

    @property
    def key_list(self) -> list[bytes]:
        """See `key_array`."""
        return []

    @property
    def merges(self) -> bool:
        """Whether the rows have to be merged. Never."""
        return False

    @property
    def columns(self) -> None:
        """None, because appended rows are complete: only a partial write names columns."""
        return None

    def step_end(self, start: int, end: int) -> int:
        """Returns where a step from `start` ends, at `end` at the latest."""
        return end

    def slice(self, start: int, rows: int) -> AppendedRows:
        """Returns at most `rows` rows from position `start` on."""
        return replace(self, batch=self.batch.slice(start, rows), keys=self.keys[start : start + rows])

    def where(self, mask: Mask) -> AppendedRows:
        """Returns some of the rows."""
        keys = [self.keys[place] for place in np.flatnonzero(mask).tolist()]
        return replace(self, batch=self.batch.filter(pa.array(mask)), keys=keys)

    def by_key(self) -> AppendedRows:
        """Returns the same rows, in the order of the request."""
        return self

    def for_codec(self, codec: RowCodec) -> AppendedRows:
        """Returns the same rows for the codec of a newer schema. Columns that were added since have their defaults."""
        if codec is self.codec:
            return self
        rows = convert_written(self.batch, self.codec.definition.schema, codec.definition.schema)
        return replace(self, codec=codec, batch=rows)

    def change(self) -> BucketChange:
        """Returns what appending the rows does to their bucket."""
        rows, count = self.batch, self.batch.num_rows
        a_row = max(rows.nbytes // max(count, 1), 1)
        record_rows = min(MAX_CHANGES_PER_RECORD, max(1, MAX_RECORD_BYTES // a_row))
        return BucketChange(
            put_keys=_NOTHING,
            put_values=_NOTHING,
            delete_keys=_NOTHING,
            changes=Changes(np.full(count, RowKind.INSERT, np.uint8), rows, record_rows=record_rows),
            rows_added=count,
            schema_id=self.codec.definition.schema.id,
        )


def prepare_append(rows: pa.RecordBatch, codec: TableCodec, turn: int) -> list[AppendedRows]:
    """Checks rows, and splits them by bucket, ascending; by their bucket key, or where the table has none, by turns.

    Without a bucket key, contiguous pieces of the rows go to different buckets, if each fills a record.

    Args:
        rows: The rows, with columns of the current schema.
        codec: The table.
        turn: Where the table has no bucket key: decides which bucket gets the first rows. A request that is repeated
            has the same turn.

    Raises:
        InvalidKey: A bucket key is too long.
        RequestTooLarge: A row exceeds `MAX_ROW_BYTES`.
    """
    _check_row_sizes(rows, codec)
    if not rows.num_rows:
        return []
    definition = codec.definition
    if definition.bucket_key:
        by_bucket = rows_by_bucket(codec.keys.buckets_of_rows(rows))
        if len(by_bucket) == 1:
            return [AppendedRows(by_bucket[0][0], codec.rows, rows, range(rows.num_rows))]
        return [
            AppendedRows(number, codec.rows, rows.take(pa.array(places)), places.tolist())
            for number, places in by_bucket
        ]
    own = definition.own_buckets
    count = len(own)
    pieces = max(1, min(count, rows.num_rows // _PIECE_ROWS))
    bounds = [rows.num_rows * number // pieces for number in range(pieces + 1)]
    parts = [
        AppendedRows(own[(turn + number) % count], codec.rows, rows.slice(start, end - start), range(start, end))
        for number, (start, end) in enumerate(pairwise(bounds))
    ]
    return sorted(parts, key=lambda part: part.bucket)


def append_few(
    rows: Sequence[tuple[int, Values]], codec: TableCodec, turn: int
) -> tuple[list[AppendedRows], dict[int, tuple[int, int]]]:
    """Splits few checked rows, given with their numbers in the request, by bucket, as `prepare_append`.

    Returns:
        The rows of each bucket; and by its number, the bucket of each row and its place among the rows of that bucket.
    """
    assert codec.single is not None
    parts = prepare_append(codec.single.to_batch([values for _, values in rows]), codec, turn)
    places = {rows[key][0]: (part.bucket, place) for part in parts for place, key in enumerate(part.keys)}
    return parts, places


def turn_of(data: bytes, writer: str | None = None, sequence: int = 0) -> int:
    """Returns the turn of a request for `prepare_append`.

    The requests of a writer take turns. A request without a writer, as in a transaction, is known by its data.
    """
    return xxh3_64_intdigest(data) if writer is None else xxh3_64_intdigest(writer.encode()) + sequence


def _check_row_sizes(rows: pa.RecordBatch, codec: TableCodec) -> None:
    if rows.nbytes <= MAX_ROW_BYTES // 2:
        return
    lengths = pc.binary_length(codec.rows.encode(rows))
    longest = pc.max(lengths).as_py()
    if longest > MAX_ROW_BYTES:
        row = pc.index(lengths, longest).as_py()
        raise RequestTooLarge(
            f"row {row} takes {longest} bytes; the limit of a row is {MAX_ROW_BYTES}: store large values elsewhere",
            row=row,
        )
