"""One write request: checked in all of its buckets, then applied exactly once, however often it is repeated."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from scankv.model.counts import counted
from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError, WriteConflict
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.engine.merging.step import restate
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.writes.bucket_steps import apply_rows, step_rows
from streaming_server.engine.writes.changed_keys import changed_keys
from streaming_server.storage.bucket.writer_states import RefusedRow, WriteStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.writer_states import WriteAnswer, WriteIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePreconditions:
    """The preconditions of a write request.

    Attributes:
        identity: The writer, and the number of its request. None: a repeated request is applied again.
        unchanged_since: Nothing is written if one of its keys has changed since these offsets. None: no such check.
        column_locks: The ids of the column locks that the writer holds.
        undo_as: The writer that the changelog records for an undo. None: the writer of `identity`, if it was opened.
        only_checks: Whether the other preconditions are checked, and nothing is written.
    """

    identity: WriteIdentity | None = None
    unchanged_since: LogOffsets | None = None
    column_locks: frozenset[str] = frozenset()
    undo_as: str | None = None
    only_checks: bool = False

    @property
    def changelog_writer(self) -> str | None:
        """The writer that the changelog records for the changes. None: no writer."""
        if self.undo_as is not None or self.identity is None:
            return self.undo_as
        return self.identity.writer if self.identity.epoch else None

    def check_history(self, definition: TableDefinition) -> None:
        """Raises WriterFenced if the writer was opened in another history of its table: see `WriteIdentity`."""
        if self.identity is not None:
            self.identity.check_history(definition)


NO_PRECONDITIONS: Final = WritePreconditions()
"""The preconditions of an unconditional write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteScope:
    """The table of a write request.

    Attributes:
        table: The table.
        merger: Returns the merger of the table's current definition.
        admit: Returns a context that keeps others from locking the request's columns; raises ColumnLocked if another
            owner has locked one.
    """

    table: TableState
    merger: Callable[[], Merger]
    admit: Callable[[], AbstractContextManager[None]]


class SeparateWrites(NamedTuple):
    """What became of the rows of a request that were written separately.

    Attributes:
        offsets: The next offset of each bucket that was written.
        errors: The error of each other bucket, where nothing was written.
        refusals: Why rows were refused, by bucket and place.
    """

    offsets: dict[int, int]
    errors: dict[int, ScanKvError]
    refusals: dict[tuple[int, int], ScanKvError]


class _NextRows(NamedTuple):
    """The rows of a step, the number of rows up to its end, the progress that the bucket records, and the merger."""

    rows: BucketRows
    end: int
    progress: WriteStep | None
    merger: Merger


