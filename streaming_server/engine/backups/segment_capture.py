"""What must the next segment of the archive contain? The instant, and the files that have all commits before it.

Each process of a server finds that out for its own tables, and the first one joins what all of them have found.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scankv.model.tables.schema import TableDefinition
from streaming_server.clock import StoredTimes
from streaming_server.storage.backup.archive_segment import ArchiveGap, TableChange
from streaming_server.storage.transactions.decisions import CommittedTransaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.engine.backups.archived_so_far import Place


@dataclass(frozen=True, slots=True)
class CapturedLog:
    """The write-ahead log of a bucket that may have new writes.

    Attributes:
        path: The directory of the files.
        families: The column families of the bucket.
        files: The number and the bytes of each file, ascending.
    """

    path: Path
    families: tuple[str, ...]
    files: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class SegmentCapture:
    """What a segment will contain, at the moment when that was found out.

    Attributes:
        capture_id: Identifies what one process has found out.
        micros: See `ArchiveSegment`.
        times: The clock of the process.
        changes: The tables that were created, altered or dropped.
        tables: The directories of the tables and tablets whose consumers are read, by incarnation.
        definitions: All tables, without their tablets, by incarnation. None: the tables are as the last stored capture
            and `changes` say.
        bootstrapped: The incarnations of those tables in `definitions` that have rows in no write-ahead log.
        files: The write-ahead log of each bucket that may have new writes.
        committed: The commits of transactions that are remembered since, shares included.
        left_out: Why writes to tables are not in the segment, but will be in a later one, by incarnation.
        gaps: The writes to tables that the archive will never have, by incarnation.
        ended_micros: See `ArchiveSegment`.
    """

    capture_id: str
    micros: int
    times: StoredTimes
    changes: list[TableChange] = field(default_factory=list)
    tables: dict[str, Path] = field(default_factory=dict)
    definitions: dict[str, TableDefinition] | None = None
    bootstrapped: frozenset[str] = frozenset()
    files: dict[Place, CapturedLog] = field(default_factory=dict)
    committed: list[CommittedTransaction] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, ArchiveGap] = field(default_factory=dict)
    ended_micros: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns what one process sends to another."""
        return {
            "capture_id": self.capture_id,
            "micros": self.micros,
            "times": self.times.to_json(),
            "changes": [change.to_json() for change in self.changes],
            "tables": {table: str(path) for table, path in self.tables.items()},
            "definitions": None if self.definitions is None else [each.to_json() for each in self.definitions.values()],
            "bootstrapped": sorted(self.bootstrapped),
            "files": [[*place, str(log.path), log.families, log.files] for place, log in self.files.items()],
            "committed": [each.to_json() for each in self.committed],
            "left_out": self.left_out,
            "gaps": {table: asdict(gap) for table, gap in self.gaps.items()},
            "ended_micros": self.ended_micros,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SegmentCapture:
        """Reads the result of `to_json`."""
        found = values["definitions"]
        definitions = None if found is None else [TableDefinition.from_json(each) for each in found]
        return cls(
            capture_id=values["capture_id"],
            micros=values["micros"],
            times=StoredTimes.from_json(values["times"]),
            changes=[TableChange.from_json(each) for each in values["changes"]],
            tables={table: Path(path) for table, path in values["tables"].items()},
            definitions=None if definitions is None else {each.incarnation: each for each in definitions},
            bootstrapped=frozenset(values["bootstrapped"]),
            files={
                (table, number): CapturedLog(Path(path), tuple(families), tuple((log, size) for log, size in files))
                for table, number, path, families, files in values["files"]
            },
            committed=[CommittedTransaction.from_json(each) for each in values["committed"]],
            left_out=values["left_out"],
            gaps={table: ArchiveGap(**gap) for table, gap in values["gaps"].items()},
            ended_micros=values["ended_micros"],
        )


def join_captures(parts: Sequence[SegmentCapture], before: Sequence[CommittedTransaction]) -> SegmentCapture:
    """Returns what the segment of all processes will contain.

    Its instant is the earliest one: before it, every process has captured every commit. So a transaction of several
    processes is before the instant in all of them, or it is not before the instant.

    A bucket may be in two parts if its tablet was dropped in the meantime: the owner of the tablet has captured the log
    as it was before, and the owner of the table as it was at the drop.

    Args:
        parts: What each process has found out.
        before: What the captures before have of commits that may get further offsets: see `ArchivedSoFar.commits`.
    """
    joined = SegmentCapture(
        capture_id="",
        micros=min(part.micros for part in parts),
        times=max((part.times for part in parts), key=lambda times: times.service),
        committed=_join_commits([each for part in parts for each in part.committed], before),
        ended_micros=max(part.ended_micros for part in parts),
    )
    for part in parts:
        joined.changes += part.changes
        joined.tables |= part.tables
        for place, log in part.files.items():
            joined.files[place] = max(joined.files.get(place, log), log, key=lambda each: each.files[-1:])
        joined.left_out |= part.left_out
        joined.gaps |= part.gaps
    return joined


def _join_commits(
    found: Sequence[CommittedTransaction], before: Sequence[CommittedTransaction]
) -> list[CommittedTransaction]:
    """Returns the commits as their coordinators remember them, with all offsets that are known."""
    offsets: dict[str, dict[str, Mapping[int, int]]] = {}
    for each in (*before, *found):
        offsets.setdefault(each.token, {}).update(each.log_offsets)
    new = {each.token for each in found}
    joined = {
        each.token: replace(each, log_offsets=offsets[each.token])
        for each in (*before, *found)
        if each.coordinator is None and each.token in new
    }
    return sorted(joined.values(), key=lambda each: each.served_micros)
