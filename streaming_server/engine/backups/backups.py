"""The backups of a server: creates them on demand and regularly, one at a time."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import BackupFailed, ScanKvError, ServerDraining, UsageError
from scankv.model.names import table_of
from scankv.model.tables.schema import incarnation_of
from streaming_server.engine.backups.backup_cut import CUT_ATTEMPTS, BackupCut, CutTable, complete_states
from streaming_server.engine.backups.divided_backup import BackupPart, OtherParts, join_parts
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredTable, newest_manifest
from streaming_server.storage.backup.backup_store import BackupStore, instant_id, local_directory, prepare_directory
from streaming_server.storage.backup.backup_writer import BackupWriter, files_bytes
from streaming_server.storage.backup.claims import Claim
from streaming_server.storage.backup.prune import prune

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from streaming_server.clock import ServerClock
    from streaming_server.config import ServerConfig
    from streaming_server.engine.backups.divided_backup import BackupPeers
    from streaming_server.engine.bucket.live_bucket import WriteMark
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.tables.data_directory import DataDirectory

_LOOK_SECONDS: Final = 15.0
"""How often the server looks whether a backup is due."""

_RETRY_SECONDS: Final = 300.0
"""How long the server waits after a failed backup, if the interval is longer."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupProgress:
    """The backup that is running, or the last one of this server process.

    Attributes:
        number: Counts the backups of the process. 0: none was begun.
        is_running: Whether a backup is running.
        backup_id: Its id. Empty: it has no instant yet.
        done_bytes: The bytes of its files that are stored so far.
        total_bytes: The bytes of all its files. 0: not known yet.
        new_bytes: The bytes that no earlier backup had.
        tables: The number of its tables.
        left_out: Why tables are not in it, by name.
        error: Why it failed. None: it has not failed.
        completed_micros: The instant of the last completed backup, in microseconds since 1970 UTC. 0: none is known.
    """

    number: int = 0
    is_running: bool = False
    backup_id: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    new_bytes: int = 0
    tables: int = 0
    left_out: dict[str, str]
    error: ScanKvError | None = None
    completed_micros: int = 0


