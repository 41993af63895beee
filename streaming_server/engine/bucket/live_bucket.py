"""A bucket while the server runs: opened when first needed, guarded by one mutex, made durable by group commit."""

from __future__ import annotations

import asyncio
import logging
import time
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from scankv.model.errors import DataLoss, ScanKvError, Unavailable
from streaming_server.engine.bucket.base_slot import BaseSlot
from streaming_server.engine.bucket.commit_barrier import BarrierMutex, CommitBarrier
from streaming_server.engine.bucket.group_commit import GroupCommit
from streaming_server.engine.bucket.shared_steps import SharedSteps
from streaming_server.storage.changelog.change_log import ChangelogUsage
from streaming_server.storage.files.disk_space import can_write, has_space
from streaming_server.storage.files.disk_use import FamilyBytes
from streaming_server.storage.files.file_limit import has_files_left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.bucket_opener import BucketOpener
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_snapshot import BucketSnapshot
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.bucket.writer_states import WriteAnswer, WriteIdentity
    from streaming_server.storage.changelog.change_log import ChangeLog
    from streaming_server.storage.changelog.range_markers import MarkerRecord
    from streaming_server.storage.changelog.records import LogRecord

T = TypeVar("T")

REPAIR_SECONDS = 5.0
"""The least time between two attempts to reopen a bucket that refuses writes after a failed write or sync."""

_log = logging.getLogger(__name__)


_CACHED_BYTES = 1024 * 1024  # of rows that `find_cached` may copy on the event loop


class WriteMark(NamedTuple):
    """Tells whether a bucket may have been written to since an earlier mark of the same process.

    Attributes:
        is_open: Whether the bucket was open.
        number: RocksDB's number of the last write; of a closed bucket, when it was used last.
    """

    is_open: bool
    number: float


