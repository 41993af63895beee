"""One scan of several key ranges and single keys of one bucket: a seek for each, in key order, all as of one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.ranges_reader import RangesReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rows.row_codec import Decoder

STEP_SECONDS: Final = 0.001
"""The approximate duration after which a step ends: a step holds the event loop."""


class RangesCursor:
    """The rows of some key ranges of one bucket, as of the moment the cursor was made. Reads like a `BucketCursor`.

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
        self._location = store.location
        self._decoder = decoder
        self._longest_row = max(longest_row, 1)
        self._clock = clock
        self._reader = RangesReader(store, store.rows, ranges, self._longest_row, reverse=reverse, strict=strict)
        self._open = True
        BucketCursor.open_cursors += 1

    @property
    def last_key(self) -> bytes | None:
        """The encoded key up to which it has read, which need not be that of a row; None before the first."""
        return self._reader.last_key

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
            raise DataLoss(f"{self._location}: {error.message}") from error

    def next_rows(self, max_rows: int, max_bytes: int) -> list[bytes] | None:
        """The next rows as they are stored, otherwise as `next_batch`. A damaged row goes unnoticed."""
        values: list[bytes] = []
        room, until = max_bytes, self._clock() + STEP_SECONDS
        while not self._reader.ended and len(values) < max_rows and room > 0:
            part = [
                value for _, value in self._reader.read(min(max_rows - len(values), max(room // self._longest_row, 1)))
            ]
            values += part
            room -= sum(map(len, part))
            if self._clock() >= until:
                break
        self.rows_scanned += len(values)
        return None if self._reader.ended and not values else values

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._reader.close()
        BucketCursor.open_cursors -= self._open
        self._open = False
