"""The rows that an index lookup has found, and a cursor over them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import DataLoss
from streaming_server.storage.cursors.entry_cursor import STEP_SECONDS
from streaming_server.storage.files.formats import locate

if TYPE_CHECKING:
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.scan.row_reader import ReadableBucket
    from streaming_server.storage.cursors.row_lookup import RowLookup
    from streaming_server.storage.rows.row_codec import Decoder

MAX_BATCH_ROWS: Final = 2048
"""The most rows that are decoded at once: about a millisecond."""
_MOST_KEYS: Final = 64
_NO_ROWS: Final = pa.array([], pa.binary())


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """The keys that an index lookup has found.

    Attributes:
        keys: For each bucket that may have rows, the encoded keys of all rows that can match, ascending. Each has a
            row. None, only until the first row is read: they are not known yet.
        rows: For each bucket the rows as a covering index stores them, in the same order, if the entries have all
            requested columns. None: read the rows by their keys.
    """

    keys: dict[int, pa.BinaryArray | None]
    rows: dict[int, pa.BinaryArray] | None

    def may_have_rows(self, bucket: int) -> bool:
        """Whether a bucket may have matching rows."""
        return bucket in self.keys and ((keys := self.keys[bucket]) is None or len(keys) > 0)

    def within(self, bucket: int, ranges: KeyRanges, *, reverse: bool) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Returns the keys of a bucket in some ranges, in reading order, and their rows if they are known."""
        keys = self.keys[bucket]
        assert keys is not None
        rows = _NO_ROWS if self.rows is None else self.rows[bucket]
        if ranges.is_bounded or len(ranges) > 1:
            numbers = np.concatenate(
                [np.arange(_count_below(keys, one.start, 0), _count_below(keys, one.end, len(keys))) for one in ranges]
            )
            keys, rows = keys.take(pa.array(numbers)), rows if self.rows is None else rows.take(pa.array(numbers))
        return (keys[::-1], rows[::-1]) if reverse else (keys, rows)


def _count_below(keys: pa.BinaryArray, end: bytes | None, unbounded: int) -> int:
    if end is None:
        return unbounded
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if keys[middle].as_py() < end else (low, middle)
    return low


class IndexedRowsCursor:
    """A `Cursor` over the rows of one bucket that an index lookup has found, as of the instant of its creation.

    The rows come from the entries of a covering index; otherwise they are looked up by their keys.

    Args:
        bucket: The bucket.
        number: Its number.
        decoder: Decodes the rows.
        indexed: The keys that the lookup has found, at the latest when the first row is read.
        ranges: The keys to read.
        reverse: Whether to read in descending key order.

    Attributes:
        rows_scanned: The number of rows returned so far.
        message, stored: None, because the rows are not stored as Arrow.
    """

    message: None = None
    stored: None = None

    def __init__(
        self,
        bucket: ReadableBucket,
        number: int,
        decoder: Decoder,
        indexed: IndexedKeys,
        ranges: KeyRanges,
        *,
        reverse: bool,
    ) -> None:
        self.rows_scanned = 0
        self._location = bucket.location
        self._longest_row = max(bucket.longest_row, 1)
        self._decoder = decoder
        self._asked = indexed, number, ranges, reverse
        self._found: tuple[pa.BinaryArray, pa.BinaryArray] | None = None
        self._last_key: bytes | None = None
        # Rows that `prefetch` has looked up, with how many bytes they have.
        self._next: list[bytes] = []
        self._next_bytes = 0
        self._lookup = None if indexed.rows is not None else bucket.row_lookup()

    @property
    def last_key(self) -> bytes | None:
        """The encoded key of the last row returned, None before the first."""
        return self._last_key

    def prefetch(self, max_rows: int, max_bytes: int) -> bool | None:
        """Looks rows up for about a millisecond. See `Cursor`."""
        if self._lookup is None:
            return True
        is_ready = self._look_up(self._lookup, max_rows, max_bytes)
        return is_ready if self._next else None

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, None at the end. Raises DataLoss for a row that is missing or cannot be decoded."""
        values = self._take(max_rows, max_bytes)
        if values is None:
            return None
        try:
            return self._decoder.decode(values)
        except DataLoss as error:
            raise locate(error, self._location) from error

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """Returns the next rows in stored form; None at the end. Only the last row may exceed `max_bytes`."""
        values = self._take(max_rows, max_bytes)
        return None if values is None else values.to_pylist()

    def _take(self, max_rows: int, max_bytes: int) -> pa.BinaryArray | None:
        keys, rows = self._arrays
        if self._lookup is None:
            values = _cut(rows[self.rows_scanned : self.rows_scanned + min(max_rows, MAX_BATCH_ROWS)], max_bytes)
        else:
            if not self._next:
                self._look_up(self._lookup, max_rows, max_bytes)
            values = pa.array(self._next, pa.binary())
            self._next, self._next_bytes = [], 0
        if not len(values):
            return None
        self.rows_scanned += len(values)
        self._last_key = keys[self.rows_scanned - 1].as_py()
        return values

    def _look_up(self, lookup: RowLookup, max_rows: int, max_bytes: int) -> bool:
        """Looks up the next rows, at least one. Returns whether they are enough, or the last ones."""
        keys, _ = self._arrays
        until = time.perf_counter() + STEP_SECONDS
        most = min(max_rows, MAX_BATCH_ROWS, len(keys) - self.rows_scanned)
        while len(self._next) < most and self._next_bytes < max_bytes:
            count = min(_MOST_KEYS, most - len(self._next), max((max_bytes - self._next_bytes) // self._longest_row, 1))
            start = self.rows_scanned + len(self._next)
            rows = lookup.rows(keys[start : start + count].to_pylist())
            self._next += rows
            self._next_bytes += sum(map(len, rows))
            if time.perf_counter() >= until:
                break
        return len(self._next) >= most or self._next_bytes >= max_bytes

    @property
    def _arrays(self) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """The keys to read, in reading order, and their rows if the lookup has found them."""
        if self._found is None:
            indexed, number, ranges, reverse = self._asked
            self._found = indexed.within(number, ranges, reverse=reverse)
        return self._found

    def close(self) -> None:
        """Releases the rows, and the files that lookups pin. Closing twice is allowed."""
        self._found, self._next = (_NO_ROWS, _NO_ROWS), []
        if self._lookup is not None:
            self._lookup.close()


def _cut(rows: pa.BinaryArray, max_bytes: int) -> pa.BinaryArray:
    """Returns the first rows, of which only the last may exceed the limit."""
    if rows.nbytes <= max_bytes:
        return rows
    return rows[: int(np.searchsorted(np.cumsum(pc.binary_length(rows)), max_bytes)) + 1]
