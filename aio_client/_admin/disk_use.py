"""The disk use of a table or of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from scankv.v1 import table_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Bytes on disk, as the file system allocates them.

    A file that several parts share by hard links, as snapshots do with the table, counts once, for the first of these
    parts that has it.

    Attributes:
        rows: SST files of rows.
        changelog: SST files of the changelog.
        indexes: SST files of index entries.
        write_ahead_logs: Writes that are not in SST files yet. Shrinks with the next flush.
        bases: Columnar bases.
        snapshots: Files that only pinned snapshots keep.
        staging: Rows that open transactions have staged. 0 for a single table.
        unopened: SST files of buckets that were not opened since the server started. What these files contain is
            unknown.
        other: Everything else.
        total: The sum of all of these.
    """

    rows: int
    changelog: int
    indexes: int
    write_ahead_logs: int
    bases: int
    snapshots: int
    staging: int
    unopened: int
    other: int
    total: int

    @classmethod
    def of(cls, message: table_pb2.DiskUse) -> Self:
        """Decodes the bytes in an answer."""
        return cls(**{name: getattr(message, name) for name in cls.__slots__})
