"""With how many matching rows does an index lookup still cost less than reading all rows? Pure arithmetic.

The constants are nanoseconds of processor time on one core. Only their ratios matter, which hardly depend on the
processor. `benchmarks/growth/index_lookups.py` measures them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

ROW_NANOSECONDS: Final = 300.0
BYTE_NANOSECONDS: Final = 1.1
"""A scan of RocksDB: for each row of the table, and for each byte of it."""
BASE_ROW_NANOSECONDS: Final = 2.0
BASE_BYTE_NANOSECONDS: Final = 0.06
"""The same for a scan of columnar bases, which reads a column where it is needed."""
LOOKUP_NANOSECONDS: Final = 2200.0
"""An index lookup: for each matching row, its entry and the search for the row."""
BLOCK_NANOSECONDS: Final = 7500.0
"""The same for each block of rows that has a matching row."""
COVERED_NANOSECONDS: Final = 950.0
"""An entry that has all requested columns: 700, and what is due for entries that are read in vain."""
_BLOCK_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class RowsToScan:
    """The rows of one bucket that a scan without an index reads.

    Attributes:
        rows: Their approximate number.
        row_bytes: The approximate bytes of a stored row.
        has_base: Whether the scan reads a columnar base.
    """

    rows: int
    row_bytes: int
    has_base: bool

    @property
    def nanoseconds(self) -> float:
        """What the scan takes."""
        if self.has_base:
            return self.rows * (BASE_ROW_NANOSECONDS + BASE_BYTE_NANOSECONDS * self.row_bytes)
        return self.rows * (ROW_NANOSECONDS + BYTE_NANOSECONDS * self.row_bytes)


def most_lookups(buckets: Collection[RowsToScan], *, covered: bool) -> int:
    """Returns with how many matching rows an index lookup costs about as much as reading all rows.

    Args:
        buckets: What is read without the index.
        covered: Whether the entries have all requested columns, so that no row is looked up.
    """
    nanoseconds = sum(bucket.nanoseconds for bucket in buckets)
    if covered or not nanoseconds:
        return int(nanoseconds / COVERED_NANOSECONDS)
    rows, size = sum(bucket.rows for bucket in buckets), sum(bucket.rows * bucket.row_bytes for bucket in buckets)
    blocks = size / _BLOCK_BYTES
    each = LOOKUP_NANOSECONDS + BYTE_NANOSECONDS * size / rows
    # Few matching rows are in blocks of their own.
    if nanoseconds <= blocks * (each + BLOCK_NANOSECONDS):
        return int(nanoseconds / (each + BLOCK_NANOSECONDS))
    return int((nanoseconds - blocks * BLOCK_NANOSECONDS) / each)
