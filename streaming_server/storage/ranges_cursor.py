"""One scan of several key ranges and single keys of one bucket: a seek for each, in key order, all as of one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streaming_server.storage.cursor import BucketCursor
from streaming_server.storage.range_reader import RangeReader, found_too_much, items_form
from streaming_server.storage.rocks import scan_options
from table_model.errors import DataLoss, ScanKvError
from table_model.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocksdict import RdictIter

    from streaming_server.storage.rocks import RocksStore
    from streaming_server.storage.row_codec import Decoder
    from table_model.key_ranges import KeyRanges

STEP_SECONDS: Final = 0.001
"""The approximate duration after which a step ends: a step holds the event loop."""

_FIRST_BLOCK, _LAST_BLOCK = 4, 256


class RangesCursor:
    """The rows of some key ranges of one bucket, as of the moment the cursor was made. Reads like a `BucketCursor`.

    All iterators of a live bucket that are to show one moment must be made at that moment. So one `RangeReader` moves
    from range to range, and one iterator looks single keys up: hundreds of ranges cost nothing until they are read.

    Make it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Attributes:
        rows_scanned: Rows found so far.
        message, stored: None: rows do not lie there as Arrow.
    """

    message: None = None
    stored: None = None

    def __init__(
        self,
        store: RocksStore,
        decoder: Decoder,
        ranges: KeyRanges,
        longest_row: int,
        *,
        reverse: bool = False,
        strict: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begins before the first range.

        Args:
            store: Where the bucket lies.
            decoder: Decodes the rows.
            ranges: What is read.
            longest_row: Bytes of the longest row that the bucket has held.
            reverse: Whether the last range is read first, in descending order.
            strict: Whether there is a row with every single key, as an index says: one that is missing is damage.
            clock: Tells when a step has taken long enough, in seconds.
        """
        self.rows_scanned = 0
        self._store = store
        self._decoder = decoder
        self._reverse = reverse
        self._strict = strict
        self._longest_row = max(longest_row, 1)
        self._clock = clock
        self._starts, self._ends = ranges.starts, ranges.ends
        self._place = len(ranges) - 1 if reverse else 0
        self._block = 0
        self._last: bytes | None = None
        # An iterator only borrows its options: they are freed after it, and never changed. A key that is there is found
        # without skipping anything, so a lookup among deleted keys takes no longer than any.
        self._options = scan_options(max_skips=1)
        self._reader: RangeReader[tuple[bytes, bytes]] | None = None
        try:
            self._points: RdictIter | None = store.rows.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error
        if len(ranges.keys) < len(ranges):
            form = items_form(fast=False)
            self._reader = RangeReader(store, store.rows, form, ranges.span, longest=self._longest_row, reverse=reverse)
        store.readers += 1
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which it has read, which need not be that of a row; None before the first."""
        return self._last

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """The next rows, at most `max_rows`; None at the end, which is proven.

        A batch has no rows where a step has found none. Rows are within `max_bytes` stored bytes but for the last.
        Raises DataLoss for what cannot be read, for a row that cannot be decoded, and where it is strict for a key
        without a row.
        """
        values = self.next_rows(max_rows, max_bytes)
        if values is None:
            return None
        try:
            return self._decoder.decode(pa.array(values, pa.binary()))
        except DataLoss as error:
            raise DataLoss(f"{self._store.place}: {error.message}") from error

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """The next rows as they are stored, otherwise as `next_batch`. A damaged row goes unnoticed."""
        values: list[bytes] = []
        room, until = max_bytes, self._clock() + STEP_SECONDS
        try:
            while not self._ended and len(values) < max_rows and room > 0:
                part = self._read_some(max_rows - len(values), room)
                values += part
                room -= sum(map(len, part))
                if self._clock() >= until:
                    break
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error
        self.rows_scanned += len(values)
        return None if self._ended and not values else values

    @property
    def _ended(self) -> bool:
        return not 0 <= self._place < len(self._starts)

    def _read_some(self, most: int, room: int) -> list[bytes]:
        """The next rows of the current range, few at first; none where it ends, or where that takes long."""
        start, end = self._starts[self._place], self._ends[self._place]
        if end == start + b"\0":
            return self._look_up(start)
        assert self._reader is not None
        if not self._block:
            self._reader.move_to(KeyRange(start, end))
            self._block = _FIRST_BLOCK
        # Rows behind the range are read for nothing, so that blocks grow with what the range has.
        entries = self._reader.read(min(most, self._block, max(room // self._longest_row, 1)))
        self._block = min(2 * self._block, _LAST_BLOCK)
        reached = self._reader.last_key
        if reached is not None:
            self._last = reached
        if self._reader.ended:
            # All of the range was read: up to its first key at least, and in descending order just down to that.
            self._last = start if self._reverse or reached is None else reached
            self._go_to_next()
        return [value for _, value in entries]

    def _look_up(self, key: bytes) -> list[bytes]:
        assert self._points is not None
        self._points.seek(key)
        there = self._points.key() if self._points.valid() else None
        if there is None:
            found_too_much(self._points)
        if there != key and self._strict:
            raise rows_missing(self._store.place)
        self._last = key
        self._go_to_next()
        return [self._points.value()] if there == key else []

    def _go_to_next(self) -> None:
        self._block = 0
        self._place += -1 if self._reverse else 1

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._store.readers -= self._points is not None
        BucketCursor.open_cursors -= self._points is not None
        self._points = None
        if self._reader is not None:
            self._reader.close()


def rows_missing(place: str) -> DataLoss:
    """The error for index entries without their rows in a bucket."""
    return DataLoss(f"an index and the rows of {place} disagree; run `scankv check`")
