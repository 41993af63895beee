"""Which key ranges of a bucket take disk space although their rows were deleted at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.keys.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DUE_BYTES: Final = 4 << 20
"""Less deleted data than this is left to RocksDB's own compactions."""


@dataclass(frozen=True, slots=True)
class DeletedRanges:
    """What has to be compacted in a bucket.

    Attributes:
        rows: Ranges of rows.
        entries: Ranges of index entries.
        records: Ranges of changelog records.
    """

    rows: Sequence[KeyRange]
    entries: Sequence[KeyRange]
    records: Sequence[KeyRange]


class DeletedSpace:
    """Collects deleted ranges until compacting them is worth its cost.

    RocksDB removes the rows of a deleted range only when a compaction meets its tombstone. It counts the tombstones of
    single keys to compact files that have many, but not those of ranges. In a bucket that is not written any more,
    no compaction would come.

    Args:
        most_ranges: Above so many ranges, neighbours become one.
    """

    def __init__(self, most_ranges: int = 64) -> None:
        self._most_ranges = most_ranges
        self._ranges: list[KeyRange] = []
        self._bytes = 0

    @property
    def is_due(self) -> bool:
        """Whether the deleted data is so large that the ranges should be compacted."""
        return self._bytes >= DUE_BYTES

    def add(self, ranges: Iterable[KeyRange], size: int) -> None:
        """Adds deleted ranges with about `size` bytes of data."""
        self._ranges += ranges
        self._bytes += size
        if len(self._ranges) > self._most_ranges:
            ordered = sorted(self._ranges, key=lambda keys: keys.start or b"")
            self._ranges = [_cover(*ordered[place : place + 2]) for place in range(0, len(ordered), 2)]

    def take(self) -> list[KeyRange]:
        """Returns the ranges, and begins again."""
        ranges, self._ranges, self._bytes = self._ranges, [], 0
        return ranges


def _cover(*ranges: KeyRange) -> KeyRange:
    ends = [keys.end for keys in ranges if keys.end is not None]
    return KeyRange(ranges[0].start, max(ends) if len(ends) == len(ranges) else None)
