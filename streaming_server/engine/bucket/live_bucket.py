"""A bucket while the server runs: opened when first needed, guarded by one mutex, made durable by group commit."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from scankv.model.errors import DataLoss, DiskFull, ScanKvError, Unavailable
from streaming_server.engine.bucket.base_record import BaseRecord
from streaming_server.engine.bucket.commit_barrier import Gate, GatedMutex, all_mutexes
from streaming_server.engine.bucket.group_commit import GroupCommit
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.scan.columnar.base_view import BaseView
from streaming_server.storage.bucket.bucket import Bucket, LogUse
from streaming_server.storage.bucket.writer_states import DEFAULT_WRITER_LIMITS
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.disk_space import disk_full, has_space
from streaming_server.storage.files.disk_use import FamilyBytes
from streaming_server.storage.files.file_limit import check_files_left, has_files_left
from streaming_server.storage.rocks.store import is_complete

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.columnar.delta import Overlay, OverlayView
    from streaming_server.storage.bucket.bucket import BucketSnapshot, BucketState
    from streaming_server.storage.bucket.writer_states import WriterLimits
    from streaming_server.storage.changelog.records import LogRecord
    from streaming_server.storage.columnar.columnar_base import ColumnarBase
    from streaming_server.storage.rocks.store import RocksResources

T = TypeVar("T")

MAX_VIEWS_BYTES = 64 << 20
"""Memory for what was written since a base, in all the states of a bucket that scans began with and still read, but for
the newest one. Each has its own sorted rows: where readers keep more, the next scans read RocksDB."""

REPAIR_SECONDS = 5.0
"""How often a bucket is opened again, at most, that takes no writes because one has failed, or a sync."""

_log = logging.getLogger(__name__)


class LiveBucket:
    """One bucket of a live table. Bound to the server's event loop.

    `mutex` orders everything that must not overlap: writes, making cursors, reading offsets. Whoever needs several
    buckets takes their mutexes in bucket order. Work that may take long runs in `executor` while the mutex is held, so
    the loop goes on.

    Attributes:
        number: The bucket's number in its table.
        mutex: Held for every use of the bucket but `wait_durable`, and reading what no longer changes. While the gate
            before it is closed, nobody gets it but who passes beside the gate.
        before: While the gate is closed, the bucket as of the closing; else None.
        commits: How many transactions were written to it since it was made.
        upkeep: Held for such reading where it takes long: the bucket is not closed meanwhile. Whoever holds it does not
            wait for `mutex`.
        table: The name of its table.
        base: Its columnar base, when there is one and `overlay` has all that was written since.
        base_looked_for: Whether it was looked for a base that an earlier server has left.
        overlay: What was written since the base, or since one that is being built. Changed with the mutex held.
        base_record: What keeping the base has cost, and why there is none.
        used: When it was asked for last, by the monotonic clock.
        damage: The first damage found, or None. A bucket that could not be opened stays so; of one that is open, what
            is not damaged can still be read.

    Args:
        number: As above.
        path: Where it lies.
        table: As above.
        compression: That of its table.
        resources: Shared by all buckets of the process.
        executor: Runs what blocks.
        clock: The server's.
        mark_seconds: How precisely the ages of its changes are known.
        indexes: Gives the ids of the table's indexes as of now.
        on_unbuilt: Is told when the bucket was opened and an index of it is not ready.
        log_holds: Gives from where on the changelog is kept, and for whom, when the bucket is opened.
        writer_limits: What bounds its writers.
    """

    def __init__(
        self,
        number: int,
        path: Path,
        table: str,
        *,
        compression: str,
        resources: RocksResources,
        executor: StorageExecutor,
        clock: ServerClock,
        mark_seconds: float,
        indexes: Callable[[], Collection[int]],
        on_unbuilt: Callable[[LiveBucket], None],
        log_holds: Callable[[], Mapping[str, int]] = dict,
        writer_limits: WriterLimits = DEFAULT_WRITER_LIMITS,
    ) -> None:
        self.number = number
        self.mutex = GatedMutex()
        self.before: BucketSnapshot | None = None
        self.commits = 0
        self.upkeep = asyncio.Lock()
        self.damage: str | None = None
        self.base: ColumnarBase | None = None
        self.base_looked_for = False
        self.overlay: Overlay | None = None
        self.base_record = BaseRecord()
        self._views: WeakSet[OverlayView] = WeakSet()
        self._path = path
        self.table = table
        self._place = f"bucket {number} of {table}"
        self._compression = compression
        self._resources = resources
        self._executor = executor
        self._clock = clock
        self._mark_seconds = mark_seconds
        self._indexes = indexes
        self._on_unbuilt = on_unbuilt
        self._log_holds = log_holds
        self._writer_limits = writer_limits
        self._bucket: Bucket | None = None
        # While it is opened again after a failure: the one of before.
        self._left: Bucket | None = None
        self._looked_at = False
        self._repair_at = 0.0
        self._held_at_opening: frozenset[str] = frozenset()
        self._commit: GroupCommit | None = None
        self._closed: ScanKvError | None = None
        self._at_rest: BucketState | None = None
        self._use_at_rest = FamilyBytes(0, 0, 0), LogUse()
        self.used = 0.0

    @property
    def place(self) -> str:
        """What errors call it."""
        return self._place

    def base_view(self) -> BaseView | None:
        """The bucket as of now out of its base. Hold the mutex.

        None where there is none, or where readers keep too many older states of what was written since. Who asks would
        read one, which is a reason to build it.
        """
        self.base_record.wanted = True
        if self.base is None or self.overlay is None or self.overlay.is_full:
            return None
        view = self.overlay.view()
        if sum(each.nbytes for each in self._views if each is not view) > MAX_VIEWS_BYTES:
            return None
        self._views.add(view)
        return BaseView(base=self.base, overlay=view, place=self._place)

    @property
    def has_base(self) -> bool:
        """Whether there is a base with all that was written since. Does not need the mutex."""
        return self.base is not None and self.overlay is not None and not self.overlay.is_full

    @property
    def overlay_bytes(self) -> int:
        """Memory for what was written since its base, with older states that scans still read."""
        overlay = self.overlay
        kept = sum(view.nbytes for view in self._views)
        return kept if overlay is None else max(kept, overlay.nbytes)

    def forget_base(self, why: str, *, at_once: bool = True) -> None:
        """Reads the base no more.

        Args:
            why: Why, in words: it is damaged, or does not have all that was written.
            at_once: Whether another is built whatever that costs.
        """
        self.base = self.overlay = None
        self.base_record.lost, self.base_record.is_on_disk = why, True
        if at_once:
            self.base_record.base_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether the bucket's files are open."""
        return self._bucket is not None

    @property
    def open_bucket(self) -> Bucket | None:
        """The bucket, as long as it is open."""
        return self._bucket if self._closed is None else None

    @property
    def state(self) -> BucketState | None:
        """The state as of now, durable or not, without the mutex; None where the bucket was not opened yet.

        A write has replaced it by the time that it is acknowledged. While the gate is closed, it is that of before.
        """
        if self._closed is not None or self.mutex.failure is not None:
            return None
        if self._bucket is None:
            return self._at_rest
        return self._bucket.state if self.before is None else self.before.state

    def close_gate(self, gate: Gate, bucket: Bucket) -> None:
        """Closes a gate before the bucket, which is open; hold the mutex."""
        self.mutex.gate = gate
        self.before = bucket.snapshot(self.durable_offset)

    def open_gate(self) -> None:
        """Opens the gate again: what was written meanwhile is seen from now on, of which `tell` tells."""
        assert self._bucket is not None
        assert self.before is not None
        # A transaction may leave no change behind, of which nobody need know.
        self.commits += self._bucket.state.log_offset != self.before.state.log_offset
        self.mutex.gate = self.before = None

    def block(self, error: ScanKvError) -> None:
        """Has everybody who wants to read or write the bucket get an error, until `unblock`.

        Rule: what cannot be done to one bucket keeps no other one from being served.
        """
        gate = Gate()
        gate.fail(error)
        if self.before is not None:
            # Readers get the error; RocksDB's snapshots would keep the store open.
            self.before = replace(self.before, rows=None)
        self.mutex.gate = gate

    def unblock(self) -> None:
        """Lets everybody read and write again."""
        self.mutex.gate = self.before = None
        self.tell()

    @property
    def trouble(self) -> str | None:
        """Why it, or a part of it, cannot be used, as far as is known; None: it can."""
        failure = self.mutex.failure
        return failure.message if failure is not None else self.damage

    def tell(self) -> None:
        """Calls those who listen to what becomes durable: more of it may be seen."""
        if self._commit is not None:
            self._commit.tell()

    @property
    def syncs(self) -> int:
        """How often the write-ahead log was synced since the bucket was opened."""
        return self._commit.syncs if self._commit else 0

    async def opened(self) -> Bucket:
        """The open bucket; opens it when need be. Hold the mutex.

        Raises:
            DataLoss: The bucket is damaged.
            ScanKvError: The bucket was closed; what the one who closed it said.
        """
        if self._closed is not None:
            raise copy(self._closed)
        self.used = time.monotonic()
        if self._bucket is None:
            if self.damage is not None:
                raise DataLoss(self.damage, table=self.table, bucket=self.number)
            if self._left is None:
                await self._run_opening(self._open)
        if self._needs_repair and time.monotonic() >= self._repair_at:
            await self._repair()
        if self._bucket is None:
            raise Unavailable(
                f"{self._place} cannot be opened again after a failure: it is tried every {REPAIR_SECONDS:g} s; the "
                "server's log has the reason",
                retry_after=REPAIR_SECONDS,
            )
        if not self._looked_at:
            # Not with the opening: who asked for that may have given up meanwhile.
            self._looked_at = True
            self._renew_holds(self._bucket)
            if self._bucket.builds:
                self._on_unbuilt(self)
        return self._bucket

    def _made(self, *, read_only: ScanKvError | None = None, after: BucketState | None = None) -> Bucket:
        bucket = Bucket(
            self._path,
            self._place,
            compression=self._compression,
            resources=self._resources,
            clock=self._clock,
            writer_limits=self._writer_limits,
            read_only=read_only,
            after=after,
            mark_seconds=self._mark_seconds,
        )
        try:
            bucket.settle_indexes(self._indexes())
        except BaseException:
            bucket.close()
            raise
        return bucket

    @property
    def _needs_repair(self) -> bool:
        """Whether it takes no writes, or does not become durable, before it is opened again."""
        if self._bucket is None:
            return True
        return not self._bucket.is_writable or (self._commit is not None and self._commit.failure is not None)

    async def _repair(self) -> None:
        """Opens a bucket again of which a write or a sync has failed. Hold the mutex.

        Rule: what a failed sync was to make durable is not acknowledged, and not shown, before the bucket was opened
        again and is durable. Without space, it is then only read. While a scan reads it, it stays as it is, since its
        lock is given back only behind that.
        """
        assert self._commit is not None
        before, space = self._bucket, has_space(self._path)
        in_use = before is not None and before.readers and not before.is_read_only
        has_snapshot = self.before is not None and self.before.rows is not None
        if self.upkeep.locked() or in_use or has_snapshot:
            return
        if not (space and has_files_left()) and before is not None and self._commit.failure is None:
            return  # It can be read as it is.
        self._repair_at = time.monotonic() + REPAIR_SECONDS
        async with self.upkeep, self._commit.syncing:
            if before is not None and not before.is_read_only:
                # Here, and not in the thread: streams read it without the mutex, on the event loop.
                self._bucket, self._left = None, before
            await self.run(self._reopen, space)
        self.tell()

    def _reopen(self, space: bool) -> None:
        before = self._left or self._bucket
        assert before is not None
        assert self._commit is not None
        if not before.is_read_only:
            # RocksDB's lock is needed again.
            before.let_go()
        bucket: Bucket | None = None
        why = before.refusal or disk_full(self._path)
        if space:
            try:
                bucket = self._made(after=before.state)
            except DataLoss:
                raise
            except ScanKvError as error:
                _log.warning("%s can still not be written: %s [%s]", self._place, error.message, error.__cause__)
                why = before.refusal or error
        if bucket is None:
            if self._bucket is not None and self._commit.failure is None:
                return  # It can be read as it is.
            bucket = self._made(read_only=why, after=before.state)
        if bucket.sequence < before.sequence:
            bucket.close()
            raise DataLoss(
                f"{self._place} has lost writes that were not durable, since a sync has failed: start the server "
                "again, which serves what was durable"
            )
        before.replaced_by(bucket)
        self._bucket, self._left = bucket, None
        self._commit.resume(written=self._written, sync=self._sync, durable=bucket.durable_at_opening)
        if bucket.is_writable:
            _log.info("%s can be written again", self._place)

    def _open(self) -> None:
        # All of it in the thread: if the caller gives up meanwhile, the bucket is open all the same, with its lock.
        check_files_left(self._place)
        try:
            bucket = self._made()
        except DiskFull as error:
            if not is_complete(self._path):
                raise  # There was no space to make it: it holds nothing that could be read.
            _log.warning("%s can only be read: %s", self._place, error.message)
            bucket = self._made(read_only=error)
            self._repair_at = time.monotonic() + REPAIR_SECONDS
        self._held_at_opening = self._take_holds(bucket)
        offset = bucket.durable_at_opening
        if self._commit is None:
            self._commit = GroupCommit(written=self._written, sync=self._sync, executor=self._executor, durable=offset)
        else:
            self._commit.resume(written=self._written, sync=self._sync, durable=offset)
        self._bucket, self._at_rest = bucket, None

    @property
    def may_rest(self) -> bool:
        """Whether nobody needs the files: no reader, stream, waiting call, build or transaction, and nothing is wrong.

        A hold of the changelog that its owner would have to give again keeps a bucket open; the others are given anew
        with the opening. Whoever uses an open bucket without its mutex must be found here, or hold `upkeep`.
        """
        bucket, commit = self._bucket, self._commit
        if bucket is None or commit is None or (self._closed or self.damage or self.mutex.failure) is not None:
            return False
        is_quiet = commit.is_idle and self.before is None and not self.upkeep.locked() and bucket.is_writable
        return (
            is_quiet and bucket.readers == 0 and not bucket.builds and bucket.log.holds.owners <= {*self._log_holds()}
        )

    async def rest(self) -> bool:
        """Closes the files until somebody asks for the bucket; whether they were closed. Hold the mutex.

        All that was written is durable before. A bucket whose sync has failed is not: it stays open.
        """
        if not self.may_rest:
            return False
        assert self._bucket is not None
        assert self._commit is not None
        async with self.upkeep:
            if not self._bucket.state.clean:
                await self.wait_written()
            if not self._commit.is_idle:
                return False
            use = self._bucket.family_bytes(), await self.run(self._bucket.log_use)
            self._commit.pause()
            bucket, self._bucket = self._bucket, None
            self._looked_at = False
            try:
                await self._run_opening(bucket.close)
                self._at_rest, self._use_at_rest = bucket.state, use
            except ScanKvError as error:
                _log.error("closing %s, which was idle: %s [%s]", self._place, error.message, error.__cause__)
        return True

    def _written(self) -> int:
        return self._known.state.log_offset

    def _sync(self, offset: int) -> None:
        self._known.sync(offset)

    @property
    def _known(self) -> Bucket:
        """The bucket, which is open, or is being opened again."""
        bucket = self._bucket or self._left
        assert bucket is not None
        return bucket

    def _take_holds(self, bucket: Bucket) -> frozenset[str]:
        holds = self._log_holds()
        for owner, offset in holds.items():
            # Of one that lost its hold nothing is kept, and its owner will be told.
            if count_of(offset) >= bucket.state.log_first:
                bucket.log.hold(owner, offset)
        return frozenset(holds)

    def _renew_holds(self, bucket: Bucket) -> None:
        """Takes over what has changed of the holds while a thread was opening the bucket: such calls found none open.

        Rule: a hold that has ended keeps nothing, and one that was taken keeps what it says.
        """
        for owner in self._held_at_opening - self._take_holds(bucket):
            bucket.log.release(owner)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs a blocking step on the bucket in the executor. Hold the mutex, and do not let it go before this ends.

        Remembers damage, and logs it with what RocksDB reported.
        """
        try:
            return await self._executor.run(function, *args)
        except ScanKvError as error:
            raise self.noted(error) from error.__cause__

    async def _run_opening(self, function: Callable[[], T]) -> T:
        """The same for opening and closing the files."""
        try:
            return await self._executor.run_opening(function)
        except ScanKvError as error:
            raise self.noted(error) from error.__cause__

    def noted(self, error: ScanKvError) -> ScanKvError:
        """The same error, with the bucket in its details; logged, and counted as damage when it is that."""
        error.details.setdefault("table", self.table)
        error.details.setdefault("bucket", str(self.number))
        if isinstance(error, DataLoss):
            # The text alone: the error's traceback would keep iterators alive.
            self.damage = self.damage or error.message
            _log.error("DATA_LOSS in %s (%s): %s [%s]", self._place, self._path, error.message, error.__cause__)
        return error

    async def wait_durable(self, offset: int) -> None:
        """Returns once everything below `offset`, which has been written, is durable. The mutex is not needed."""
        if self._commit is None:
            raise self._closed or AssertionError("a bucket that was written to is open")
        try:
            await self._commit.wait(offset)
        except ScanKvError as error:
            raise self.noted(error) from error.__cause__

    async def wait_written(self) -> None:
        """Returns once everything that was written to the bucket, which is open, is durable. Needs no mutex."""
        if self._commit is None:
            raise self._closed or AssertionError("a bucket that was written to is open")
        try:
            await self._commit.wait_written()
        except ScanKvError as error:
            raise self.noted(error) from error.__cause__

    @property
    def durable_offset(self) -> int:
        """Behind the last change that survives a power failure, and may be seen. The bucket is open."""
        assert self._commit is not None
        return self._commit.durable if self.before is None else self.before.durable_offset

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called whenever more is durable, until the function returned is called."""
        assert self._commit is not None
        return self._commit.listen(listener)

    def is_quiet_at(self, offset: int) -> bool:
        """Whether there is no change from this offset on, durable or about to be. The bucket is open."""
        # A write that is under way holds the mutex until the state has it.
        return self.before is None and not self.mutex.locked() and self._known.state.log_offset == offset

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """Changes below the durable offset, as `ChangeLog.read`; needs no mutex. The bucket is open.

        Raises:
            PositionExpired: They are no longer all there.
            DataLoss: They are damaged.
            ScanKvError: The bucket was closed; what the one who closed it said.
        """
        if self._closed is not None:
            raise copy(self._closed)
        if self._bucket is None:
            raise Unavailable(f"{self._place} is being opened again after a failure", retry_after=REPAIR_SECONDS)
        log = self._bucket.log
        try:
            log.span.checked(start, place=self._place)
            return log.read(start, end, definition, max_changes=max_changes, max_bytes=max_bytes)
        except ScanKvError as error:
            raise self.noted(error) from error.__cause__

    def hold_log(self, owner: str, offset: int) -> None:
        """Keeps changes from an offset on, until `release_log`."""
        if (bucket := self._bucket or self._left) is not None:
            bucket.log.hold(owner, offset)

    def release_log(self, owner: str) -> None:
        """Ends that."""
        if (bucket := self._bucket or self._left) is not None:
            bucket.log.release(owner)

    def refuse(self, reason: ScanKvError) -> None:
        """Lets nobody use the bucket any more: who asks for it gets `reason`. Whoever holds the mutex may finish."""
        self._closed = reason

    async def close(self) -> None:
        """Closes the bucket, after `refuse`, with the mutex held and every cursor on it closed."""
        assert self._closed is not None
        async with self.upkeep:
            bucket, self._bucket = self._bucket, None
        if self._commit is not None:
            await self._commit.close(self._closed)
        if self._left is not None:
            await self._run_opening(self._left.let_go)
        # RocksDB's snapshots keep their store open.
        self.before = None
        if bucket is not None:
            try:
                await self._run_opening(bucket.close)
            except ScanKvError as error:
                _log.error("closing %s: %s [%s]", self._place, error.message, error.__cause__)

    @property
    def family_bytes(self) -> FamilyBytes | None:
        """Bytes of its table files, by what they hold; None where it was not opened yet."""
        if self._bucket is not None:
            return self._bucket.family_bytes()
        return self._use_at_rest[0] if self._at_rest is not None else None

    async def figures(self) -> BucketFigures:
        """What is known of the bucket now; opens it unless it was open before."""
        async with self.mutex.beside_gate():
            if self._bucket is None and self._at_rest is not None and self._closed is None:
                return BucketFigures(live=self, state=self._at_rest, log_use=self._use_at_rest[1])
            try:
                bucket = await self.opened()
            except DataLoss:
                return BucketFigures(live=self)
            built = {index: build.rows for index, build in bucket.builds.items()}
            log_use = await self.run(bucket.log_use)
            return BucketFigures(live=self, state=self.state, log_use=log_use, built_rows=built)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFigures:
    """What is known of a bucket at one moment.

    Attributes:
        live: The bucket.
        state: Its state; None when it is damaged.
        log_use: What there is of its changelog.
        built_rows: For each index that is not ready, how many rows its building has passed.
    """

    live: LiveBucket
    state: BucketState | None = None
    log_use: LogUse = field(default_factory=LogUse)
    built_rows: Mapping[int, int] = field(default_factory=dict)


