"""One write request: checked in all its buckets, then applied to each, once however often it is repeated."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, WriteConflict
from streaming_server.engine.bucket.locking import lock_buckets
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.writes.bucket_steps import apply_rows, step_rows
from streaming_server.engine.writes.changed_keys import changed_keys
from streaming_server.storage.bucket.writer_states import WriteStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from scankv.model.changes.log_offsets import LogOffsets
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.engine.merging.prepared_rows import PreparedRows
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.writer_states import WriteAnswer, WriteIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePreconditions:
    """On what terms a request writes.

    Attributes:
        identity: Which request of which writer it is. None: repeating it applies it again.
        unchanged_since: Nothing is written if one of its keys has changed since these offsets. None: always.
        column_locks: The ids of the column locks that its writer has.
        undo_as: Who the changelog says has made the changes of an undo. None: the writer, if it was opened.
    """

    identity: WriteIdentity | None = None
    unchanged_since: LogOffsets | None = None
    column_locks: frozenset[str] = frozenset()
    undo_as: str | None = None

    @property
    def noted_as(self) -> str | None:
        """Who the changelog says has made the changes. None: it does not say."""
        if self.undo_as is not None or self.identity is None:
            return self.undo_as
        return self.identity.writer if self.identity.epoch else None


NO_PRECONDITIONS: Final = WritePreconditions()
"""Those of a request that is written in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteScope:
    """What a request writes to.

    Attributes:
        table: The table.
        merger: Merges rows of the table as of now.
        admitted: Keeps from the request's columns whoever wants to lock them, for as long as it is entered; raises
            ColumnLocked when somebody has.
    """

    table: TableState
    merger: Callable[[], Merger]
    admitted: Callable[[], AbstractContextManager[None]]


class WriteOperation:
    """One request on its way into its buckets.

    Args:
        parts: Its rows by bucket, ascending. A repeated request has the same ones.
        terms: On what terms they are written.
        scope: What they are written to.
    """

    def __init__(self, parts: Sequence[PreparedRows], terms: WritePreconditions, scope: WriteScope) -> None:
        self._parts = parts
        self._terms = terms
        self._scope = scope
        self._done: dict[int, int] = {}
        self._offsets: dict[int, int] = {}

    async def run(self) -> dict[int, int]:
        """Returns once all is durable: by bucket the next offset behind the request, when it was applied.

        What is refused, or damaged, is found before anything is written.

        Raises:
            WriterFenced, WriterExpired, TooManyWriters: See `Bucket.find_answer`.
            ColumnLocked: Somebody else has locked a column of it.
            WriteConflict: A key of it has changed.
            InvalidRequest, PositionExpired, PositionOutOfRange: Whether one has cannot be told.
            InvalidRequest, RequestTooLarge, DataLoss: As for `apply_rows`; steps before may have been applied.
        """
        with ExitStack() as admitted:
            async with lock_buckets([self._live(part) for part in self._parts]) as opened:
                answers = [await self._answer(live, bucket) for live, bucket in opened]
                if not all(answer is not None and answer.complete for answer in answers):
                    admitted.enter_context(self._scope.admitted())
                if self._terms.unchanged_since is not None:
                    for (live, bucket), part, answer in zip(opened, self._parts, answers, strict=True):
                        await self._check_unchanged(live, bucket, part, 0 if answer is None else answer.rows)
                    # With all the mutexes still held: nothing comes between what was checked and what is written.
                    for (live, bucket), part in zip(opened, self._parts, strict=True):
                        while not await self._step(live, bucket, part):
                            pass
            await all_ended(map(self._write_bucket, self._parts))
        return self._offsets

    async def _write_bucket(self, part: PreparedRows) -> None:
        live, whole = self._live(part), False
        while not whole and self._done.get(part.bucket) != len(part.keys):
            async with live.mutex:
                whole = await self._step(live, await live.open(), part)
        if self._scope.table.codec.rows.hidden:
            # What is hidden beside a row may have changed without an offset.
            await live.wait_written()
        await live.wait_durable(self._offsets[part.bucket])

    async def _step(self, live: LiveBucket, bucket: Bucket, part: PreparedRows) -> bool:
        """Applies the next rows of a part with one WriteBatch; whether all are applied. Hold the mutex."""
        answer = await self._answer(live, bucket)
        if answer is not None and answer.complete:
            self._offsets[part.bucket] = answer.offset
            return True
        done, count = self._done.get(part.bucket, 0) if answer is None else answer.rows, len(part.keys)
        if done >= count:
            raise InvalidRequest("a request was repeated with other rows: each needs a sequence of its own")
        merger = self._scope.merger()
        behind, identity = min(done + step_rows(bucket.state, len(merger.codec.indexes)), count), self._terms.identity
        step = None if identity is None else WriteStep(identity=identity, rows=behind, complete=behind == count)
        rows, writer = part.slice(done, behind - done), self._terms.noted_as
        await live.run(apply_rows, live, bucket, rows, merger, step, writer)
        self._done[part.bucket], self._offsets[part.bucket] = behind, bucket.state.log_offset
        return behind == count

    async def _answer(self, live: LiveBucket, bucket: Bucket) -> WriteAnswer | None:
        """How far an earlier attempt of the request has come in a bucket. Hold the mutex."""
        identity = self._terms.identity
        if identity is None:
            return None
        if bucket.writers.is_cached(identity.writer):
            return bucket.find_answer(identity)
        return await live.run(bucket.find_answer, identity)

    async def _check_unchanged(self, live: LiveBucket, bucket: Bucket, part: PreparedRows, done: int) -> None:
        """Raises WriteConflict when a key of a part, of which so many rows were applied earlier, has changed."""
        assert self._terms.unchanged_since is not None
        if done == len(part.keys):
            return
        offset = self._terms.unchanged_since.get(part.bucket)
        if offset is None:
            raise InvalidRequest(
                f"the request has keys of bucket {part.bucket}, and no version of it: read these keys, and give the "
                "log offsets of that",
                bucket=part.bucket,
            )
        keys = part.keys.slice(done)
        changed = await live.run(changed_keys, bucket, offset, keys, self._scope.table.codec)
        if len(changed):
            raise WriteConflict(
                f"{live.location}: {len(changed)} of {len(keys)} keys have changed since offset {offset}; nothing was "
                "written: read them again",
                table=live.table,
                bucket=part.bucket,
                keys=len(changed),
            )

    def _live(self, part: PreparedRows) -> LiveBucket:
        return self._scope.table.buckets[part.bucket]
