"""Reads several key ranges and single keys of a column family, in key order or against it, as of one moment.

All iterators of a live bucket that are to show one moment must be made at that moment. So one `RangeReader` moves from
range to range, and one iterator looks single keys up: hundreds of ranges cost nothing until they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss, ScanKvError
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.cursors.range_reader import RangeReader, is_skip_limit_reached, items_projection
from streaming_server.storage.rocks.store import scan_options

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

    from scankv.model.keys.key_ranges import KeyRanges
    from streaming_server.storage.rocks.store import RocksStore

_FIRST_BLOCK, _LAST_BLOCK = 4, 256


class RangesReader:
    """The entries of key ranges, as of the moment when the reader was made.

    Make it under the bucket's mutex; then use it from one thread at a time. It pins files on disk until `close`.

    Args:
        store: Where the bucket lies.
        family: The column family that is read.
        ranges: What is read.
        longest: Bytes of the longest row, or deleted key, that there ever was.
        reverse: Whether the last range is read first, in descending order.
        strict: Whether there is an entry with every single key: one that is missing is damage.

    Attributes:
        last_key: The key up to which it has read, which need not be that of an entry; None before the first.
    """

    def __init__(
        self,
        store: RocksStore,
        family: Rdict,
        ranges: KeyRanges,
        longest: int,
        *,
        reverse: bool = False,
        strict: bool = False,
    ) -> None:
        self.last_key: bytes | None = None
        self._store = store
        self._reverse = reverse
        self._strict = strict
        self._starts, self._ends = ranges.starts, ranges.ends
        self._index = len(ranges) - 1 if reverse else 0
        self._block = 0
        # An iterator only borrows its options: they are freed after it, and never changed. A key that is there is found
        # without skipping anything, so a lookup among deleted keys takes no longer than any.
        self._options = scan_options(max_skips=1)
        self._reader: RangeReader[tuple[bytes, bytes]] | None = None
        try:
            self._points: RdictIter | None = family.iter(self._options)
        except Exception as error:
            raise store.failure(error) from error
        if len(ranges.keys) < len(ranges):
            projection = items_projection(fast=False)
            self._reader = RangeReader(store, family, projection, ranges.span, longest=longest, reverse=reverse)
        store.readers += 1

    @property
    def ended(self) -> bool:
        """Whether it is proven that there is nothing more in the ranges."""
        return not 0 <= self._index < len(self._starts)

    def read(self, most: int) -> list[tuple[bytes, bytes]]:
        """The next entries of one range, at most so many, few at first; none where it ends, or where that takes long.

        Raises:
            DataLoss: What is there cannot be read, or it is strict and there is no entry with a single key.
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
        # Entries behind the range are read for nothing, so that blocks grow with what the range has.
        entries = self._reader.read(min(most, self._block))
        self._block = min(2 * self._block, _LAST_BLOCK)
        reached = self._reader.last_key
        if reached is not None:
            self.last_key = reached
        if self._reader.ended:
            # All of the range was read: up to its first key at least, and in descending order just down to that.
            self.last_key = start if self._reverse or reached is None else reached
            self._go_to_next(self._reader.beyond, exhausted=self._reader.exhausted)
        return entries

    def _look_up(self, key: bytes) -> list[tuple[bytes, bytes]]:
        assert self._points is not None
        self._points.seek(key)
        there = self._points.key() if self._points.valid() else None
        if there is None:
            is_skip_limit_reached(self._points)
        if there != key and self._strict:
            raise missing_rows(self._store.location)
        found = [(key, self._points.value())] if there == key else []
        self.last_key = key
        self._go_to_next(None if self._reverse or found else there)
        return found

    def _go_to_next(self, beyond: bytes | None, *, exhausted: bool = False) -> None:
        """Goes to the next range; past all that have nothing, where the next key that there is lies `beyond` them.

        Past all ranges with `exhausted`: there is no other key.
        """
        self._block = 0
        self._index += -1 if self._reverse else 1
        if self.ended or (beyond is None and not exhausted):
            return
        if exhausted or beyond is None:
            index = -1 if self._reverse else len(self._starts)
        elif self._reverse:
            # The range that has the next key, or the first one behind it in the order of reading.
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
        self._store.readers -= self._points is not None
        self._points = None
        if self._reader is not None:
            self._reader.close()


def missing_rows(location: str) -> DataLoss:
    """The error for index entries without their rows in a bucket."""
    return DataLoss(f"an index and the rows of {location} disagree; run `scankv check`")