class Backups:
    """Creates backups. Bound to the event loop.

    Args:
        config: The location, and the schedule.
        directory: The data directory.
        resources: Shared by all buckets of the process.
        clock: The clock of the server.
        cut: Takes the instant of all tables: see `CutTaker`. Given a directory for copies, where to say which tables
            are left out, the marks of the buckets in the backup before, how to agree on the instant, and how often to
            try.
        flush: Flushes the buckets of all tables.

    If the server has several worker processes, the first one creates backups, of which each makes its part.

    Attributes:
        failed: How many backups have failed since the start.

    Rule: a backup never keeps the server from serving. Its work runs in threads of its own, and an error only ends it.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: DataDirectory,
        resources: RocksResources,
        clock: ServerClock,
        cut: Callable[..., Awaitable[BackupCut]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._location = config.backup_location
        self.is_enabled = bool(config.backup_location)
        self._every = config.backup_every_seconds
        self._keep = config.backup_keep
        self._directory = directory
        self._resources = resources
        self._clock = clock
        self._cut = cut
        self._flush = flush
        self._progress = BackupProgress(left_out={})
        self.failed = 0
        self._writer: BackupWriter | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = False
        self._next_try = 0.0
        self._peers: BackupPeers | None = None
        self._part: BackupPart | None = None
        # Of the newest backup, if this process has created it.
        self._marks: tuple[str, dict[tuple[str, int], WriteMark]] = "", {}
        self._looking = Background(partial(repeat, min(_LOOK_SECONDS, self._every or _LOOK_SECONDS), self._look))

    @property
    def progress(self) -> BackupProgress:
        writer = self._writer
        if writer is None:
            return self._progress
        return replace(self._progress, done_bytes=writer.done_bytes, new_bytes=writer.new_bytes)

    def set_peers(self, peers: BackupPeers) -> None:
        """Sets the other workers of the server."""
        self._peers = peers

    def start(self) -> None:
        """Starts the schedule, if there is one. It runs until `close`. Logs if the location cannot be written."""
        if not self._location or (self._peers is not None and self._peers.number != 0):
            return
        # Nothing waits for the thread, because the file system of the location may not answer.
        threading.Thread(target=self._check_location, name="backup-location", daemon=True).start()
        if self._every:
            self._looking.start()

    def _check_location(self) -> None:
        try:
            check_location(self._location, self._directory.path)
        except ScanKvError as error:
            _log.error("backups will fail until this is mended: %s", error.message)

    async def close(self) -> None:
        """Ends a running backup, and returns once it has ended."""
        self._closing = True
        await self._looking.close()
        running = [
            task for task in (self._running, None if self._part is None else self._part.task) if task is not None
        ]
        if running:
            await asyncio.wait(running)

    def create(self) -> int:
        """Begins to create a backup, and returns its number; `progress` says how far it is.

        Raises:
            BackupFailed: The server has no location for backups, or a backup is running already.
        """
        if not self._location:
            raise BackupFailed(
                "this server has no location for backups: start it with --backup-location, which names a directory or "
                "a URI such as s3://bucket/backups"
            )
        if self._progress.is_running:
            raise BackupFailed("a backup is running already: wait until it has ended")
        before = self._progress
        self._progress = BackupProgress(
            number=before.number + 1, is_running=True, left_out={}, completed_micros=before.completed_micros
        )
        self._running = asyncio.create_task(self._run())
        return self._progress.number

    async def _look(self) -> None:
        """Creates a backup if one is due."""
        if self._progress.is_running or self._clock.monotonic() < self._next_try:
            return
        if not self._progress.completed_micros:
            # After a restart, the schedule continues from the last backup.
            newest = await asyncio.to_thread(_newest_micros, self._location)
            self._progress = replace(self._progress, completed_micros=newest)
        if self._clock.commit_micros() - self._progress.completed_micros >= self._every * 1_000_000:
            self.create()

    async def _run(self) -> None:
        try:
            manifest = await self._create()
        except Exception as error:
            failure = error if isinstance(error, ScanKvError) else BackupFailed(f"the backup has failed: {error!r}")
            trace = None if isinstance(error, ScanKvError) else error
            _log.error("a backup has failed: %s", failure.message, exc_info=trace)
            self.failed += 1
            self._next_try = self._clock.monotonic() + min(_RETRY_SECONDS, self._every)
            self._progress = replace(self.progress, is_running=False, error=failure)
        else:
            for name, why in manifest.left_out.items():
                _log.error("the backup %s lacks the table %s: %s", manifest.backup_id, name, why)
            self._progress = replace(
                self.progress,
                is_running=False,
                completed_micros=manifest.micros,
                # With the parts of other workers.
                tables=len(manifest.tables),
                left_out=dict(manifest.left_out),
                new_bytes=manifest.new_bytes,
                done_bytes=manifest.bytes,
                total_bytes=manifest.bytes,
            )
        finally:
            self._writer = None

    def _check_running(self) -> None:
        if self._closing:
            raise ServerDraining("the server is shutting down, which has ended the backup: create it again")

    async def _create(self) -> BackupManifest:
        began = self._clock.monotonic()
        store = await asyncio.to_thread(_open_store, self._location, self._directory.path)
        claim = Claim(store, "create", against="prune", clock=self._clock.monotonic)
        others = OtherParts(self._peers)

        def check() -> None:
            self._check_running()
            claim.renew()

        try:
            await asyncio.to_thread(claim.take)
            await others.flush()
            manifest = await self._make_part(store, check, others.agree, CUT_ATTEMPTS)
            manifest = join_parts([manifest, *await others.wait(lambda: asyncio.to_thread(check))])
            manifest = replace(manifest, seconds=round(self._clock.monotonic() - began, 3))
            check()
            await asyncio.to_thread(complete, store, manifest, claim)
        finally:
            await others.close()
            await asyncio.to_thread(_release, claim)
        if self._keep and not manifest.left_out:
            # A backup that lacks a table must not displace the last one that has it.
            await asyncio.to_thread(self._prune, store)
        return manifest

    async def flush(self) -> None:
        """Flushes the buckets of this worker, so that the pause of a backup that another one creates is short."""
        await self._flush()

    async def begin_part(self, cut_id: str) -> int:
        """Pauses all writers of this worker, for a backup that another one creates, until `finish_part`.

        Returns the earliest instant that the backup may have. The pause ends by itself after some seconds.
        """
        if self._part is not None:
            self._part.give_up()
        store = await asyncio.to_thread(_open_store, self._location, self._directory.path)
        self._part = BackupPart(cut_id, lambda agree: self._make_part(store, self._check_running, agree, 1))
        return await self._part.begin()

    async def finish_part(self, cut_id: str, micros: int | None) -> BackupManifest:
        """Takes the instant, and stores all tables of this worker. Returns its part of the manifest.

        Args:
            cut_id: As for `begin_part`.
            micros: The instant. None: the backup is given up.

        Raises:
            BackupFailed: The backup was given up, or the pause has ended.
            ScanKvError: The part cannot be made.
        """
        if self._part is None or self._part.cut_id != cut_id:
            raise BackupFailed("this worker takes part in another backup, or has been started again: try again")
        return await self._part.finish(micros)

    async def _make_part(
        self,
        store: BackupStore,
        check: Callable[[], None],
        agree: Callable[[int], Awaitable[int]],
        attempts: int,
    ) -> BackupManifest:
        """Stores the tables of this process. Returns the manifest for them, which is not stored."""
        root = self._directory.trash / f"backup-{uuid.uuid4().hex}"
        before = await asyncio.to_thread(newest_manifest, store)
        await asyncio.to_thread(root.mkdir)
        try:
            writer = await asyncio.to_thread(BackupWriter, store, before, check)
            left_out: dict[str, str] = {}
            cut = await self._cut(root, left_out, self._known_marks(writer, before), agree, attempts)
            backup_id = instant_id(cut.micros)
            total = await asyncio.to_thread(files_bytes, [table.path for table in cut.tables])
            if before is not None:
                total += sum(_unchanged(each, before).bytes for each in cut.tables if each.unchanged)
            self._writer = writer
            self._progress = replace(
                self._progress,
                backup_id=backup_id,
                total_bytes=total,
                tables=sum(each.definition.tablet is None for each in cut.tables),
                left_out=left_out,
            )
            tables = [await asyncio.to_thread(self._store_table, each, writer, before, left_out) for each in cut.tables]
            self._marks = (
                backup_id,
                {
                    (table.definition.incarnation, number): mark
                    for table in cut.tables
                    if table.definition.name not in left_out
                    for number, mark in table.marks.items()
                },
            )
            return BackupManifest(
                backup_id=backup_id,
                micros=cut.micros,
                pause_micros=cut.pause_micros,
                seconds=0.0,
                directory_format=self._directory.format,
                times=cut.times,
                epoch=cut.epoch,
                committed=tuple(each.to_json() for each in cut.committed),
                tables=tuple(each for each in tables if each is not None),
                left_out=left_out,
                new_bytes=writer.new_bytes,
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)

    def _known_marks(self, writer: BackupWriter, before: BackupManifest | None) -> dict[tuple[str, int], WriteMark]:
        """Returns the marks of the buckets as they are in the newest backup, if this process knows them."""
        newest, marks = self._marks
        if before is None or before.backup_id != newest or not writer.has_objects(before):
            return {}
        # A table that another worker has left out is not there.
        stored = {table.definition.incarnation for table in before.tables}
        return {place: mark for place, mark in marks.items() if incarnation_of(place[0]) in stored}

    def _store_table(
        self, cut: CutTable, writer: BackupWriter, before: BackupManifest | None, left_out: dict[str, str]
    ) -> StoredTable | None:
        try:
            found = complete_states(cut, self._resources)
        except ScanKvError as error:
            left_out[cut.definition.name] = error.message
            return None
        states, files = found.states, writer.copy(found.path, found.definition.table_incarnation)
        if found.unchanged and before is not None:
            known = _unchanged(found, before)
            writer.reuse(known.files)
            states, files = {**states, **known.states}, (*files, *known.files)
        return StoredTable(definition=found.definition, states=states, files=files, consumers=found.consumers)

    def _prune(self, store: BackupStore) -> None:
        try:
            prune(store, keep=self._keep, clock=self._clock.monotonic)
        except ScanKvError as error:
            _log.warning("old backups cannot be removed now: %s", error.message)


def _unchanged(cut: CutTable, before: BackupManifest) -> StoredTable:
    """Returns the buckets of a table that are as in the backup before."""
    return before.table(table_of(cut.definition.name)).of_buckets(cut.unchanged)


def check_location(location: str, data: Path) -> None:
    """Checks that backups can be written to a location, unless that is an object store. Blocks.

    A directory is created if it does not exist.

    Raises:
        UsageError: The location cannot be used; the message says why.
    """
    directory = local_directory(location)
    if directory is not None:
        _check_apart(directory, data)
        prepare_directory(directory)


def _check_apart(directory: Path, data: Path) -> None:
    backups, tables = directory.resolve(), data.resolve()
    if backups.is_relative_to(tables) or tables.is_relative_to(backups):
        raise UsageError(
            f"the location of backups {directory} and the data directory {data} contain one another: give another "
            "one, best on another disk",
            option="backup_location",
        )


def _open_store(location: str, data: Path) -> BackupStore:
    store = BackupStore(location)
    if store.local is not None:
        _check_apart(store.local, data)
    return store


def complete(store: BackupStore, manifest: BackupManifest, claim: Claim) -> None:
    """Writes the manifest, if the store has everything that it names. Blocks.

    Raises:
        BackupFailed: The claim had ended because of a long pause, and a prune has removed objects or is doing so.
    """
    claim.take()
    if manifest.backup_id in store.manifests():
        raise BackupFailed(f"{store.shown} has a backup {manifest.backup_id} of another server: give each its own")
    sizes = store.objects()
    if any(sizes.get(name) != size for name, size in manifest.objects.items()):
        raise BackupFailed(
            f"objects of the backup were removed from {store.shown} while it was created: create it again"
        )
    store.write_manifest(manifest.backup_id, manifest.to_json())


def _release(claim: Claim) -> None:
    with suppress(ScanKvError):
        claim.release()


def _newest_micros(location: str) -> int:
    manifest = newest_manifest(BackupStore(location))
    return 0 if manifest is None else manifest.micros
