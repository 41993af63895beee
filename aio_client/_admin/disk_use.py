"""What a table, or a server, takes on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from scankv.v1 import table_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Bytes on disk, as the file system allocates them.

    A file that several parts share by hard links, as snapshots do with the table, is counted once, for the first of
    these that has it.

    Attributes:
        rows: Table files of rows.
        changelog: Table files of the changelog.
        indexes: Table files of index entries.
        write_ahead_logs: What was written and is not in table files yet. It shrinks with the next flush.
        bases: Columnar bases.
        snapshots: What pinned snapshots alone keep.
        staging: What open transactions have staged. 0 for a single table.
        unopened: Table files of buckets that were not opened since the server started: what they hold is not known.
        other: Everything else.
        total: All of them.
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
        """The figures in an answer."""
        return cls(**{name: getattr(message, name) for name in cls.__slots__})
