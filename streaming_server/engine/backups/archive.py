"""The archive: keeps copying the write-ahead logs of all buckets to the location of the backups, a segment at a time.

A backup and the segments after it have every commit up to the last segment, so tables can be restored as of any instant
in between. What a write-ahead log has is everything that a write has done: rows, hidden values, changelog, index
entries, writers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import xxhash

from scankv.model.errors import BackupFailed, DataLoss, ScanKvError
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.storage.backup.archive_segment import (
    ArchiveGap,
    ArchiveSegment,
    BucketSegment,
    LogPiece,
    TableChange,
    reached_micros,
    read_segment,
    read_segments,
)
from streaming_server.storage.backup.backup_manifest import newest_manifest
from streaming_server.storage.backup.backup_store import BackupStore, archived_name, instant_id
from streaming_server.storage.files.checked_json import find_checked_json, write_checked_json
from streaming_server.storage.rocks.store import families_of
from streaming_server.storage.rocks.write_ahead_log import LogFile, find_log_file, find_log_files, remove_kept_logs
from streaming_server.storage.tables.consumers import ConsumerDirectory, ConsumerRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock, StoredTimes
    from streaming_server.config import ServerConfig
    from streaming_server.engine.bucket.live_bucket import LiveBucket, WriteMark
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.tables.data_directory import DataDirectory
    from streaming_server.storage.transactions.decisions import CommittedTransaction

KEPT_LOG_SECONDS: Final = 86_400
"""For how long a bucket keeps what cannot be archived. After that, the archive continues with the next backup."""

_PIECE_BYTES: Final = 4 << 20
_DATA_BYTES: Final = 16 << 20
_REACHED_SECONDS: Final = 30.0
_FAMILIES: Final = "families"
_MARKER: Final = "archived.json"
"""In the data directory: the last segment. While it exists, everything that is written is archived or kept for that."""


_log: Final = logging.getLogger(__name__)

_Place = tuple[str, int]
"""A bucket: the incarnation of its table, and its number."""


@dataclass(frozen=True, slots=True)
class _ArchivedUpTo:
    """Up to where the write-ahead log of a bucket is archived: the number of a file, and bytes of it."""

    log: int
    end: int


@dataclass(slots=True)
class _Capture:
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
    files: dict[_Place, tuple[Path, list[LogFile]]] = field(default_factory=dict)
    marks: dict[_Place, WriteMark] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, ArchiveGap] = field(default_factory=dict)
    ended_micros: int = 0


@dataclass(frozen=True, slots=True)
class _Stored:
    """What was stored.

    Attributes:
        segment: The segment. None: nothing was written.
        positions: Up to where each bucket is archived.
        consumers: When the consumers of tables were changed last.
    """

    segment: ArchiveSegment | None
    positions: dict[_Place, _ArchivedUpTo]
    consumers: dict[str, int]


class _Gap(Exception):
    """A bucket no longer has writes that were not archived."""


class Archive:
    """Archives what is written. Bound to the event loop.

    Rule: the archive never keeps the server from serving. If the location cannot be written, it is tried again; what a
    bucket cannot keep for so long is missing from the archive, which then needs another backup to continue from.

    Args:
        config: The location, and how often it is written to.
        directory: The data directory.
        executor: Runs blocking work on buckets.
        clock: The clock of the server.
        ddl: Held while tables are created, altered or dropped.
        tables: Returns all tables, which it opens.
        remembered: Returns the remembered commits of transactions.
        create_backup: Begins to create a backup.
        newest_backup: Returns the instant of the newest backup, as far as it is known.

    Attributes:
        reached_micros: Every commit before this instant is archived, in microseconds since 1970 UTC. 0: unknown.
        failed: How many segments could not be stored since the start.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: DataDirectory,
        executor: StorageExecutor,
        clock: ServerClock,
        ddl: asyncio.Lock,
        *,
        tables: Callable[[], Iterable[LiveTable]],
        remembered: Callable[[], list[CommittedTransaction]],
        create_backup: Callable[[], Any],
        newest_backup: Callable[[], int],
    ) -> None:
        self._location = config.backup_location
        self._marker = directory.path / _MARKER
        self._trash = directory.trash
        self._executor = executor
        self._clock = clock
        self._ddl = ddl
        self._tables = tables
        self._remembered = remembered
        self._create_backup = create_backup
        self._newest_backup = newest_backup
        self._began_micros = clock.commit_micros()
        self.reached_micros = 0
        self.failed = 0
        self._since_micros = self._gap_micros = 0
        self._store: BackupStore | None = None
        self._segment: asyncio.Task[None] | None = None
        self._previous = ""
        self._positions: dict[_Place, _ArchivedUpTo] = {}
        self._marks: dict[_Place, WriteMark] = {}
        self._definitions: dict[str, TableDefinition] = {}
        self._consumers: dict[str, int] = {}
        self._committed: set[str] = set()
        self._changes: list[TableChange] = []
        self._reached_at = float("-inf")
        self._left_out: dict[str, str] = {}
        self._gaps: dict[str, ArchiveGap] = {}
        self._families: dict[_Place, tuple[str, ...]] = {}
        self._is_failing = False
        self.is_enabled = bool(config.backup_location and config.archive_every_seconds)
        self._running = Background(partial(repeat, config.archive_every_seconds, self._look))

    def start(self) -> None:
        """Starts to archive, if the server is to. It runs until `close`."""
        if self.is_enabled:
            self._running.start()
        else:
            # What is written from now on is not archived.
            self._marker.unlink(missing_ok=True)

    async def close(self) -> None:
        """Archives what is left, as far as that succeeds, and ends."""
        await self._running.close()
        if self._segment is not None:
            await asyncio.wait([self._segment])
        if self._store is not None:
            try:
                await self._archive()
            except Exception:
                _log.exception("the last writes were not archived; the next start does that")

    def record(self, micros: int, incarnation: str, definition: TableDefinition | None) -> None:
        """Records that a table was created, altered or dropped: see `TableChange`. Hold `ddl`."""
        if self.is_enabled:
            self._changes.append(TableChange(micros=micros, incarnation=incarnation, definition=definition))

    def keep_logs(self, table: Path, incarnation: str) -> None:
        """Keeps the write-ahead logs of a table that is about to be removed, which is closed. Blocks."""
        if not self.is_enabled:
            return
        for bucket in sorted((table / "buckets").glob("[0-9]*[0-9]")):
            if bucket.is_dir():
                target = self._kept(incarnation) / bucket.name
                target.mkdir(parents=True, exist_ok=True)
                for file in find_log_files(bucket):
                    with suppress(FileNotFoundError):
                        os.link(file.path, target / file.path.name)
                (target / _FAMILIES).write_text("\n".join(families_of(bucket)))

    def _kept(self, incarnation: str) -> Path:
        return self._trash / f"archive-{incarnation}"

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
            async with self._ddl:
                capture = await self._capture()
            stored = await asyncio.to_thread(self._put, capture)
        except ScanKvError as error:
            if not self._is_failing:
                _log.error("nothing can be archived, which is tried again: %s", error.message)
            self._is_failing = True
            self.failed += 1
            # The segment may have been stored nevertheless, so what is archived is found out again.
            self._store = None
            return
        except Exception:
            self._store = None
            raise
        self._is_failing = False
        await self._finish(capture, stored)

    async def _finish(self, capture: _Capture, stored: _Stored) -> None:
        """Takes over what was stored."""
        self._positions = stored.positions
        self._marks |= capture.marks
        self._consumers |= stored.consumers
        self._committed = {each.token for each in capture.committed}
        self.reached_micros = self._since_micros = capture.micros
        del self._changes[: len(capture.changes)]
        for change in capture.changes:
            if change.definition is not None:
                self._definitions[change.incarnation] = change.definition
                continue
            self._definitions.pop(change.incarnation, None)
            self._consumers.pop(change.incarnation, None)
            for places in (self._positions, self._marks, self._families):
                for place in [each for each in places if each[0] == change.incarnation]:
                    del places[place]
            await asyncio.to_thread(shutil.rmtree, self._kept(change.incarnation), ignore_errors=True)
        if stored.segment is None:
            return
        self._previous, self._reached_at, self._gap_micros = stored.segment.segment_id, float("-inf"), 0
        lost = capture.gaps.items() - self._gaps.items()
        for incarnation, why in capture.left_out.items() - self._left_out.items():
            _log.error("the archive lacks writes to %s: %s", self._name_of(incarnation), why)
        for incarnation, gap in lost:
            _log.error("the archive has lost writes to %s: %s", self._name_of(incarnation), gap.why)
        self._left_out, self._gaps = capture.left_out, capture.gaps
        if lost:
            self._begin_again("it has lost writes")

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

    def _name_of(self, incarnation: str) -> str:
        definition = self._definitions.get(incarnation)
        return incarnation if definition is None else definition.name

    async def _begin(self) -> bool:
        """Finds out what is archived. Returns whether a backup exists that the archive can continue from."""
        store = BackupStore(self._location)
        newest = await asyncio.to_thread(newest_manifest, store)
        if newest is None:
            for change in self._changes:
                await asyncio.to_thread(shutil.rmtree, self._kept(change.incarnation), ignore_errors=True)
            self._changes.clear()
            return False
        known, why = None, "it may lack writes after the last backup"
        try:
            known = await asyncio.to_thread(self._read_known, store, newest.micros)
        except DataLoss as error:
            why = error.message
        if known is None and newest.micros < self._began_micros:
            self._begin_again(why)
            return False
        ids = await asyncio.to_thread(store.segments)
        self._previous = ids[-1] if ids else ""
        try:
            self._since_micros = await asyncio.to_thread(reached_micros, store, 0)
        except DataLoss:
            self._since_micros = 0
        self._gap_micros = newest.micros if known is None else 0
        self.reached_micros = since = max(self._since_micros, self._gap_micros)
        segments = known or []
        self._definitions = {table.definition.incarnation: table.definition for table in newest.tables}
        for segment in segments:
            for incarnation, buckets in segment.buckets.items():
                for number, bucket in buckets.items():
                    self._positions[incarnation, number] = _ArchivedUpTo(bucket.pieces[-1].log, bucket.pieces[-1].end)
            for change in segment.changes:
                self._definitions.pop(change.incarnation, None)
                if change.definition is not None:
                    self._definitions[change.incarnation] = change.definition
        # An earlier process may have changed a definition and been killed before it was archived.
        found = {table.definition.incarnation: table.definition for table in self._tables()}
        before = [
            TableChange(
                # The writes before a drop are gone, so the table counts as dropped only when that was noticed.
                micros=since if incarnation in found else self._clock.commit_micros(),
                incarnation=incarnation,
                definition=found.get(incarnation),
            )
            for incarnation in sorted({*self._definitions, *found})
            if found.get(incarnation) != self._definitions.get(incarnation)
        ]
        pending = {change.incarnation for change in self._changes}
        before = [change for change in before if change.incarnation not in pending]
        self._changes[:0] = before
        self._gaps |= {
            change.incarnation: ArchiveGap(change.micros, "the table was dropped before they were archived")
            for change in before
            if change.definition is None
        }
        self._store = store
        return True

    async def _capture(self) -> _Capture:
        """Finds out what a segment must contain. The caller holds `ddl`."""
        tables = list(self._tables())
        capture = _Capture(
            micros=self._clock.commit_micros(),
            times=self._clock.times(),
            changes=list(self._changes),
            committed=[],
            tables={table.definition.incarnation: table.state.path for table in tables},
        )
        for table in tables:
            incarnation = table.definition.incarnation
            for live in table.buckets:
                try:
                    await self._capture_bucket(live, (incarnation, live.number), capture)
                except (ScanKvError, OSError) as error:
                    why = error.message if isinstance(error, ScanKvError) else str(error)
                    capture.left_out.setdefault(incarnation, why)
        for change in capture.changes:
            for bucket in sorted(self._kept(change.incarnation).glob("[0-9]*")):
                place = change.incarnation, int(bucket.name)
                capture.files[place] = bucket, await self._executor.run(find_log_files, bucket)
                self._families.setdefault(place, tuple((bucket / _FAMILIES).read_text().split()))
        # Not before: a transaction that was being applied is remembered once its buckets have it.
        capture.committed = self._remembered()
        backup = self._newest_backup()
        capture.gaps = {table: gap for table, gap in self._gaps.items() if gap.micros >= backup}
        capture.ended_micros = self._clock.commit_micros() + 1
        return capture

    async def _capture_bucket(self, live: LiveBucket, place: _Place, capture: _Capture) -> None:
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
            position = self._positions.get(place)
            if position is not None:
                await self._executor.run(remove_kept_logs, live.path, position.log)
            files = await self._executor.run(find_log_files, live.path)
            if files and place not in self._families:
                self._families[place] = tuple(await self._executor.run(families_of, live.path))
        if bucket is not None and bucket.is_writable:
            # Only what is durable is archived: after a power failure, a bucket continues without the rest.
            await live.wait_written()
        capture.files[place] = live.path, files
        capture.marks[place] = mark

    def _put(self, capture: _Capture) -> _Stored:
        """Stores a segment, if anything was written. Blocks."""
        assert self._store is not None
        data = _DataWriter(self._store, instant_id(capture.micros))
        buckets: dict[str, dict[int, BucketSegment]] = {}
        positions = dict(self._positions)
        for place, (path, files) in capture.files.items():
            try:
                pieces = self._copy(data, path, place, files)
            except (_Gap, FileNotFoundError) as error:
                capture.gaps[place[0]] = ArchiveGap(capture.micros, f"bucket {place[1]} no longer has them ({error})")
                positions.pop(place, None)
                continue
            if pieces:
                segment = BucketSegment(families=self._families[place], pieces=tuple(pieces))
                buckets.setdefault(place[0], {})[place[1]] = segment
                positions[place] = _ArchivedUpTo(pieces[-1].log, pieces[-1].end)
        data.flush()
        changed, consumers = self._changed_consumers(capture.tables)
        committed = [each.to_json() for each in capture.committed if each.token not in self._committed]
        is_lacking = (capture.left_out, capture.gaps) != (self._left_out, self._gaps)
        has_news = buckets or changed or committed or capture.changes or is_lacking
        if self._previous and not has_news:
            self._record_reached(capture.micros)
            return _Stored(None, positions, changed)
        stored = ArchiveSegment(
            segment_id=data.segment_id,
            previous=self._previous,
            since_micros=self._since_micros,
            gap_micros=self._gap_micros,
            micros=capture.micros,
            ended_micros=capture.ended_micros,
            times=capture.times,
            changes=tuple(capture.changes),
            consumers=consumers,
            committed=tuple(committed),
            buckets=buckets,
            left_out=capture.left_out,
            gaps=capture.gaps,
        )
        self._store.write_segment(data.segment_id, stored.to_json())
        write_checked_json(self._marker, {"segment": data.segment_id})
        return _Stored(stored, positions, changed)

    def _record_reached(self, micros: int) -> None:
        assert self._store is not None
        if self._clock.monotonic() - self._reached_at >= _REACHED_SECONDS:
            self._store.write_reached({"micros": micros, "segment": self._previous})
            self._reached_at = self._clock.monotonic()

    def _copy(self, data: _DataWriter, path: Path, place: _Place, files: list[LogFile]) -> list[LogPiece]:
        """Copies what the write-ahead log of a bucket has beyond what is archived."""
        position = self._positions.get(place)
        if position is not None:
            files = [file for file in files if file.number >= position.log]
            if files and (files[0].number != position.log or files[0].size < position.end):
                raise _Gap(f"its write-ahead log {position.log} was removed")
        pieces: list[LogPiece] = []
        for log in files:
            start = position.end if position is not None and log.number == position.log else 0
            with self._find_log(path, place, log.number).open("rb") as file:
                file.seek(start)
                while start < log.size:
                    content = file.read(min(_PIECE_BYTES, log.size - start))
                    if not content:
                        raise _Gap(f"its write-ahead log {log.number} has become shorter")
                    pieces.append(data.add(log.number, start, content))
                    start += len(content)
        return pieces

    def _find_log(self, path: Path, place: _Place, number: int) -> Path:
        try:
            return find_log_file(path, number)
        except FileNotFoundError:
            # The table was dropped in the meantime.
            return find_log_file(self._kept(place[0]) / f"{place[1]:04}", number)

    def _changed_consumers(
        self, tables: dict[str, Path]
    ) -> tuple[dict[str, int], dict[str, tuple[ConsumerRecord, ...]]]:
        """Returns when the consumers of tables were changed, and the consumers, if that was not seen before."""
        changed: dict[str, int] = {}
        consumers: dict[str, tuple[ConsumerRecord, ...]] = {}
        for incarnation, path in tables.items():
            try:
                at = (path / "consumers").stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if self._consumers.get(incarnation) != at:
                changed[incarnation] = at
                records = (record for _, record in ConsumerDirectory(path).read())
                consumers[incarnation] = tuple(each for each in records if isinstance(each, ConsumerRecord))
        return changed, consumers


class _DataWriter:
    """Puts the data of a segment into a few objects."""

    def __init__(self, store: BackupStore, segment_id: str) -> None:
        self._store = store
        self.segment_id = segment_id
        self._number = 1
        self._contents: list[bytes] = []
        self._size = 0

    def add(self, log: int, start: int, content: bytes) -> LogPiece:
        """Adds a part of a file of a write-ahead log."""
        if self._size + len(content) > _DATA_BYTES:
            self.flush()
        piece = LogPiece(
            log=log,
            start=start,
            size=len(content),
            data=archived_name(self.segment_id, self._number),
            offset=self._size,
            checksum=xxhash.xxh3_128_hexdigest(content),
        )
        self._contents.append(content)
        self._size += len(content)
        return piece

    def flush(self) -> None:
        """Stores what was added."""
        if self._contents:
            self._store.put_archived(archived_name(self.segment_id, self._number), b"".join(self._contents))
            self._number += 1
            self._contents, self._size = [], 0