class LiveBucket:
    """One bucket of a live table. Bound to the server's event loop.

    `mutex` orders everything that must not overlap: writes, creating cursors, reading offsets. Callers that need
    several buckets lock them in ascending order. Work that may take long runs in `executor` while the mutex is held,
    so that the event loop continues.

    Attributes:
        number: The bucket's number in its table.
        mutex: Held for every use of the bucket except `wait_durable` and reading what no longer changes. While a commit
            barrier is raised, only callers that bypass the barrier acquire it.
        before: While a commit barrier is raised, the bucket as of the moment when it was raised; otherwise None.
        commits: How many transactions were applied to the bucket since this object was made.
        maintenance: Held for long reads that do not need `mutex`, so that the bucket stays open. A holder must not wait
            for `mutex`.
        shared_steps: Applies steps of few rows of concurrent requests together.
        table: The name of its table.
        location: The name of the bucket in errors.
        columnar: Its columnar base.
        used: When the bucket was used last, on the monotonic clock.
        damage: The first damage found, or None. A bucket that could not be opened stays damaged. The undamaged data of
            an open bucket can still be read.

    Args:
        number: The bucket's number in its table.
        table: The name of its table.
        opener: Opens the bucket's files.
        executor: Runs blocking work.
        on_unbuilt: Called when the bucket was opened and one of its indexes is not ready.
    """

    def __init__(
        self,
        number: int,
        table: str,
        opener: BucketOpener,
        *,
        executor: StorageExecutor,
        on_unbuilt: Callable[[LiveBucket], None],
    ) -> None:
        self.number = number
        self.mutex = BarrierMutex()
        self.before: BucketSnapshot | None = None
        self.commits = 0
        self.maintenance = asyncio.Lock()
        self.shared_steps = SharedSteps(self)
        self.damage: str | None = None
        self.table = table
        self.location = opener.location
        self.columnar = BaseSlot(self.location)
        self._opener = opener
        self._executor = executor
        self._on_unbuilt = on_unbuilt
        self._bucket: Bucket | None = None
        # The failed bucket, while it is being reopened.
        self._failed_bucket: Bucket | None = None
        self._is_settled = False
        self._repair_at = 0.0
        self._commit: GroupCommit | None = None
        self._applied_listeners: set[Callable[[], None]] = set()
        self._closed: ScanKvError | None = None
        self._state_when_closed: BucketState | None = None
        self._use_when_closed = FamilyBytes(0, 0, 0), ChangelogUsage()
        self.used = 0.0

    @property
    def is_open(self) -> bool:
        return self._bucket is not None

    @property
    def is_failed(self) -> bool:
        """Whether the bucket waits to be reopened after a failed write or sync."""
        return self._failed_bucket is not None or (self._bucket is not None and self._needs_repair)

    @property
    def write_mark(self) -> WriteMark:
        """What differs after each write to the bucket: see `WriteMark`. Needs no mutex."""
        bucket = self.open_bucket
        return WriteMark(False, self.used) if bucket is None else WriteMark(True, bucket.sequence)

    @property
    def path(self) -> Path:
        """The directory of its files."""
        return self._opener.path

    @property
    def open_bucket(self) -> Bucket | None:
        """The open bucket, or None."""
        return self._bucket if self._closed is None else None

    @property
    def state(self) -> BucketState | None:
        """The current state, durable or not. None if the bucket was never opened. Needs no mutex.

        By the time a write is acknowledged, the state includes it. While a commit barrier is raised, this is the
        state from before the barrier.
        """
        if self._closed is not None or self.mutex.failure is not None:
            return None
        if self._bucket is None:
            return self._state_when_closed
        return self._bucket.state if self.before is None else self.before.state

    def raise_barrier(self, barrier: CommitBarrier, bucket: Bucket) -> None:
        """Raises a commit barrier before the bucket, which is open. Hold the mutex."""
        self.mutex.barrier = barrier
        self.before = bucket.snapshot(self.durable_offset)

    def lift_barrier(self) -> None:
        """Lifts the barrier, which makes the writes that it hid visible. The caller then calls `notify`."""
        assert self._bucket is not None
        assert self.before is not None
        # A transaction without changes is no reason to notify anyone.
        self.commits += self._bucket.state.log_offset != self.before.state.log_offset
        self.mutex.barrier = self.before = None

    def block(self, error: ScanKvError) -> None:
        """Raises an error for all readers and writers of the bucket, until `unblock`.

        Rule: a failure in one bucket does not stop the others from being served.
        """
        barrier = CommitBarrier()
        barrier.fail(error)
        if self.before is not None:
            # Readers get the error, and a RocksDB snapshot would keep the store open.
            self.before = replace(self.before, rows=None)
        self.mutex.barrier = barrier

    def unblock(self) -> None:
        """Serves readers and writers again."""
        self.mutex.barrier = self.before = None
        self.notify()

    @property
    def problem(self) -> str | None:
        """Why the bucket, or a part of it, cannot be used. None: no problem is known."""
        failure = self.mutex.failure
        return failure.message if failure is not None else self.damage

    def notify(self) -> None:
        """Calls the listeners of `on_durable`: more may be visible."""
        if self._commit is not None:
            self._commit.notify()

    @property
    def syncs(self) -> int:
        """How often the write-ahead log was synced since the bucket was first opened."""
        return self._commit.syncs if self._commit else 0

    def open_now(self) -> Bucket | None:
        """Returns the open bucket; None if `open` must do something before. Hold the mutex."""
        bucket, commit = self._bucket, self._commit
        # Not by `_needs_repair`: a scan asks each of a thousand buckets.
        if bucket is None or self._closed is not None or not self._is_settled or not bucket.is_writable:
            return None
        if (commit is not None and commit.failure is not None) or not self._opener.has_followed(bucket):
            return None
        self.used = time.monotonic()
        return bucket

    async def open(self) -> Bucket:
        """Returns the open bucket, and opens it first if necessary. Hold the mutex.

        Raises:
            DataLoss: The bucket is damaged.
            Unavailable: The bucket failed, and cannot be reopened yet.
            ScanKvError: The bucket was closed: the reason that `refuse` was given.
        """
        if self._closed is not None:
            raise copy(self._closed)
        self.used = time.monotonic()
        if self._bucket is None:
            if self.damage is not None:
                raise DataLoss(self.damage, table=self.table, bucket=self.number)
            if self._failed_bucket is None:
                await self._run_opening(self._open)
        if self._needs_repair and time.monotonic() >= self._repair_at:
            await self._repair()
        if self._bucket is None:
            raise Unavailable(
                f"{self.location} cannot be reopened after a failure; the server tries every {REPAIR_SECONDS:g} s: "
                "read the reason in the server's log",
                retry_after=REPAIR_SECONDS,
            )
        if not self._is_settled:
            # Not in `_open`: its caller may have given up in the meantime, and this must not be skipped.
            self._is_settled = True
            self._opener.renew_holds(self._bucket)
            if self._bucket.builds:
                self._on_unbuilt(self)
        if self._opener.has_other_changelog(self._bucket):
            # Here, because every user of the bucket calls this first: a crash or an error may have come between the
            # change of the table's definition and this.
            await self.run(self._opener.set_changelog, self._bucket)
        if self._opener.has_dropped_partitions(self._bucket):
            await self.run(self._drop_partitions, self._bucket)
        return self._bucket

    def _drop_partitions(self, bucket: Bucket) -> None:
        try:
            ranges = self._opener.drop_partitions(bucket)
        except BaseException:
            self.columnar.drop("it may have rows of dropped partitions")
            raise
        self.columnar.delete_ranges(ranges, bucket.state.log_offset)

    @property
    def _needs_repair(self) -> bool:
        """Whether the bucket must be reopened before it accepts writes or becomes durable."""
        if self._bucket is None:
            return True
        return not self._bucket.is_writable or (self._commit is not None and self._commit.failure is not None)

    @property
    def lacks_space(self) -> bool:
        """Whether a write, a flush or a compaction of the open bucket has failed."""
        bucket = self.open_bucket
        return bucket is not None and (not bucket.is_writable or bucket.lacks_space)

    async def end_waiting(self) -> None:
        """Reopens the bucket, in which RocksDB may wait for space, unless it has readers. Raises as `open` does."""
        bucket = self.open_bucket
        if bucket is None or bucket.readers or not has_space(self._opener.path):
            return
        if bucket.is_writable:
            bucket.stop_waiting()
        async with self.mutex:
            await self.open()

    async def _repair(self) -> None:
        """Reopens the bucket after a failed write or sync. Hold the mutex.

        Rule: what a failed sync should have made durable is neither acknowledged nor visible before the bucket was
        reopened and is durable. Without disk space the bucket is reopened for reading only. While a scan reads the
        bucket it stays as it is, because RocksDB releases its lock only after the last reader.
        """
        assert self._commit is not None
        before, space = self._bucket, has_space(self._opener.path)
        in_use = before is not None and before.readers and not before.is_read_only
        has_snapshot = self.before is not None and self.before.rows is not None
        if self.maintenance.locked() or in_use or has_snapshot:
            return
        if not (space and has_files_left()) and before is not None and self._commit.failure is None:
            return  # The bucket can still be read.
        self._repair_at = time.monotonic() + REPAIR_SECONDS
        # A read-only disk, or one that reports errors, may have free space nevertheless.
        if before is not None and self._commit.failure is None and not await self.run(can_write, self._opener.path):
            return
        async with self.maintenance, self._commit.syncing:
            if before is not None and not before.is_read_only:
                # Here and not in the thread, because streams read `_bucket` on the event loop without the mutex.
                self._bucket, self._failed_bucket = None, before
            await self.run(self._reopen, space)
        self.notify()

    def _reopen(self, space: bool) -> None:
        before = self._failed_bucket or self._bucket
        assert before is not None
        assert self._commit is not None
        can_be_read = self._bucket is not None and self._commit.failure is None
        bucket = self._opener.reopen(before, has_space=space, can_be_read=can_be_read)
        if bucket is None:
            return
        self._bucket, self._failed_bucket = bucket, None
        # This process may know of more that is durable than the files say, if the watermark could not be written.
        durable = max(bucket.log.durable_offset, self._commit.durable)
        self._commit.resume(written=self._written, sync=self._sync, durable=durable)
        if bucket.is_writable:
            _log.info("%s accepts writes again", self.location)

    def _open(self) -> None:
        # All of this runs in the thread, so that the bucket is opened completely even if the caller is cancelled.
        bucket = self._opener.open()
        if bucket.is_read_only:
            self._repair_at = time.monotonic() + REPAIR_SECONDS
        offset = bucket.log.durable_offset
        if self._commit is None:
            self._commit = GroupCommit(written=self._written, sync=self._sync, executor=self._executor, durable=offset)
        else:
            self._commit.resume(written=self._written, sync=self._sync, durable=offset)
        self._bucket, self._state_when_closed = bucket, None

    @property
    def can_be_closed(self) -> bool:
        """Whether nothing needs the files: no reader, stream, waiting call, build or transaction, and no problem.

        A retention hold that its owner would have to take again keeps a bucket open; all other holds are taken again
        when the bucket is opened. Code that uses an open bucket without its mutex must be counted here, or hold
        `maintenance`.
        """
        bucket, commit = self._bucket, self._commit
        if bucket is None or commit is None or (self._closed or self.damage or self.mutex.failure) is not None:
            return False
        is_quiet = commit.is_idle and self.before is None and not self.maintenance.locked() and bucket.is_writable
        is_unused = bucket.readers == 0 and not bucket.builds
        return is_quiet and is_unused and bucket.log.holds.owners <= self._opener.hold_owners

    async def close_files(self) -> bool:
        """Closes the files until the bucket is used again. Returns whether they were closed. Hold the mutex.

        Makes all writes durable first. A bucket whose sync failed stays open.
        """
        if not self.can_be_closed:
            return False
        assert self._bucket is not None
        assert self._commit is not None
        async with self.maintenance:
            if not self._bucket.state.clean:
                await self.wait_written()
            if not self._commit.is_idle:
                return False
            use = self._bucket.family_bytes(), await self.run(self._bucket.changelog_usage)
            self._commit.pause()
            bucket, self._bucket = self._bucket, None
            self._is_settled = False
            try:
                await self._run_opening(bucket.close)
                self._state_when_closed, self._use_when_closed = bucket.state, use
            except ScanKvError as error:
                _log.error("closing %s, which was idle: %s [%s]", self.location, error.message, error.__cause__)
        return True

    def _written(self) -> int:
        return self._known.state.log_offset

    def _sync(self, offset: int) -> None:
        self._known.sync(offset)

    @property
    def _known(self) -> Bucket:
        """The bucket, which is open, or is being reopened."""
        bucket = self._bucket or self._failed_bucket
        assert bucket is not None
        return bucket

    @property
    def large_reads(self) -> asyncio.Semaphore:
        """Hold it while a thread reads rows and until their memory is claimed."""
        return self._executor.large_reads

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs a blocking step on the bucket in the executor. Hold the mutex until it ends.

        Records damage, and logs it with RocksDB's report.
        """
        try:
            return await self._executor.run(function, *args)
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__

    async def write(self, function: Callable[..., None], *args: object, more_follows: bool = False) -> None:
        """Runs a step that writes, as `run`, and sees to a sync of it if no other step or request does.

        The sync of the last step runs right after it in the same thread. Syncs of earlier steps run while later steps
        are applied, so that little is left to sync after the last one.

        Args:
            function: The step.
            args: Its arguments.
            more_follows: Whether the same request has further steps in this bucket.
        """
        if self._commit is None or self.mutex.has_waiters or not self._commit.can_sync or more_follows:
            await self.run(function, *args)
            if more_follows and self._commit is not None:
                self._commit.record_step()
            self.notify_applied()
            return
        try:
            await self._commit.write_and_sync(function, *args, may_sync=self.mutex.begin_sync)
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__
        finally:
            self.mutex.end_sync()
            self.notify_applied()

    async def find_answer(self, bucket: Bucket, identity: WriteIdentity) -> WriteAnswer | None:
        """Returns how far a request has been applied, as `Bucket.find_answer`; in a thread only if it must be read."""
        if bucket.writers.is_cached(identity.writer):
            return bucket.find_answer(identity)
        return await self.run(bucket.find_answer, identity)

    def abandon_steps(self) -> None:
        """Ends a request that has announced further steps to `write`, and will not make them."""
        if self._commit is not None and self._bucket is not None:
            self._commit.abandon_steps()

    def begin_sync(self) -> None:
        """Begins a sync of what was written to the open bucket. `wait_durable` waits for it."""
        if self._commit is not None:
            self._commit.begin()
        self.notify_applied()

    async def _run_opening(self, function: Callable[[], T]) -> T:
        """Like `run`, for opening and closing the files."""
        try:
            return await self._executor.run_opening(function)
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__

    def record_error(self, error: ScanKvError) -> ScanKvError:
        """Returns the error with the bucket in its details. Logs damage, and records it.

        Files that cannot be read because the bucket was closed and removed are no damage: then it returns why it was
        closed.
        """
        if isinstance(error, DataLoss) and self._closed is not None and not self._opener.path.exists():
            return copy(self._closed)
        error.details.setdefault("table", self.table)
        error.details.setdefault("bucket", str(self.number))
        if isinstance(error, DataLoss):
            # The text alone: the error's traceback would keep iterators alive.
            self.damage = self.damage or error.message
            _log.error(
                "DATA_LOSS in %s (%s): %s [%s]", self.location, self._opener.path, error.message, error.__cause__
            )
        return error

    def is_durable(self, offset: int) -> bool:
        """Whether `wait_durable` would return at once."""
        return self._commit is not None and self._commit.is_durable(offset)

    async def wait_durable(self, offset: int) -> None:
        """Returns once everything below a written offset is durable. Needs no mutex."""
        if self._commit is None:
            raise self._closed or AssertionError("a bucket that was written to is open")
        try:
            await self._commit.wait(offset)
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__

    async def wait_written(self) -> None:
        """Returns once everything that was written to the open bucket is durable. Needs no mutex."""
        if self._commit is None:
            raise self._closed or AssertionError("a bucket that was written to is open")
        try:
            await self._commit.wait_written()
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__

    @property
    def durable_offset(self) -> int:
        """The offset after the last change that is durable and visible. The bucket is open."""
        assert self._commit is not None
        return self._commit.durable if self.before is None else self.before.durable_offset

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener whenever more is durable. Returns a function that removes the listener."""
        assert self._commit is not None
        return self._commit.listen(listener)

    @property
    def applied_state(self) -> BucketState:
        """The state with everything that is applied, durable or not, even a part of a transaction. The bucket is open.

        Raises:
            ScanKvError: The bucket is blocked, because it lacks rows of a transaction.
        """
        if self.mutex.failure is not None:
            raise copy(self.mutex.failure)
        return self._known.state

    def on_applied(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener whenever more is applied, or durable. Returns a function that removes the listener."""
        stop_durable = self.on_durable(listener)
        self._applied_listeners.add(listener)
        # Otherwise the listener would be called only after the sync that a holder of the mutex makes.
        self.mutex.latest_readers += 1

        def stop() -> None:
            self.mutex.latest_readers -= 1
            self._applied_listeners.discard(listener)
            stop_durable()

        return stop

    def notify_applied(self) -> None:
        """Calls the listeners of `on_applied`. Call it when something is applied."""
        for listener in list(self._applied_listeners):
            listener()

    def is_quiet_at(self, offset: int) -> bool:
        """Whether no change exists from this offset on, and no change is being written. The bucket is open."""
        # A running write holds the mutex until the state includes it.
        return self.before is None and not self.mutex.locked() and self._known.state.log_offset == offset

    def find_cached(self, keys: list[bytes], *, latest: bool = False) -> tuple[list[bytes | None], int] | None:
        """Returns the stored rows of some keys and the offset that they are as of, durable unless `latest`.

        Returns None if it would have to wait: the bucket is not open, is being written, has writes that are not
        durable yet, has to be reopened, or a row is not in memory.

        Args:
            keys: The encoded keys.
            latest: Whether to read what is applied, durable or not, even while a barrier is raised.
        """
        bucket, commit, mutex = self._bucket, self._commit, self.mutex
        if bucket is None or commit is None or self._closed is not None or not bucket.is_writable:
            return None
        offset = bucket.state.log_offset
        if latest:
            has_to_wait = mutex.failure is not None or (mutex.locked() and not mutex.is_shared)
        else:
            has_to_wait = mutex.barrier is not None or mutex.locked() or commit.durable < offset
        if has_to_wait or commit.failure is not None or bucket.longest_row * len(keys) > _CACHED_BYTES:
            return None
        rows = bucket.find_cached(keys)
        if rows is None:
            return None
        self.used = time.monotonic()
        return rows, offset

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """Reads changes below the durable offset, as `ChangeLog.read`. The bucket is open. Needs no mutex.

        Raises:
            PositionExpired: The changelog no longer has all of them.
            MarkerReached: A range marker is at `start`.
            DataLoss: They are damaged.
            ScanKvError: The bucket was closed: the reason that `refuse` was given.
        """
        log = self._readable_log()
        try:
            log.span.resolve(start, location=self.location)
            return log.read(start, end, definition, max_changes=max_changes, max_bytes=max_bytes)
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """Reads range markers below the durable offset: see `ChangeLog.read_markers`. Raises as `read_log` does."""
        log = self._readable_log()
        try:
            log.span.resolve(start, location=self.location)
            return log.read_markers(start, end, most=most)
        except ScanKvError as error:
            raise self.record_error(error) from error.__cause__

    def _readable_log(self) -> ChangeLog:
        if self._closed is not None:
            raise copy(self._closed)
        if self._bucket is None:
            raise Unavailable(
                f"{self.location} is being reopened after a failure: try again", retry_after=REPAIR_SECONDS
            )
        return self._bucket.log

    def changelog_at(self, offset: int, changelogs: Sequence[str]) -> str:
        """Returns the value of the option `changelog` at an offset, as `BucketState.changelog_at`. Needs no mutex."""
        state = self.state
        return changelogs[-1] if state is None else state.changelog_at(offset, changelogs)

    def has_markers_since(self, offset: int) -> bool:
        """Whether the changelog has a range marker at an offset or after it. Needs no mutex."""
        return self.state is not None and self.state.has_markers_since(offset)

    def retain_log(self, owner: str, offset: int) -> None:
        """Retains changes from an offset on, until `release_log`."""
        if (bucket := self._bucket or self._failed_bucket) is not None:
            bucket.log.holds.hold(owner, offset)

    def release_log(self, owner: str) -> None:
        """Ends a retention hold."""
        if (bucket := self._bucket or self._failed_bucket) is not None:
            bucket.log.holds.release(owner)

    def refuse(self, reason: ScanKvError) -> None:
        """Refuses all further use of the bucket with `reason`. The current holder of the mutex may finish."""
        self._closed = reason

    async def close(self) -> None:
        """Closes the bucket, after `refuse`, with the mutex held and every cursor on it closed."""
        assert self._closed is not None
        async with self.maintenance:
            bucket, self._bucket = self._bucket, None
        if self._commit is not None:
            await self._commit.close(self._closed)
        if self._failed_bucket is not None:
            await self._run_opening(self._failed_bucket.abandon)
        # A RocksDB snapshot keeps its store open.
        self.before = None
        if bucket is not None:
            try:
                await self._run_opening(partial(bucket.close, flush=False))
            except ScanKvError as error:
                _log.error("closing %s: %s [%s]", self.location, error.message, error.__cause__)

    @property
    def family_bytes(self) -> FamilyBytes | None:
        """The bytes of the SST files by column family. None if the bucket was never opened."""
        if self._bucket is not None:
            return self._bucket.family_bytes()
        return self._use_when_closed[0] if self._state_when_closed is not None else None

    async def stats(self) -> LiveBucketStats:
        """Returns the statistics of the bucket. Opens a bucket that was never opened."""
        async with self.mutex.bypass_barrier():
            if self._bucket is None and self._state_when_closed is not None and self._closed is None:
                return LiveBucketStats(
                    live=self, state=self._state_when_closed, changelog_usage=self._use_when_closed[1]
                )
            try:
                bucket = await self.open()
            except DataLoss:
                return LiveBucketStats(live=self)
            built = {index: build.rows for index, build in bucket.builds.items()}
            changelog_usage = await self.run(bucket.changelog_usage)
            return LiveBucketStats(live=self, state=self.state, changelog_usage=changelog_usage, built_rows=built)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBucketStats:
    """The statistics of a bucket at one moment.

    Attributes:
        live: The bucket.
        state: Its state. None if it is damaged.
        changelog_usage: The size of its changelog.
        built_rows: For each index that is not ready, the number of rows that its build has passed.
    """

    live: LiveBucket
    state: BucketState | None = None
    changelog_usage: ChangelogUsage = field(default_factory=ChangelogUsage)
    built_rows: Mapping[int, int] = field(default_factory=dict)
