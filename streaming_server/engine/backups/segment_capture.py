"""What must the next segment of the archive contain? The instant, and the files that have all commits before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError
from streaming_server.storage.rocks.store import families_of
from streaming_server.storage.rocks.write_ahead_log import LogFile, find_log_files, remove_kept_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from streaming_server.clock import ServerClock, StoredTimes
    from streaming_server.engine.backups.archived_so_far import ArchivedSoFar, Place
    from streaming_server.engine.backups.kept_logs import KeptLogs
    from streaming_server.engine.bucket.live_bucket import LiveBucket, WriteMark
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.backup.archive_segment import ArchiveGap, TableChange
    from streaming_server.storage.transactions.decisions import CommittedTransaction


@dataclass(slots=True)
class SegmentCapture:
    """What a segment will contain, at the moment when that was found out.

    Attributes:
        micros: See `ArchiveSegment`.
        times: The clock of the server.
        changes: The tables that were created, altered or dropped.
        committed: All remembered commits of transactions.
        tables: The directories of the tables whose consumers are read, by incarnation.
        files: The files of the write-ahead log of each bucket that may have new writes, with its directory.
        marks: What changes with each write to these buckets.
        left_out: Why writes to tables are not in the segment, but will be in a later one, by incarnation.
        gaps: The writes to tables that the archive will never have, by incarnation.
        ended_micros: See `ArchiveSegment`.
    """

    micros: int
    times: StoredTimes
    changes: list[TableChange]
    committed: list[CommittedTransaction]
    tables: dict[str, Path]
    files: dict[Place, tuple[Path, list[LogFile]]] = field(default_factory=dict)
    marks: dict[Place, WriteMark] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, ArchiveGap] = field(default_factory=dict)
    ended_micros: int = 0


class SegmentSource:
    """The tables of the server, as the archive sees them. Bound to the event loop.

    Args:
        executor: Runs blocking work on buckets.
        clock: The clock of the server.
        kept: The logs of dropped tables.
        tables: Returns all tables, which it opens.
        remembered: Returns the remembered commits of transactions.
        newest_backup: Returns the instant of the newest backup, as far as it is known.
    """

    def __init__(
        self,
        executor: StorageExecutor,
        clock: ServerClock,
        kept: KeptLogs,
        *,
        tables: Callable[[], Iterable[LiveTable]],
        remembered: Callable[[], list[CommittedTransaction]],
        newest_backup: Callable[[], int],
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._kept = kept
        self.tables = tables
        self._remembered = remembered
        self._newest_backup = newest_backup

    async def capture(self, archived: ArchivedSoFar, changes: Iterable[TableChange]) -> SegmentCapture:
        """Finds out what a segment must contain. The caller makes sure that no table is created, altered or dropped."""
        tables = list(self.tables())
        capture = SegmentCapture(
            micros=self._clock.commit_micros(),
            times=self._clock.times(),
            changes=list(changes),
            committed=[],
            tables={table.definition.incarnation: table.state.path for table in tables},
        )
        for table in tables:
            incarnation = table.definition.incarnation
            for live in table.buckets:
                try:
                    await self._capture_bucket(live, (incarnation, live.number), archived, capture)
                except (ScanKvError, OSError) as error:
                    why = error.message if isinstance(error, ScanKvError) else str(error)
                    capture.left_out.setdefault(incarnation, why)
        for change in capture.changes:
            for place, path, families in self._kept.buckets(change.incarnation):
                capture.files[place] = path, await self._executor.run(find_log_files, path)
                archived.families.setdefault(place, families)
        # Not before: a transaction that was being applied is remembered once its buckets have it.
        capture.committed = self._remembered()
        backup = self._newest_backup()
        capture.gaps = {table: gap for table, gap in archived.gaps.items() if gap.micros >= backup}
        capture.ended_micros = self._clock.commit_micros() + 1
        return capture

    async def _capture_bucket(
        self, live: LiveBucket, place: Place, archived: ArchivedSoFar, capture: SegmentCapture
    ) -> None:
        """Records the files of a bucket that may have new writes.

        Passing the mutex after the instant was taken ensures that every commit before the instant is in them: a writer
        and a transaction choose their commit time while they hold the mutex, or a barrier before it.
        """
        is_idle = not live.mutex.locked() and live.mutex.barrier is None
        if is_idle and archived.marks.get(place) == live.write_mark:
            return
        async with live.mutex:
            bucket = live.open_bucket
            mark = live.write_mark
            position = archived.positions.get(place)
            if position is not None:
                await self._executor.run(remove_kept_logs, live.path, position.log)
            files = await self._executor.run(find_log_files, live.path)
            if files and place not in archived.families:
                archived.families[place] = tuple(await self._executor.run(families_of, live.path))
        if bucket is not None and bucket.is_writable:
            # Only what is durable is archived: after a power failure, a bucket continues without the rest.
            await live.wait_written()
        capture.files[place] = live.path, files
        capture.marks[place] = mark
