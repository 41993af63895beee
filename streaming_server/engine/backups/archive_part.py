"""What one process of a server contributes to the segments of the archive: what was written to its own tables.

The process remembers what it has contributed only once it hears that this is stored. What it does not hear of is
contributed again, which changes nothing: files are continued where they are archived, and a change that is repeated is
the same change.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ScanKvError
from streaming_server.engine.backups.segment_capture import CapturedLog, SegmentCapture
from streaming_server.storage.backup.archive_segment import ArchiveGap, TableChange
from streaming_server.storage.bootstrap.taken_in import has_taken_in
from streaming_server.storage.rocks.store_files import families_of
from streaming_server.storage.rocks.write_ahead_log import (
    LogFile,
    find_log_files,
    remove_kept_logs,
    remove_old_logs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.backups.archived_so_far import Place
    from streaming_server.engine.backups.kept_logs import KeptLogs
    from streaming_server.engine.bucket.live_bucket import LiveBucket, WriteMark
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.transactions.decisions import CommittedTransaction

KEPT_LOG_SECONDS: Final = 86_400
"""For how long a bucket keeps what cannot be archived. After that, the archive continues with the next backup."""

BEING_DROPPED: Final = "it is being dropped"
TAKEN_IN: Final = "it was bootstrapped, and the next backup is the first that has its rows"


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """What a process has to know of its last capture that is stored. Immutable.

    Attributes:
        capture_id: Its id. Empty: none is known to be stored, so the process contributes everything that it has.
        logs: For buckets in it, the file of the write-ahead log up to which the bucket is archived.
    """

    capture_id: str = ""
    logs: Mapping[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Contribution:
    """The last capture, with what is remembered once it is stored."""

    capture: SegmentCapture
    marks: dict[Place, WriteMark]
    remembered: dict[str, CommittedTransaction]


class ArchivePart:
    """The part of the archive that is about the tables of this process. Bound to the event loop.

    Args:
        executor: Runs blocking work on buckets.
        clock: The clock of the server.
        unchanging: Keeps tables of this process from being created, altered or dropped.
        kept: The logs of dropped tables.
        tables: Returns all tables and tablets of the process, which it opens.
        closed: Returns the own tablets that are closed, because their table is being dropped.
        remembered: Returns the remembered commits of transactions.
        versions: The definitions that the files of tables have, oldest first, for each table of the process.
        is_recording: Whether changes of tables are recorded. Otherwise, they are from the first backup on.
    """

    def __init__(
        self,
        executor: StorageExecutor,
        clock: ServerClock,
        unchanging: Callable[[], AbstractAsyncContextManager[None]],
        kept: KeptLogs,
        *,
        tables: Callable[[], Iterable[LiveTable]],
        closed: Callable[[], Iterable[TableDefinition]],
        remembered: Callable[[], list[CommittedTransaction]],
        versions: Iterable[Sequence[TableDefinition]],
        is_recording: bool,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._unchanging = unchanging
        self._kept = kept
        self._tables = tables
        self._closed = closed
        self._remembered = remembered
        self.is_recording = is_recording
        self._capturing = asyncio.Lock()
        # An earlier process may have been killed before these were archived.
        found = [each for table in versions for each in table] if is_recording else []
        self._changes = [
            TableChange(micros=each.changed_micros, incarnation=each.incarnation, definition=each) for each in found
        ]
        self._gaps: dict[str, ArchiveGap] = {}
        self._last: _Contribution | None = None
        # Of the captures that are stored.
        self._stored = ""
        self._marks: dict[Place, WriteMark] = {}
        self._committed: dict[str, CommittedTransaction] = {}
        self._logs: dict[Place, int] = {}
        self._families: dict[Place, tuple[str, ...]] = {}

    def record(self, micros: int, incarnation: str, definition: TableDefinition | None) -> None:
        """Records that a table was created, altered or dropped: see `TableChange`. Not under `unchanging`."""
        if self.is_recording:
            self._changes.append(TableChange(micros=micros, incarnation=incarnation, definition=definition))

    def unarchived_versions(self, incarnation: str) -> list[TableDefinition]:
        """Returns the recorded definitions of a table that are not known to be archived, oldest first."""
        found = (each.definition for each in self._changes if each.incarnation == incarnation)
        return [each for each in found if each is not None]

    def record_files(self, micros: int, incarnation: str) -> None:
        """Records that a new table has rows that no write-ahead log has, so the archive lacks them. See `record`."""
        if self.is_recording:
            self._gaps[incarnation] = ArchiveGap(micros, TAKEN_IN)

    def keep_logs(self, table: Path, incarnation: str) -> None:
        """Keeps the write-ahead logs of a table that is about to be removed, which is closed. Blocks."""
        if self.is_recording:
            self._kept.keep(table, incarnation)

    async def remove_old_logs(self) -> None:
        """Removes what buckets have kept for too long. What was not archived of it is missing from the archive."""
        before = self._clock.commit_micros() - KEPT_LOG_SECONDS * 1_000_000
        for table in list(self._tables()):
            await self._executor.run(remove_old_logs, [live.path for live in table.buckets], before)

    async def capture(self, stored: StoredCapture) -> SegmentCapture:
        """Finds out what the next segment must contain of the tables of this process.

        Args:
            stored: The last capture of this process that is stored.
        """
        async with self._capturing:
            await self._hear(stored)
            # Before tables are kept from being changed: a transaction may wait for another process.
            await self._wait_for_barriers()
            async with self._unchanging():
                self.is_recording = True
                self._last = await self._capture()
            return self._last.capture

    async def _hear(self, stored: StoredCapture) -> None:
        """Remembers what is stored."""
        last = self._last
        if last is not None and stored.capture_id == last.capture.capture_id:
            self._stored, self._last = stored.capture_id, None
            self._marks |= last.marks
            self._committed = last.remembered
            changes, gaps = last.capture.changes, last.capture.gaps
            del self._changes[: len(changes)]
            self._gaps = {table: gap for table, gap in self._gaps.items() if table not in gaps}
            for change in changes:
                if change.definition is None:
                    await self._executor.run(self._kept.remove, change.incarnation)
        elif stored.capture_id != self._stored:
            # Of an earlier process, or unknown to the process that stores segments, which was started again.
            self._stored = ""
            self._marks.clear()
            self._committed.clear()
        self._logs |= stored.logs

    def _forget_others(self, incarnations: set[str]) -> None:
        """Forgets the buckets of all other tables, which were dropped."""
        for places in (self._marks, self._logs, self._families):
            for place in [each for each in places if each[0] not in incarnations]:
                del places[place]

    async def _wait_for_barriers(self) -> None:
        for table in self._tables():
            for live in table.buckets:
                with suppress(ScanKvError):
                    await live.mutex.wait_for_barrier()

    async def _capture(self) -> _Contribution:
        tables = list(self._tables())
        self._forget_others({table.definition.table_incarnation for table in tables})
        capture = SegmentCapture(
            capture_id=uuid.uuid4().hex,
            micros=self._clock.commit_micros(),
            times=self._clock.times(),
            changes=list(self._changes),
            tables={table.definition.incarnation: table.state.path for table in tables},
            gaps=dict(self._gaps),
        )
        capture.left_out.update({each.table_incarnation: BEING_DROPPED for each in self._closed()})
        marks: dict[Place, WriteMark] = {}
        for table in tables:
            incarnation = table.definition.table_incarnation
            for live in table.buckets:
                try:
                    await self._capture_bucket(live, (incarnation, live.number), capture, marks)
                except (ScanKvError, OSError) as error:
                    why = error.message if isinstance(error, ScanKvError) else str(error)
                    capture.left_out.setdefault(incarnation, why)
        for change in capture.changes:
            for place, path, families in self._kept.buckets(change.incarnation):
                files = await self._executor.run(find_log_files, path)
                capture.files[place] = CapturedLog(path, families, _sizes(files))
        if not self._stored:
            defined = [table.definition for table in tables if table.definition.tablet is None]
            capture.definitions = {each.incarnation: each for each in defined}
            capture.bootstrapped = await self._executor.run(_find_bootstrapped, capture.tables)
        # Not before: a transaction that was being applied is remembered once its buckets have it.
        remembered = {each.token: each for each in self._remembered()}
        capture.committed = [each for token, each in remembered.items() if self._committed.get(token) != each]
        capture.ended_micros = max(capture.ended_micros, self._clock.commit_micros() + 1)
        return _Contribution(capture, marks, remembered)

    async def _capture_bucket(
        self, live: LiveBucket, place: Place, capture: SegmentCapture, marks: dict[Place, WriteMark]
    ) -> None:
        """Records the files of a bucket that may have new writes.

        Passing the mutex after the instant was taken ensures that every commit before the instant is in them: a writer
        and a transaction choose their commit time while they hold the mutex, or a barrier before it.
        """
        is_idle = not live.mutex.locked() and live.mutex.barrier is None
        if is_idle and self._marks.get(place) == live.write_mark:
            return
        async with live.mutex:
            bucket = live.open_bucket
            mark = live.write_mark
            if place in self._logs:
                await self._executor.run(remove_kept_logs, live.path, self._logs[place])
            files = await self._executor.run(find_log_files, live.path)
            if files and place not in self._families:
                self._families[place] = tuple(await self._executor.run(families_of, live.path))
            if bucket is not None:
                # The time of a transaction comes from the clock of another process, too.
                capture.ended_micros = max(capture.ended_micros, bucket.state.commit_micros + 1)
        if bucket is not None and bucket.is_writable:
            # Only what is durable is archived: after a power failure, a bucket continues without the rest.
            await live.wait_written()
        capture.files[place] = CapturedLog(live.path, self._families.get(place, ()), _sizes(files))
        marks[place] = mark


def _sizes(files: Iterable[LogFile]) -> tuple[tuple[int, int], ...]:
    return tuple((file.number, file.size) for file in files)


def _find_bootstrapped(tables: Mapping[str, Path]) -> frozenset[str]:
    return frozenset(incarnation for incarnation, path in tables.items() if has_taken_in(path))
