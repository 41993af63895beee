"""Marks: measurements of a changelog, by which retention finds the offsets of a size or an age."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch

MARK_BYTES: Final = 1 << 20
"""A mark is written after this many bytes of records."""

_MARK: Final = b"log-mark/"
# bytes, microseconds of service time
_MARKED: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class LogMark:
    """A measurement of the changelog.

    The first `count` changes took `size` bytes, and all of them were written at or before `micros` of service time.
    """

    count: int
    size: int
    micros: int


class LogMarks:
    """The marks of one changelog, stored among the metadata of its bucket."""

    def __init__(self, store: RocksStore) -> None:
        self._store = store

    def __iter__(self) -> Iterator[LogMark]:
        """Yields all marks, oldest first. Raises DataLoss."""
        options = scan_options(_key_of(2**63))
        iterator = None
        try:
            iterator = self._store.meta.iter(options)
            iterator.seek(_MARK)
            while iterator.valid():
                key, value = cast("bytes", iterator.key()), cast("bytes", iterator.value())
                yield LogMark(int.from_bytes(key[len(_MARK) :], "big"), *_MARKED.unpack(value))
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._store.failure(error) from error
        finally:
            del iterator  # before its options, which it only borrows

    @staticmethod
    def put(batch: StoreBatch, mark: LogMark) -> None:
        """Adds a mark to a batch of writes."""
        batch.put_meta(_key_of(mark.count), _MARKED.pack(mark.size, mark.micros))

    @staticmethod
    def trim(batch: StoreBatch, count: int) -> None:
        """Adds the removal of the marks of fewer than `count` changes to a batch of writes."""
        batch.delete_meta_range(_MARK, _key_of(count))

    def count_of_bytes(self, size: int, span: LogSpan, *, round_down: bool) -> int:
        """Returns how many changes took `size` bytes; rounded up or down to a mark."""
        count = span.first
        for mark in self:
            if mark.size >= size:
                return _within(span, count if round_down else mark.count)
            count = mark.count
        return _within(span, count) if round_down else span.end

    def count_of_age(self, before: int, now: int, span: LogSpan) -> int:
        """Returns how many changes were written at or before a time; rounded down to a mark."""
        count = 0
        for mark in self:
            if mark.micros <= before:
                count = mark.count
            elif mark.micros <= now:
                break
            # A mark later than now was written before the stored service time was lost.
        return _within(span, count)

    def bytes_before(self, count: int, total: int) -> int:
        """Returns the bytes of the first `count` changes; rounded up to the next mark, or to the total."""
        return next((mark.size for mark in self if mark.count >= count), total)

    def bytes_from(self, count: int, total: int, span: LogSpan) -> int:
        """Returns about how many bytes the changes after the first `count` took, of `total` bytes ever written.

        Assumes that all changes between two marks have the same length. Trimming removes the marks of trimmed changes.
        """
        known = [(mark.count, mark.size) for mark in self]
        after = next((each for each in known if each[0] >= count), (span.end, total))
        least = (0, 0) if span.first == 0 else (span.first, max(0, after[1] - MARK_BYTES))
        before = max((each for each in known if each[0] <= count), default=least)
        share = (count - before[0]) / max(1, after[0] - before[0])
        return total - before[1] - int(share * (after[1] - before[1]))


def _key_of(count: int) -> bytes:
    return _MARK + count.to_bytes(8, "big")


def _within(span: LogSpan, count: int) -> int:
    return min(max(count, span.first), span.end)
