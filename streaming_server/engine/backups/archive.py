"""The archive: keeps copying the write-ahead logs of all buckets to the location of the backups, a segment at a time.

A backup and the segments after it have every commit up to the last segment, so tables can be restored as of any instant
in between. What a write-ahead log has is everything that a write has done: rows, hidden values, changelog, index
entries, writers.

If the server has several worker processes, each finds out what a segment must contain of its own tables, and the first
one stores the segments of all.

This file says when a segment is stored, and what happens if that fails. `archive_part.py` finds out what a segment must
contain, `segment_writing.py` stores it, and `archived_so_far.py` remembers what is archived.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from scankv.model.errors import BackupFailed, DataLoss, ScanKvError, Unavailable
from streaming_server.engine.backups.archive_part import KEPT_LOG_SECONDS, TAKEN_IN, ArchivePart, StoredCapture
from streaming_server.engine.backups.archived_so_far import ArchivedSoFar
from streaming_server.engine.backups.kept_logs import KeptLogs
from streaming_server.engine.backups.last_captures import LastCaptures
from streaming_server.engine.backups.restore_plan import instant_text
from streaming_server.engine.backups.segment_capture import join_captures
from streaming_server.engine.backups.segment_writing import store_segment
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.tasks.worker_threads import WorkerThreads
from streaming_server.storage.backup.archive_segment import (
    ArchiveGap,
    ArchiveSegment,
    TableChange,
    reached_micros,
    read_segment,
    read_segments,
)
from streaming_server.storage.backup.backup_manifest import newest_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.files.checked_json import find_checked_json, write_checked_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.backups.segment_capture import SegmentCapture
    from streaming_server.engine.backups.segment_writing import StoredSegment
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.tables.data_directory import DataDirectory
    from streaming_server.storage.tables.placement import Placement
    from streaming_server.storage.transactions.decisions import CommittedTransaction

T = TypeVar("T")

_REMOVE_SECONDS: Final = 600.0
_REACHED_SECONDS: Final = 30.0

_log: Final = logging.getLogger(__name__)


class ArchivePeers(Protocol):
    """The other workers of a server, as the archive calls them."""

    @property
    def others(self) -> Sequence[int]:
        """The numbers of the other workers, ascending."""
        ...

    async def capture(self, worker: int, stored: StoredCapture) -> SegmentCapture:
        """As `ArchivePart.capture` at a worker. Raises Unavailable if it does not answer."""
        ...


class Archive:
    """Archives what is written. Bound to the event loop.

    Rule: the archive never keeps the server from serving. If the location cannot be written, or a worker does not
    answer, it is tried again; what a bucket cannot keep for so long is missing from the archive, which then needs
    another backup to continue from.

    Args:
        config: The location, and how often it is written to.
        directory: The data directory.
        placement: The place of this process among the worker processes. The first one stores the segments.
        executor: Runs blocking work on buckets.
        clock: The clock of the server.
        unchanging: Keeps tables of this process from being created, altered or dropped.
        tables: Returns all tables and tablets of this process, which it opens.
        closed: Returns the own tablets that are closed, because their table is being dropped.
        remembered: Returns the remembered commits of transactions.
        versions: The definitions that the files of tables have, oldest first, for each table of this process.
        create_backup: Begins to create a backup.
        newest_backup: Returns the instant of the newest backup, as far as it is known.

    Attributes:
        part: What this process contributes.
        instants: Held while a backup or a segment takes its instant. Otherwise, a segment could be before a backup in
            one worker and after it in another.
        reached_micros: Every commit before this instant is archived, in microseconds since 1970 UTC. 0: unknown.
        failed: How many segments could not be stored since the start.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: DataDirectory,
        placement: Placement,
        executor: StorageExecutor,
        clock: ServerClock,
        unchanging: Callable[[], AbstractAsyncContextManager[None]],
        *,
        tables: Callable[[], Iterable[LiveTable]],
        closed: Callable[[], Iterable[TableDefinition]],
        remembered: Callable[[], list[CommittedTransaction]],
        versions: Iterable[Sequence[TableDefinition]],
        create_backup: Callable[[], Any],
        newest_backup: Callable[[], int],
    ) -> None:
        self._location = config.backup_location
        self._directory = directory
        # While this file exists, everything that is written is archived, or kept to be archived.
        self._marker = directory.archived
        self._placement = placement
        self._clock = clock
        self._create_backup = create_backup
        self._newest_backup = newest_backup
        self._kept = KeptLogs(directory.trash)
        self.is_enabled = bool(config.backup_location and config.archive_every_seconds)
        self.part = ArchivePart(
            executor,
            clock,
            unchanging,
            self._kept,
            tables=tables,
            closed=closed,
            remembered=remembered,
            versions=versions,
            is_recording=self.is_enabled and self._marker.exists(),
        )
        self._peers: ArchivePeers | None = None
        self._last_captures = LastCaptures(directory)
        self._has_started = self._is_closing = False
        self.instants = asyncio.Lock()
        self._began_micros = clock.commit_micros()
        self._backup_micros = 0
        self.reached_micros = 0
        self.failed = 0
        self._store: BackupStore | None = None
        self._segment: asyncio.Task[None] | None = None
        self._archived = ArchivedSoFar()
        self._stored: dict[int, StoredCapture] = {}
        self._reached_at = float("-inf")
        self._is_failing = False
        self._running = Background(partial(repeat, config.archive_every_seconds, self._look))
        self._removing = Background(partial(repeat, _REMOVE_SECONDS, self.part.remove_old_logs))
        self._closing_seconds = max(config.drain_seconds, 1.0)
        # Its own, because a location may not answer, which must not keep others from their threads.
        self._thread = WorkerThreads(1, "archive")

    def set_peers(self, peers: ArchivePeers) -> None:
        """Sets the other workers of the server."""
        self._peers = peers

    def start(self) -> None:
        """Starts to archive, if the server is to. It runs until `close`."""
        self._has_started = True
        self._last_captures.remove()
        if not self.is_enabled:
            # What is written from now on is not archived.
            self._directory.forget_archived()
            return
        self._removing.start()
        if not self._placement.number:
            self._running.start()

    async def close(self) -> None:
        """Archives what is left, as far as that succeeds within `drain_seconds` or a second, and ends.

        The first worker waits for the others before, which leave what the last segment must contain of their tables.
        """
        await self._running.close()
        await self._removing.close()
        if self._placement.number:
            await self._leave_last_capture()
            self._thread.close()
            return
        if self._store is not None:
            await self._last_captures.wait(self._others, self._closing_seconds)
        rest = asyncio.create_task(self._archive_rest())
        await asyncio.wait([rest], timeout=self._closing_seconds)
        if rest.done():
            self._thread.close()
            return
        # The thread continues to wait for the location. The process can end nevertheless.
        tasks = [task for task in (rest, self._segment) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        reached = f"reaches up to {instant_text(self.reached_micros)}" if self.reached_micros else "has nothing new"
        _log.error(
            "the last writes were not archived: %s did not take them within %g s; the archive %s, and the next start "
            "archives the rest",
            self._location,
            self._closing_seconds,
            reached,
        )

    async def _leave_last_capture(self) -> None:
        # A worker that could not start may have transactions that it has not applied.
        if not self._has_started or not self.part.is_recording:
            return
        try:
            async with asyncio.timeout(self._closing_seconds):
                # Complete, since it is unknown what of this worker is stored.
                capture = await self.part.capture(StoredCapture())
            await self._in_thread(self._last_captures.leave, capture)
        except Exception:
            _log.exception("the last writes of this worker are archived by the next start")

    async def _archive_rest(self) -> None:
        if self._segment is not None:
            await asyncio.wait([self._segment])
        self._is_closing = True
        if self._store is not None:
            try:
                await self._archive()
            except Exception:
                _log.exception("the last writes were not archived; the next start does that")

    def follow(self, backup_micros: int) -> None:
        """Records that a backup has taken its instant. Hold `instants` and `unchanging`.

        The archive may continue from the backup, so changes of tables are recorded from then on.
        """
        if self.is_enabled:
            self._backup_micros = backup_micros
            self.part.is_recording = True

    async def _look(self) -> None:
        """Archives what was written since the last time. Runs to its end even if the caller is cancelled.

        Otherwise, the thread of a cancelled caller could store a segment that the next one does not know.
        """
        self._segment = asyncio.create_task(self._archive())
        await asyncio.shield(self._segment)

    async def _archive(self) -> None:
        try:
            if self._store is None and not await self._begin():
                return
            parts = await self._ask_all()
        except ScanKvError as error:
            self._report_failure(error)
            return
        try:
            capture = self._join(parts)
            stored = await self._in_thread(self._put, capture)
        except Exception as error:
            # The segment may have been stored nevertheless, so what is archived is found out again.
            self._store = None
            if not isinstance(error, ScanKvError):
                raise
            self._report_failure(error)
            return
        self._is_failing = False
        await self._finish(parts, capture, stored)

    def _report_failure(self, error: ScanKvError) -> None:
        if not self._is_failing:
            _log.error("nothing can be archived, which is tried again: %s", error.message)
        self._is_failing = True
        self.failed += 1

    @property
    def _others(self) -> Sequence[int]:
        return () if self._peers is None else self._peers.others

    async def _ask_all(self) -> dict[int, SegmentCapture]:
        """Returns what each worker contributes to the next segment, by number."""
        numbers = [self._placement.number, *self._others]
        async with self.instants:
            parts = await all_ended(map(self._ask, numbers))
        return dict(zip(numbers, parts, strict=True))

    async def _ask(self, number: int) -> SegmentCapture:
        stored = self._stored.get(number, StoredCapture())
        if self._peers is None or number == self._placement.number:
            return await self.part.capture(stored)
        if self._is_closing:
            return await self._in_thread(self._last_captures.read, number)
        return await self._peers.capture(number, stored)

    def _join(self, parts: Mapping[int, SegmentCapture]) -> SegmentCapture:
        """Returns what the next segment must contain.

        Raises:
            Unavailable: The clock of a worker is earlier than the end of the archive.
        """
        archived = self._archived
        capture = join_captures(list(parts.values()), archived.commits)
        last = max(archived.since_micros, archived.gap_micros, self._backup_micros)
        if capture.micros <= last:
            raise Unavailable(
                f"the clock is at {instant_text(capture.micros)}, and the archive at {instant_text(last)}"
            )
        backup = self._newest_backup()
        capture.changes = archived.without_known(capture.changes)
        for number, part in parts.items():
            if part.definitions is not None:
                self._add_unrecorded_changes(number, part.definitions, part.bootstrapped, capture)
        capture.gaps |= {table: gap for table, gap in archived.gaps.items() if gap.micros >= backup}
        return capture

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs a blocking function, which continues if the caller is cancelled."""
        work = self._thread.submit(function, *arguments)
        if not work.is_done:
            await work.wait()
        if work.error is not None:
            raise work.error
        return work.result

    def _put(self, capture: SegmentCapture) -> StoredSegment:
        """Stores a segment, if anything was written. Blocks."""
        assert self._store is not None
        stored = store_segment(self._store, self._kept, self._archived, capture)
        if stored.segment is None:
            self._record_reached(self._store, capture.micros)
        else:
            write_checked_json(self._marker, {"segment": stored.segment.segment_id})
        return stored

    def _record_reached(self, store: BackupStore, micros: int) -> None:
        if self._clock.monotonic() - self._reached_at >= _REACHED_SECONDS:
            store.write_reached({"micros": micros, "segment": self._archived.previous})
            self._reached_at = self._clock.monotonic()

    async def _finish(
        self, parts: Mapping[int, SegmentCapture], capture: SegmentCapture, stored: StoredSegment
    ) -> None:
        """Takes over what was stored."""
        archived = self._archived
        archived.positions = stored.positions
        archived.consumers |= stored.consumers
        archived.add_commits([each for part in parts.values() for each in part.committed], capture.committed)
        self.reached_micros = archived.since_micros = capture.micros
        for number, part in parts.items():
            logs = {place: stored.positions[place].log for place in part.files if place in stored.positions}
            self._stored[number] = StoredCapture(part.capture_id, logs)
        reported = {change.incarnation for part in parts.values() for change in part.changes}
        for change in capture.changes:
            if change.definition is not None:
                archived.definitions[change.incarnation] = change.definition
                continue
            archived.forget(change.incarnation)
            if change.incarnation not in reported:
                await self._in_thread(self._kept.remove, change.incarnation)
        if stored.segment is None:
            return
        archived.previous, archived.gap_micros = stored.segment.segment_id, 0
        self._reached_at = float("-inf")
        lost = capture.gaps.items() - archived.gaps.items()
        for incarnation, why in capture.left_out.items() - archived.left_out.items():
            _log.error("the archive lacks writes to %s: %s", archived.name_of(incarnation), why)
        is_intended = all(gap.why == TAKEN_IN for _, gap in lost)
        for incarnation, gap in lost:
            level = logging.INFO if gap.why == TAKEN_IN else logging.ERROR
            _log.log(level, "the archive lacks writes to %s: %s", archived.name_of(incarnation), gap.why)
        archived.left_out, archived.gaps = capture.left_out, capture.gaps
        if lost:
            self._begin_again("a table was bootstrapped" if is_intended else "it has lost writes")

    def _read_known(self, store: BackupStore, backup_micros: int) -> list[ArchiveSegment] | None:
        """Returns the segments after a backup, if the buckets still have everything that was written since. Blocks."""
        ids = store.segments()
        stored = find_checked_json(self._marker)
        if not ids or stored is None:
            return None
        last = read_segment(store, ids[-1])
        # A process may have been killed before it recorded its last segment.
        is_ours = stored["segment"] in (last.segment_id, last.previous)
        is_kept = self._began_micros - reached_micros(store, 0) < KEPT_LOG_SECONDS * 1_000_000
        return read_segments(store, backup_micros) if is_ours and is_kept and not last.gaps else None

    def _begin_again(self, why: str) -> None:
        """Creates a backup, from which the archive continues without a gap."""
        _log.warning("the archive continues from a new backup: %s", why)
        with suppress(BackupFailed):
            self._create_backup()

    async def _begin(self) -> bool:
        """Finds out what is archived. Returns whether a backup exists that the archive can continue from."""
        store = BackupStore(self._location)
        newest = await self._in_thread(newest_manifest, store)
        if newest is None:
            return False
        known, why = None, "it may lack writes after the last backup"
        try:
            known = await self._in_thread(self._read_known, store, newest.micros)
        except DataLoss as error:
            why = error.message
        if known is None and newest.micros < self._began_micros:
            self._begin_again(why)
            return False
        ids = await self._in_thread(store.segments)
        archived = self._archived
        archived.previous = ids[-1] if ids else ""
        try:
            archived.since_micros = await self._in_thread(reached_micros, store, 0)
        except DataLoss:
            archived.since_micros = 0
        archived.gap_micros = newest.micros if known is None else 0
        self.reached_micros = max(archived.since_micros, archived.gap_micros)
        archived.definitions = {table.definition.incarnation: table.definition for table in newest.tables}
        for segment in known or []:
            archived.add_stored(segment)
        self._store = store
        return True

    def _add_unrecorded_changes(
        self,
        number: int,
        found: Mapping[str, TableDefinition],
        bootstrapped: frozenset[str],
        capture: SegmentCapture,
    ) -> None:
        """Adds how a worker has changed its tables before it was killed, so that this was not archived.

        Args:
            number: The number of the worker.
            found: The tables of the worker now, by incarnation.
            bootstrapped: Those that have rows in no write-ahead log.
            capture: What the segment will contain.
        """
        owner_of, known = self._placement.owner_of, self._archived.definitions
        archived = {table: each for table, each in known.items() if owner_of(each.name) == number}
        pending = {change.incarnation for change in capture.changes}
        changed = [table for table in sorted({*archived, *found} - pending) if found.get(table) != archived.get(table)]
        # The writes before a drop are gone, so the table counts as dropped only when that was noticed.
        micros = {table: self.reached_micros if table in found else capture.micros - 1 for table in changed}
        capture.changes[:0] = [
            TableChange(micros=micros[table], incarnation=table, definition=found.get(table)) for table in changed
        ]
        for table in changed:
            if table not in found:
                why = "the table was dropped before they were archived"
                self._archived.gaps[table] = ArchiveGap(micros[table], why)
        for table in bootstrapped - archived.keys():
            capture.gaps.setdefault(table, ArchiveGap(capture.micros, TAKEN_IN))