class WriteOperation:
    """Applies one request to its buckets.

    Args:
        parts: Its rows by bucket, ascending. A repeated request has the same rows.
        preconditions: The preconditions of the request.
        scope: The table.
        independent: Whether each row is written for itself, so that a refused row does not affect the others.

    Raises:
        WriterFenced: The writer was opened in another history of the table.
    """

    def __init__(
        self,
        parts: Sequence[BucketRows],
        preconditions: WritePreconditions,
        scope: WriteScope,
        *,
        independent: bool = False,
    ) -> None:
        preconditions.check_history(scope.table.definition)
        self._parts = parts
        self._preconditions = preconditions
        self._scope = scope
        # The rows of each bucket that were applied just now, and not by an earlier attempt. Threads write it.
        self._applied: dict[int, int] = {}
        self._done: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._failures: dict[int, Exception] = {}
        self._independent = independent
        self._refusals: dict[int, tuple[RefusedRow, ...]] = {}
        # The buckets whose rows are written one by one, because one of several was refused.
        self._one_by_one: set[int] = set()

    async def run(self) -> dict[int, int]:
        """Applies the request. Once all of its rows are durable, returns the next offset of each of its buckets.

        Preconditions are checked before anything is written.

        Raises:
            WriterFenced, WriterExpired, TooManyWriters: See `Bucket.find_answer`.
            ColumnLocked: Another owner has locked one of its columns.
            WriteConflict: One of its keys has changed.
            InvalidRequest, PositionExpired, PositionOutOfRange: The changes to check are not available.
            InvalidRequest, RequestTooLarge, DataLoss: As for `apply_rows`; earlier steps may have been applied.
        """
        with ExitStack() as admissions:
            only_checks = self._preconditions.only_checks
            async with lock_buckets([self._live(part) for part in self._parts], again=only_checks) as opened:
                answers = [await self._find_answer(live, bucket) for live, bucket in opened]
                if not all(answer is not None and answer.complete for answer in answers):
                    admissions.enter_context(self._scope.admit())
                if self._preconditions.unchanged_since is not None:
                    for (live, bucket), part, answer in zip(opened, self._parts, answers, strict=True):
                        await self._check_unchanged(live, bucket, part, 0 if answer is None else answer.rows)
                if only_checks:
                    return {}
                if self._preconditions.unchanged_since is not None:
                    # All mutexes are still held, so no other write comes between the check and the write.
                    for (live, bucket), part in zip(opened, self._parts, strict=True):
                        with _steps_of(live):
                            while not await self._step(live, bucket, part):
                                pass
                elif self._are_few and not any(answers):
                    await self._apply_together(opened)
            await all_ended(map(self._write_bucket, self._parts))
        return self._offsets

    @property
    def _are_few(self) -> bool:
        """Whether the request has few rows of several buckets."""
        return len(self._parts) > 1 and all(part.are_few for part in self._parts)

    async def _apply_together(self, opened: Sequence[tuple[LiveBucket, Bucket]]) -> None:
        """Applies the first step in every bucket, all in one thread: a change of threads takes as long as few rows.

        Hold the mutexes. `_write_bucket` then applies what is left. It also raises the errors.
        """
        functions = [
            partial(self._apply_first, live, bucket, part, self._next_step(bucket, part, 0))
            for (live, bucket), part in zip(opened, self._parts, strict=True)
        ]

        def apply() -> None:
            for function in functions:
                function()

        try:
            await self._scope.table.executor.run(apply)
        finally:
            # Also for a caller that was cancelled. All syncs begin now, so they run at the same time.
            for live, _ in opened:
                live.begin_sync()

    def _apply_first(self, live: LiveBucket, bucket: Bucket, part: BucketRows, step: _NextRows) -> None:
        """Applies the first step of a part in a thread, and records its outcome. Raises nothing."""
        try:
            apply_rows(live, bucket, step.rows, step.merger, step.progress, self._preconditions.changelog_writer)
        except (InvalidRequest, RequestTooLarge):
            pass  # Nothing was written, and the step is refused again when it is applied by itself.
        except Exception as error:
            self._failures[part.bucket] = error
        else:
            self._applied[part.bucket] = step.end
            self._done[part.bucket], self._offsets[part.bucket] = step.end, bucket.state.log_offset

    def _prepare_shared(self, live: LiveBucket, part: BucketRows, bucket: Bucket) -> Callable[[], None] | None:
        """Returns what applies the first step of a part together with other requests. None: it is applied by itself."""
        identity = self._preconditions.identity
        # What is known of another writer has to be read. That is done in the thread that applies the step.
        is_cached = identity is not None and bucket.writers.is_cached(identity.writer)
        if identity is not None and is_cached and bucket.find_answer(identity) is not None:
            return None
        return partial(self._apply_shared, live, bucket, part, self._next_step(bucket, part, 0))

    def _apply_shared(self, live: LiveBucket, bucket: Bucket, part: BucketRows, step: _NextRows) -> None:
        """Like `_apply_first`, unless an earlier attempt of the request has waited, too, and is applied by now."""
        identity = self._preconditions.identity
        try:
            if identity is not None and bucket.find_answer(identity) is not None:
                return
        except ScanKvError:
            return  # It is raised again when the step is applied by itself.
        self._apply_first(live, bucket, part, step)

    async def run_separately(self) -> SeparateWrites:
        """Applies the request to each bucket by itself. Returns once everything that was applied is durable.

        The request has no condition on other rows. A repeated request may find that the error of a bucket is gone. The
        refusals of rows stay.
        """
        assert self._preconditions.unchanged_since is None
        errors: dict[int, ScanKvError] = {}

        async def write(part: BucketRows) -> None:
            try:
                await self._write_alone(part)
            except ScanKvError as error:
                errors[part.bucket] = error

        await all_ended(map(write, self._parts))
        offsets = {number: offset for number, offset in self._offsets.items() if number not in errors}
        refusals = {(number, each.row): each.error for number, all_ in self._refusals.items() for each in all_}
        return SeparateWrites(offsets, errors, refusals)

    async def _write_alone(self, part: BucketRows) -> None:
        with ExitStack() as admission:
            try:
                admission.enter_context(self._scope.admit())
            except ScanKvError:
                # What a repeated request has written before, it need not be admitted to.
                live = self._live(part)
                async with live.mutex:
                    answer = await self._find_answer(live, await live.open())
                if answer is None or not answer.complete:
                    raise
            await self._write_bucket(part)

    async def _write_bucket(self, part: BucketRows) -> None:
        try:
            await self._complete_bucket(part)
        finally:
            self._scope.table.count_written(self._applied.pop(part.bucket, 0))

    async def _complete_bucket(self, part: BucketRows) -> None:
        live, complete = self._live(part), False
        if part.are_few and part.bucket not in self._done and part.bucket not in self._failures:
            await live.shared_steps.apply(partial(self._prepare_shared, live, part))
        failure = self._failures.pop(part.bucket, None)
        if failure is not None:
            raise live.record_error(failure) if isinstance(failure, ScanKvError) else failure
        with _steps_of(live):
            while not complete and self._done.get(part.bucket) != len(part.keys):
                async with live.mutex:
                    complete = await self._step(live, await live.open(), part)
        if self._scope.table.codec.rows.stores_hidden:
            # Hidden state of a row may have changed without a new offset.
            await live.wait_written()
        await live.wait_durable(self._offsets[part.bucket])

    async def _step(self, live: LiveBucket, bucket: Bucket, part: BucketRows) -> bool:
        """Applies the next rows of a part with one WriteBatch; returns whether all are applied. Hold the mutex."""
        number, answer = part.bucket, await self._find_answer(live, bucket)
        if answer is not None:
            self._refusals[number] = answer.refusals
        if answer is not None and answer.complete:
            self._done[number], self._offsets[number] = len(part.keys), answer.offset
            return True
        done, count = self._done.get(number, 0) if answer is None else answer.rows, len(part.keys)
        if done >= count:
            raise InvalidRequest("a request was repeated with other rows: give each request its own sequence")
        step = self._next_step(bucket, part, done)
        try:
            await live.write(
                apply_rows,
                *(live, bucket, step.rows, step.merger, step.progress, self._preconditions.changelog_writer),
                more_follows=step.end < count,
            )
            self._applied[number] = self._applied.get(number, 0) + step.end - done
        except (InvalidRequest, RequestTooLarge) as error:
            if not self._independent:
                raise
            if step.end - done > 1:
                self._one_by_one.add(number)
                return False
            # Independent rows are not checked for indexes before they are merged, so no index was added in between.
            cause = error.__cause__ if isinstance(error.__cause__, RequestTooLarge) else error
            refusal = RefusedRow(done, restate(cause, "the row was not written"))
            self._refusals[number] = (*self._refusals.get(number, ()), refusal)
            progress = self._progress(number, step.end, count)
            if progress is not None:
                await live.write(bucket.record, progress)
        self._done[number], self._offsets[number] = step.end, bucket.state.log_offset
        return step.end == count

    def _next_step(self, bucket: Bucket, part: BucketRows, done: int) -> _NextRows:
        """Returns the rows of a part that come after the first `done` rows and fit into one WriteBatch.

        Raises:
            DiskFull: The disk space that is left is for what frees space.
        """
        reserve = self._scope.table.reserve
        reserve.check_step()
        number, count, merger = part.bucket, len(part.keys), self._scope.merger()
        most = step_rows(bucket.state, len(merger.codec.indexes), most_bytes=reserve.step_bytes)
        most = 1 if number in self._one_by_one else most
        end = part.step_end(done, min(done + most, count))
        return _NextRows(part.slice(done, end - done), end, self._progress(number, end, count), merger)

    def _progress(self, bucket: int, end: int, count: int) -> WriteStep | None:
        identity = self._preconditions.identity
        if identity is None:
            return None
        refusals = self._refusals.get(bucket, ())
        return WriteStep(identity=identity, rows=end, complete=end == count, refusals=refusals)

    async def _find_answer(self, live: LiveBucket, bucket: Bucket) -> WriteAnswer | None:
        """Returns what an earlier attempt of the request has applied to a bucket. None: nothing. Hold the mutex."""
        identity = self._preconditions.identity
        return None if identity is None else await live.find_answer(bucket, identity)

    async def _check_unchanged(self, live: LiveBucket, bucket: Bucket, part: BucketRows, done: int) -> None:
        """Raises WriteConflict if a key of a part has changed; skips the first `done` rows, applied earlier."""
        assert self._preconditions.unchanged_since is not None
        if done == len(part.keys):
            return
        offset = self._preconditions.unchanged_since.get(part.bucket)
        if offset is None:
            raise InvalidRequest(
                f"the request has keys of bucket {part.bucket}, but no version of it: read these keys, and give the "
                "log offsets of that read",
                bucket=part.bucket,
            )
        keys = part.key_array.slice(done)
        changed = await live.run(changed_keys, bucket, offset, keys, self._scope.table.codec)
        if len(changed):
            raise WriteConflict(
                f"{live.location}: {len(changed)} of {counted(len(keys), 'key')} changed after offset {offset}; "
                "nothing was written: read again",
                table=live.table,
                bucket=part.bucket,
                keys=len(changed),
            )

    def _live(self, part: BucketRows) -> LiveBucket:
        return self._scope.table.buckets[part.bucket]


@contextmanager
def _steps_of(live: LiveBucket) -> Iterator[None]:
    """Sees to a sync of the steps of a request that fails or is cancelled between two of them."""
    try:
        yield
    except BaseException:
        live.abandon_steps()
        raise
