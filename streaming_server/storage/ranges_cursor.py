"""One scan of several key ranges and single keys of one bucket: a seek for each, in key order, all as of one moment."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streaming_server.storage.cursor import BucketCursor
from streaming_server.storage.rocks import scan_options
from table_model.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocksdict import RdictIter

    from streaming_server.storage.rocks import RocksStore
    from streaming_server.storage.row_codec import Decoder
    from table_model.key_ranges import KeyRanges

STEP_SECONDS: Final = 0.001
"""About the longest that one step seeks and reads, since the event loop is held meanwhile."""

_FIRST_BLOCK, _LAST_BLOCK = 4, 256


class RangesCursor:
    """The rows of some key ranges of one bucket, as of the moment the cursor was made. Reads like a `BucketCursor`.

    All iterators of a live bucket that are to show one moment must be made at that moment. So there is one for all
    ranges, which seeks to one after another: hundreds of ranges cost nothing until they are read. Unlike the fast
    iterator of a single range, it reports damage by itself: a range ends only where this iterator stands behind it, or
    is at the end and reports no error.

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
        # As in `BucketCursor`: freed after the iterator, never changed.
        self._options = scan_options(ranges.span.end)
        try:
            self._iterator: RdictIter | None = store.rows.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error
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
        except DataLoss:
            raise
        except Exception as error:
            raise self._store.failure(error) from error
        self.rows_scanned += len(values)
        return None if self._ended and not values else values

    @property
    def _ended(self) -> bool:
        return not 0 <= self._place < len(self._starts)

    def _read_some(self, most: int, room: int) -> list[bytes]:
        """The next rows of the current range, few at first; none where it ends."""
        start, end = self._starts[self._place], self._ends[self._place]
        if end == start + b"\0":
            return self._look_up(start)
        if not self._block:
            self._seek_begin(start, end)
            self._block = _FIRST_BLOCK
        # Rows behind the range are read for nothing, so that blocks grow with what the range has.
        step = min(most, self._block, max(room // self._longest_row, 1))
        self._block = min(2 * self._block, _LAST_BLOCK)
        keys, values = self._entries(step)
        count = len(keys)
        if self._reverse:
            if keys and keys[-1] < start:
                count = bisect_left(keys, True, key=start.__gt__)
        elif end is not None:
            count = bisect_left(keys, end)
        if count:
            self._last = keys[count - 1]
        if count < len(keys):
            self._move_to(keys[count])
        elif len(keys) < step:
            self._end_all()
        return values[:count]

    def _look_up(self, key: bytes) -> list[bytes]:
        (self._standing.seek_for_prev if self._reverse else self._standing.seek)(key)
        there = self._standing.key() if self._standing.valid() else None
        if there == key:
            self._last = key
            self._place += -1 if self._reverse else 1
            return [self._standing.value()]
        if self._strict:
            self._standing.status()
            raise rows_missing(self._store.place)
        if there is None:
            self._end_all()
        else:
            self._move_to(there)
        return []

    def _move_to(self, key: bytes) -> None:
        """Goes on with the range of a key, or the next one; there is no key between it and what was read."""
        self._block = 0
        self._place = bisect_right(self._starts, key) - 1
        if self._reverse:
            self._last = self._starts[self._place + 1]
            return
        end = self._ends[self._place]
        if end is not None and key >= end:
            self._place += 1
            self._last = key

    def _end_all(self) -> None:
        """Goes behind the last range, when there is proven to be no key in any."""
        self._standing.status()
        self._place = -1 if self._reverse else len(self._starts)

    def _seek_begin(self, start: bytes, end: bytes | None) -> None:
        """To where a range begins in the direction of the reading."""
        if not self._reverse:
            self._standing.seek(start)
        elif end is None:
            self._standing.seek_to_last()
        else:
            self._standing.seek_for_prev(end)
            if self._standing.valid() and self._standing.key() == end:
                self._standing.prev()

    def _entries(self, count: int) -> tuple[list[bytes], list[bytes]]:
        """Keys and values from where the iterator stands, at most so many; it stands behind them then."""
        iterator = self._standing
        move = iterator.prev if self._reverse else iterator.next
        # Loops that Python has in C: `key` gives None where the iterator is not valid, and `move` never 0.
        both = list(islice(zip(iter(iterator.key, None), iter(iterator.value, None), iter(move, 0)), count))  # noqa: B905
        return [key for key, _, _ in both], [value for _, value, _ in both]

    @property
    def _standing(self) -> RdictIter:
        """The iterator. Keep it in no variable: an error's traceback would hold it, and its files, after `close`."""
        assert self._iterator is not None
        return self._iterator

    def close(self) -> None:
        """Frees the iterator, and with it the files it pins. Closing twice is allowed."""
        self._store.readers -= self._iterator is not None
        BucketCursor.open_cursors -= self._iterator is not None
        self._iterator = None


def rows_missing(place: str) -> DataLoss:
    """The error for index entries without their rows in a bucket."""
    return DataLoss(f"an index and the rows of {place} disagree; run `scankv check`")
