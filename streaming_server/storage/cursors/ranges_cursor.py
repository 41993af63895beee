"""A cursor over several key ranges and single keys of one bucket, at one instant."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.ranges_reader import RangesReader
from streaming_server.storage.files.formats import locate

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rows.row_codec import Decoder

STEP_SECONDS: Final = 0.001
"""The approximate duration after which a step ends: a step holds the event loop."""


class RangesCursor:
    """Reads the rows of some key ranges of one bucket, as of the instant when the cursor was created.

    Its steps are bounded like those of a `BucketCursor`. Create the cursor under the bucket's mutex; then use it from
    one thread at a time. It pins files on disk until `close`.

    Attributes:
        rows_scanned: Rows found so far.
        message, stored: None, because the rows are not stored as Arrow.
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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Creates a cursor before the first range.

        Args:
            store: The store of the bucket.
            decoder: Decodes the rows.
            ranges: The ranges to read.
            longest_row: Bytes of the longest row ever written to the bucket.
            reverse: Whether to read the rows in descending key order.
            clock: Returns seconds, by which the duration of steps is limited.
        """
        self.rows_scanned = 0
        self._location = store.location
        self._decoder = decoder
        self._longest_row = max(longest_row, 1)
        self._clock = clock
        self._reader = RangesReader(store, store.rows, ranges, self._longest_row, reverse=reverse)
        self._open = True
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which the cursor has read, which may have no row. None: before the first key."""
        return self._reader.last_key

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        """Returns True, because each step of `next_batch` is short."""
        return True

    def next_batch(self, max_rows: int, max_bytes: int) -> pa.RecordBatch | None:
        """Returns the next rows, at most `max_rows` and possibly none; None at the end.

        All rows but the last together take at most `max_bytes` stored bytes. Raises DataLoss when a row cannot be read
        or decoded, or when the end-of-range check fails.
        """
        values = self.next_rows(max_rows, max_bytes)
        if values is None:
            return None
        try:
            return self._decoder.decode(pa.array(values, pa.binary()))
        except DataLoss as error:
            raise locate(error, self._location) from error

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """Like `next_batch`, but returns the rows as they are stored. Does not notice a damaged row."""
        values: list[bytes] = []
        budget, until = max_bytes, self._clock() + STEP_SECONDS
        while not self._reader.ended and len(values) < max_rows and budget > 0:
            part = [
                value
                for _, value in self._reader.read(min(max_rows - len(values), max(budget // self._longest_row, 1)))
            ]
            values += part
            budget -= sum(map(len, part))
            if self._clock() >= until:
                break
        self.rows_scanned += len(values)
        return None if self._reader.ended and not values else values

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._reader.close()
        BucketCursor.open_cursors -= self._open
        self._open = False
