"""Reads several key ranges and single keys of a column family at one instant.

All iterators that show the same instant of a live bucket must be created at that instant. So one `RangeReader` moves
from range to range, and one iterator looks up single keys: hundreds of ranges cost nothing until they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.cursors.range_reader import RangeReader, is_skip_limit_reached, items_projection
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.storage.rocks.store import RocksStore

_FIRST_BLOCK, _LAST_BLOCK = 4, 256


class RangesReader:
    """Reads the entries of key ranges, as of the instant when the reader was created.

    Create it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Args:
        store: The store of the bucket.
        family: The column family to read.
        ranges: The ranges to read.
        longest: Bytes of the longest row ever written, or of the longest key ever deleted.
        reverse: Whether to read the entries in descending order.

    Attributes:
        last_key: The key up to which the reader has read, which may have no entry. None: before the first key.
    """

    def __init__(
        self,
        store: RocksStore,
        family: Rdict,
        ranges: KeyRanges,
        longest: int,
        *,
        reverse: bool = False,
    ) -> None:
        self.last_key: bytes | None = None
        self._store = store
        self._reverse = reverse
        self._starts, self._ends = ranges.starts, ranges.ends
        self._index = len(ranges) - 1 if reverse else 0
        self._block = 0
        # The iterator only borrows its options: never change them, and free them after it. A lookup finds an existing
        # key without skipping anything, so with this limit a lookup among deleted keys takes no longer than others.
        self._options = scan_options(max_skips=1)
        self._points: RdictIter | None = None
        self._reader: RangeReader[tuple[bytes, bytes]] | None = None
        if len(ranges.keys) < len(ranges):
            projection = items_projection(fast=False)
            self._reader = RangeReader(store, family, projection, ranges.span, longest=longest, reverse=reverse)
        self._use = store.readers.add(partial(self._create_iterator, family))

    def _create_iterator(self, family: Rdict) -> None:
        self._points = family.iter(self._options)

    @property
    def ended(self) -> bool:
        """Whether all entries were read, and the end-of-range checks have passed."""
        return not 0 <= self._index < len(self._starts)

    def read(self, most: int) -> list[tuple[bytes, bytes]]:
        """Returns the next entries of one range: at most `most`, fewer at first, none at its end or if it takes long.

        Raises:
            DataLoss: Entries cannot be read.
        """
        try:
            return [] if self.ended else self._read(most)
        except ScanKvError:
            raise
        except Exception as error:
            raise self._store.failure(error) from error

    def _read(self, most: int) -> list[tuple[bytes, bytes]]:
        start, end = self._starts[self._index], self._ends[self._index]
        if end == start + b"\0":
            return self._look_up(start)
        assert self._reader is not None
        if not self._block:
            self._reader.move_to(KeyRange(start, end))
            self._block = _FIRST_BLOCK
        # Blocks start small and grow with the range, because entries read beyond its end are wasted.
        entries = self._reader.read(min(most, self._block))
        self._block = min(2 * self._block, _LAST_BLOCK)
        reached = self._reader.last_key
        if reached is not None:
            self.last_key = reached
        if self._reader.ended:
            # The complete range was read: at least up to its first key; in descending order exactly down to it.
            self.last_key = start if self._reverse or reached is None else reached
            self._go_to_next(self._reader.beyond, exhausted=self._reader.exhausted)
        return entries

    def _look_up(self, key: bytes) -> list[tuple[bytes, bytes]]:
        self._use.begin()
        assert self._points is not None
        self._points.seek(key)
        there = self._points.key() if self._points.valid() else None
        if there is None:
            is_skip_limit_reached(self._points)
        found = [(key, self._points.value())] if there == key else []
        self.last_key = key
        self._go_to_next(None if self._reverse or found else there)
        return found

    def _go_to_next(self, beyond: bytes | None, *, exhausted: bool = False) -> None:
        """Goes to the next range that may have entries.

        Args:
            beyond: The next existing key, if it is known: ranges before it are empty.
            exhausted: Whether no other key exists, so that all remaining ranges are empty.
        """
        self._block = 0
        self._index += -1 if self._reverse else 1
        if self.ended or (beyond is None and not exhausted):
            return
        if exhausted or beyond is None:
            index = -1 if self._reverse else len(self._starts)
        elif self._reverse:
            # The range that contains the next key, or the first range after it in the order of reading.
            index = min(self._index, bisect_right(self._starts, beyond) - 1)
        else:
            index = max(self._index, bisect_right(self._starts, beyond, lo=self._index) - 1)
            end = self._ends[index]
            index += end is not None and end <= beyond
        if index != self._index:
            self.last_key = self._starts[index + 1 if self._reverse else index - 1]
            self._index = index

    def close(self) -> None:
        """Frees the iterators, and with them the files they pin. Closing twice is allowed."""
        self._use.close()
        self._points = None
        if self._reader is not None:
            self._reader.close()
