"""Log offsets of a table's buckets, as reads and writes give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class LogOffsets(dict[int, int]):
    """By bucket a log offset; equal to a dictionary of the same. Picklable.

    Attributes:
        table_incarnation: Of which table they are, which a table that was dropped and made anew under its name is not.
            Empty: it is not known, as of offsets that were kept elsewhere.
    """

    table_incarnation: str = ""

    def note(self, offsets: Mapping[int, int], table_incarnation: str) -> None:
        """Raises the offsets to those of a later write."""
        self.table_incarnation = table_incarnation
        for bucket, offset in offsets.items():
            self[bucket] = max(offset, self.get(bucket, offset))

    @staticmethod
    def incarnation_of(offsets: Mapping[int, int] | None) -> str:
        """That of the table that some offsets are of; empty when they do not say."""
        return offsets.table_incarnation if isinstance(offsets, LogOffsets) else ""
