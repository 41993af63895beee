"""A cursor over the entries of an index in one bucket."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from streaming_server.storage.cursors.cursor import BucketCursor
from streaming_server.storage.cursors.range_reader import RangeReader, items_projection
from streaming_server.storage.cursors.ranges_reader import RangesReader

if TYPE_CHECKING:
    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.storage.rocks.store import RocksStore

STEP_SECONDS: Final = 0.001
"""The approximate duration after which a step over several ranges ends: a step holds the event loop."""


class EntryCursor:
    """The index entries of one bucket in some key ranges, at the instant when the cursor was created.

    Like a `BucketCursor`, it reads in steps of bounded time and never ends early unnoticed. Create it under the
    bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Attributes:
        entries_scanned: Entries of the ranges read so far.
    """

    def __init__(self, store: RocksStore, longest_row: int, ranges: KeyRanges, *, reverse: bool = False) -> None:
        """Creates a cursor before the first entry.

        Args:
            store: The store of the bucket.
            longest_row: Bytes of the longest row ever written to the bucket.
            ranges: Ranges of the keys of entries, as `IndexCodec.within` returns them.
            reverse: Whether to read the entries in descending order.
        """
        self.entries_scanned = 0
        self._open = False
        self._reader: RangeReader[tuple[bytes, bytes]] | RangesReader | None = None
        if not ranges:
            return
        if len(ranges) == 1:
            projection = items_projection()
            self._reader = RangeReader(
                store, store.index, projection, ranges.span, longest=longest_row, reverse=reverse
            )
        else:
            self._reader = RangesReader(store, store.index, ranges, longest_row, reverse=reverse)
        self._open = True
        BucketCursor.open_cursors += 1

    @property
    def ended(self) -> bool:
        """Whether all entries were read, and the end-of-range check has passed."""
        return self._reader is None or self._reader.ended

    def next_entries(self, max_entries: int) -> tuple[list[bytes], list[bytes]] | None:
        """Returns the keys and values of the next entries, at most `max_entries` and possibly none; None at the end.

        Fewer entries than asked for do not mean the end: call it again until it returns None.

        Raises:
            DataLoss: The end-of-range check has failed. A damaged entry is not noticed.
        """
        found = self._next(max_entries)
        return None if found is None else ([key for key, _ in found], [value for _, value in found])

    def next_values(self, max_entries: int) -> list[bytes] | None:
        """Like `next_entries`, but returns the values alone."""
        found = self._next(max_entries)
        return None if found is None else list(map(itemgetter(1), found))

    def _next(self, max_entries: int) -> list[tuple[bytes, bytes]] | None:
        if self._reader is None:
            return None
        found = self._reader.read(max_entries)
        if isinstance(self._reader, RangesReader):
            until = time.perf_counter() + STEP_SECONDS
            while not self._reader.ended and len(found) < max_entries and time.perf_counter() < until:
                found += self._reader.read(max_entries - len(found))
        self.entries_scanned += len(found)
        return found if found or not self._reader.ended else None

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        if self._reader is not None:
            self._reader.close()
        BucketCursor.open_cursors -= self._open
        self._open = False
