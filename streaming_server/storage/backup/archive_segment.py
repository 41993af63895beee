"""A segment of the archive: what was written to the tables of a server since the segment before it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss, NewerFormat
from scankv.model.tables.schema import TableDefinition
from streaming_server.clock import StoredTimes
from streaming_server.storage.backup.backup_store import instant_id
from streaming_server.storage.backup.stored_fields import (
    check_fields,
    commits_from_json,
    commits_to_json,
    translate_unreadable,
)
from streaming_server.storage.tables.consumers import ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.storage.backup.backup_store import BackupStore

_FORMAT: Final = 1
# It is part of a path, so it may contain nothing else.
_DATA: Final = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9]{6}-[0-9]+\.wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A part of one file of the write-ahead log of a bucket.

    Attributes:
        log: The number of the file.
        start: Where the part begins in the file.
        size: Its bytes.
        data: The data of the archive that contains it.
        offset: Where it begins in the data.
        checksum: The XXH3 checksum of its content with 128 bits.
    """

    log: int
    start: int
    size: int
    data: str
    offset: int
    checksum: str

    def __post_init__(self) -> None:
        check_fields(self)
        if not _DATA.fullmatch(self.data) or min(self.log, self.start, self.size, self.offset) < 0:
            raise ValueError(f"{self.data[:80]!r} describes no part of a log")

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSegment:
    """What was written to one bucket.

    Attributes:
        families: The names of the column families of its store. The index is the number of the family.
        pieces: The parts of its write-ahead log, in order.
    """

    families: tuple[str, ...]
    pieces: tuple[LogPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A table that was created, altered or dropped.

    Attributes:
        micros: When, in microseconds since 1970 UTC. Everything that was written under the new definition is later.
        incarnation: The table.
        definition: The new definition. None: the table was dropped.
    """

    micros: int
    incarnation: str
    definition: TableDefinition | None

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        definition = None if self.definition is None else self.definition.to_json()
        return {"micros": self.micros, "incarnation": self.incarnation, "definition": definition}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableChange:
        """Reads the result of `to_json`."""
        found = values["definition"]
        definition = None if found is None else check_fields(TableDefinition.from_json(found))
        return check_fields(cls(micros=values["micros"], incarnation=values["incarnation"], definition=definition))


@dataclass(frozen=True, slots=True)
class ArchiveGap:
    """Writes to a table that the archive does not have.

    Attributes:
        micros: They are before this instant, in microseconds since 1970 UTC.
        why: Why the archive lacks them.
    """

    micros: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSegment:
    """One segment. Immutable.

    Attributes:
        segment_id: The id; ids ascend with the time.
        previous: The id of the segment before. Empty: none was known.
        since_micros: The segments before this one have every commit before this instant.
        gap_micros: The instant of the backup from which the archive continues. The segments before lack writes between
            `since_micros` and this instant. 0: they do not.
        micros: The segments up to this one have every commit before this instant, in microseconds since 1970 UTC.
        ended_micros: This segment has no commit at or after this instant.
        times: The clock of the server.
        changes: The tables that were created, altered or dropped, in order.
        consumers: The consumers of tables and tablets whose consumers have changed, by incarnation.
        committed: The commits of transactions that are remembered since.
        buckets: What was written to each bucket, by incarnation and number.
        left_out: Why the segment lacks writes to tables, by incarnation. A later one has them.
        gaps: The writes to tables that no segment has, by incarnation.
    """

    segment_id: str
    previous: str
    since_micros: int
    gap_micros: int
    micros: int
    ended_micros: int
    times: StoredTimes
    changes: tuple[TableChange, ...] = ()
    consumers: Mapping[str, tuple[ConsumerRecord, ...]] = field(default_factory=dict)
    committed: tuple[Mapping[str, Any], ...] = ()
    buckets: Mapping[str, Mapping[int, BucketSegment]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    gaps: Mapping[str, ArchiveGap] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, int]:
        """The bytes of each piece of data that it needs, at least, by name."""
        needed: dict[str, int] = {}
        for piece in self.pieces:
            needed[piece.data] = max(needed.get(piece.data, 0), piece.offset + piece.size)
        return needed

    @property
    def pieces(self) -> list[LogPiece]:
        return [piece for each in self.buckets.values() for bucket in each.values() for piece in bucket.pieces]

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        return {
            "segment_format": _FORMAT,
            "segment_id": self.segment_id,
            "previous": self.previous,
            "since_micros": self.since_micros,
            "gap_micros": self.gap_micros,
            "micros": self.micros,
            "ended_micros": self.ended_micros,
            "times": self.times.to_json(),
            "changes": [change.to_json() for change in self.changes],
            "consumers": {table: [one.to_json() for one in each] for table, each in self.consumers.items()},
            **commits_to_json(self.committed),
            "buckets": {
                table: {str(number): asdict(bucket) for number, bucket in buckets.items()}
                for table, buckets in self.buckets.items()
            },
            "left_out": dict(self.left_out),
            "gaps": {table: asdict(gap) for table, gap in self.gaps.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ArchiveSegment:
        """Reads the result of `to_json`."""
        if values["segment_format"] != _FORMAT:
            raise NewerFormat(f"it has format {values['segment_format']}, and this version of ScanKV reads {_FORMAT}")
        segment = cls(
            segment_id=values["segment_id"],
            previous=values["previous"],
            since_micros=values["since_micros"],
            gap_micros=values["gap_micros"],
            micros=values["micros"],
            ended_micros=values["ended_micros"],
            times=check_fields(StoredTimes.from_json(values["times"])),
            changes=tuple(map(TableChange.from_json, values["changes"])),
            consumers={
                table: tuple(check_fields(ConsumerRecord.from_json(one)) for one in each)
                for table, each in values["consumers"].items()
            },
            committed=commits_from_json(values),
            buckets={
                table: {
                    int(number): BucketSegment(
                        families=tuple(bucket["families"]),
                        pieces=tuple(LogPiece(**piece) for piece in bucket["pieces"]),
                    )
                    for number, bucket in buckets.items()
                }
                for table, buckets in values["buckets"].items()
            },
            left_out=values["left_out"],
            gaps={table: check_fields(ArchiveGap(**gap)) for table, gap in values["gaps"].items()},
        )
        return check_fields(segment)


def read_segment(store: BackupStore, segment_id: str) -> ArchiveSegment:
    """Returns a segment of the archive. Raises DataLoss, or NewerFormat, if it cannot be read."""
    content = store.read_segment(segment_id)
    with translate_unreadable(f"the segment {segment_id} in {store.shown}"):
        segment = ArchiveSegment.from_json(content)
    if segment.segment_id != segment_id:
        raise DataLoss(f"the segment {segment_id} in {store.shown} is that of {segment.segment_id}")
    return segment


def read_segments(store: BackupStore, after_micros: int) -> list[ArchiveSegment]:
    """Returns the segments that have commits at or after an instant, in microseconds since 1970 UTC, the oldest first.

    Raises:
        DataLoss, NewerFormat: One of them cannot be read.
    """
    first = instant_id(after_micros)
    return [read_segment(store, segment_id) for segment_id in store.segments() if segment_id > first]


def reached_micros(store: BackupStore, backup_micros: int) -> int:
    """Returns the instant before which the archive has every commit after a backup, in microseconds since 1970 UTC.

    Args:
        store: The location.
        backup_micros: The instant of the backup.

    Raises:
        DataLoss, NewerFormat: The last segment cannot be read.
    """
    last, found = (store.segments() or [""])[-1], store.read_reached()
    reached = int(found["micros"]) if found.get("segment") == last else 0
    is_later = last > instant_id(backup_micros)
    return max(read_segment(store, last).micros if is_later else 0, reached, backup_micros)