@asynccontextmanager
async def held(chosen: Sequence[LiveBucket]) -> AsyncIterator[list[tuple[LiveBucket, Bucket]]]:
    """All these buckets, open, with their mutexes held: nothing is written to any of them meanwhile."""
    async with all_mutexes(chosen):
        opened = await all_ended(live.opened() for live in chosen)
        yield list(zip(chosen, opened, strict=True))


async def durable(buckets: Sequence[LiveBucket], states: Mapping[int, BucketState]) -> dict[int, int]:
    """Returns once some of a table's buckets, as they were read, are durable up to these states: their log offsets."""
    offsets = {number: state.log_offset for number, state in states.items()}
    await read_is_durable(buckets, offsets)
    return offsets


async def read_is_durable(buckets: Sequence[LiveBucket], offsets: Mapping[int, int]) -> None:
    """Returns once what was read of some buckets, which were at these offsets, is durable.

    Raises:
        Unavailable: It is not, because the disk is full: reads, too, have to wait until the bucket was opened again.
    """
    try:
        await all_ended(buckets[number].wait_durable(offset) for number, offset in offsets.items())
    except DiskFull as error:
        raise Unavailable(
            f"what others have written meanwhile cannot be made durable: {error.message}", retry_after=REPAIR_SECONDS
        ) from error
