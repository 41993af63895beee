"""Pins a view of a table: checkpoints of all its buckets, made while their writers are paused."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import SnapshotNotTaken
from streaming_server.engine.bucket.call_point import now_of
from streaming_server.engine.bucket.holds import CURRENT_HOLD
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_durable
from streaming_server.engine.columnar.base_adoption import adopt_bases
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.storage.snapshots.pinned_base import link_base

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.scan.columnar.base_view import BaseView
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_state import BucketState

MAX_HOLD_SECONDS = 1.0
MAX_NET_BYTES: Final = 64 << 20
"""The most bytes of a delta. A view keeps no columnar base of a bucket with a larger delta."""
_RETRY_SECONDS = 1.0
# Few, so that writers find a free thread during the flushes.
_FLUSHES_AT_ONCE = 2

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedStates:
    """One instant of a table.

    Attributes:
        definition: The table's definition at the instant.
        states: The state of each bucket at the instant.
        view_micros: The instant, in microseconds since 1970 UTC.
        write_pause_micros: How long writers were paused to take it.
        bases: The columnar bases that the view has files of, by bucket.
    """

    definition: TableDefinition
    states: Mapping[int, BucketState]
    view_micros: int
    write_pause_micros: int
    bases: Mapping[int, BaseView]


class ViewPinner:
    """Takes views of one table, one at a time. Bound to the server's event loop.

    Args:
        table: The table.
    """

    def __init__(self, table: TableState) -> None:
        self.table = table
        self._clock = table.clock
        self._buckets = [*table.buckets]
        self._executor = table.executor
        self._lock = asyncio.Lock()
        self._closed: ScanKvError | None = None
        self._leftovers: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def exclude_others(self) -> AsyncIterator[None]:
        """Ensures that no other view of the table is taken during the block, and that the table is not closed."""
        async with self._lock:
            if self._closed is not None:
                raise copy(self._closed)
            yield

    async def offsets(self) -> dict[int, int]:
        """Returns the log offset of every bucket at one instant, durable or not. Opens the buckets."""
        async with lock_buckets(self._buckets) as opened:
            return {live.number: bucket.state.log_offset for live, bucket in opened}

    async def cut(
        self,
        paths: Sequence[Path],
        definition: Callable[[], TableDefinition],
        *,
        base_paths: Sequence[Path] | None = None,
        log_owner: str = "",
        max_hold_seconds: float,
    ) -> PinnedStates:
        """Makes checkpoints of all buckets as of one instant, durable when it returns. Call it in `exclude_others`.

        Flushes most of what is not yet in SST files before it pauses writers. When this fails or is cancelled, a
        thread may still be working on a checkpoint: remove what exists of the checkpoints with `discard_later`.

        Args:
            paths: The directory of each bucket's checkpoint. It must not exist; its parent must.
            definition: Returns the table's current definition.
            base_paths: The directory of each bucket's columnar base, as `paths`. None: bases are not kept.
            log_owner: The owner of the retention hold on the changes from the instant on. Empty: no hold. The caller
                releases it, also when this fails.
            max_hold_seconds: For how long writers may be paused.

        Raises:
            SnapshotNotTaken: Writers would have been paused for longer.
            DataLoss: A bucket is damaged.
        """
        if base_paths is not None and CURRENT_HOLD.get() is None:
            await adopt_bases(self.table, self._buckets)
        if CURRENT_HOLD.get() is None:
            await self.flush()
        cut = await self._checkpoints(paths, base_paths or (), definition, log_owner, max_hold_seconds)
        await wait_until_durable(self.table.buckets, cut.states)
        return cut

    async def flush(self) -> None:
        """Flushes every bucket, and then those that were written to in the meantime, so that few writes remain."""
        async with lock_buckets(self._buckets) as opened:
            chosen = list(opened)
        for _ in range(2):
            before = [bucket.state.log_offset for _, bucket in chosen]
            places = asyncio.Semaphore(_FLUSHES_AT_ONCE)
            await all_ended(_flush_one(live, bucket, places) for live, bucket in chosen)
            chosen = [one for one, offset in zip(chosen, before, strict=True) if one[1].state.log_offset != offset]

    async def _checkpoints(
        self,
        paths: Sequence[Path],
        base_paths: Sequence[Path],
        definition: Callable[[], TableDefinition],
        log_owner: str,
        max_hold_seconds: float,
    ) -> PinnedStates:
        clock, hold = asyncio.get_running_loop().time, CURRENT_HOLD.get()
        for live in self._buckets if hold is None else ():
            # Before the first mutex is held: a transaction may take long, and must not add to the pause of writers.
            await live.mutex.wait_for_barrier()
        async with AsyncExitStack() as mutexes:
            if hold is None:
                await mutexes.enter_async_context(self._buckets[0].mutex)
            else:
                await mutexes.enter_async_context(hold.use(self._buckets))
            started = clock()
            try:
                async with asyncio.timeout_at(started + max_hold_seconds):
                    for live in self._buckets[1:] if hold is None else ():
                        await mutexes.enter_async_context(live.mutex)
                    opened = [await live.open() for live in self._buckets]
                    states = {live.number: bucket.state for live, bucket in zip(self._buckets, opened, strict=True)}
                    if log_owner:
                        # While all mutexes are held, so that nothing is trimmed between the view and its hold.
                        for live in self._buckets:
                            live.retain_log(log_owner, states[live.number].log_offset)
                    instant, now = definition(), now_of(self._clock)
                    numbers = (live.number for live in self._buckets)
                    to_link = dict(zip(numbers, base_paths, strict=True)) if base_paths else {}
                    bases = self._bases() if base_paths else {}
                    await self._make_checkpoints(opened, paths)
                    # While writers are paused, because a base is removed only after another one has replaced it.
                    await self._executor.run(_link, bases, to_link)
            except TimeoutError:
                raise SnapshotNotTaken(
                    f"taking a snapshot of {self._buckets[0].table} paused its writers for {clock() - started:.1f} s "
                    f"and was not done with its {len(self._buckets)} buckets: writers continue, and no snapshot was "
                    "taken; try again when the server has less load, or create the table with fewer buckets",
                    retry_after=_RETRY_SECONDS,
                    table=self._buckets[0].table,
                ) from None
            write_pause_micros = int((clock() - started) * 1_000_000)
        return PinnedStates(
            definition=instant, states=states, view_micros=now, write_pause_micros=write_pause_micros, bases=bases
        )

    def _bases(self) -> dict[int, BaseView]:
        """Returns the current bases of the buckets, if their files have no other rows and the delta can be copied."""
        views = {live.number: live.columnar.view(however_long=True) for live in self._buckets}
        return {
            number: view
            for number, view in views.items()
            if view and view.base.info.rows == view.base.file_rows and view.delta.nbytes <= MAX_NET_BYTES
        }

    async def _make_checkpoints(self, opened: Sequence[Bucket], paths: Sequence[Path]) -> None:
        """Makes the checkpoints. If cancelled, it ends at once; the current checkpoint ends later in its thread."""

        async def make() -> None:
            # One after another, because a RocksDB checkpoint holds the interpreter lock for about 2 ms. More threads
            # would not be faster, and would leave the event loop no turn in between.
            for live, bucket, path in zip(self._buckets, opened, paths, strict=True):
                await live.run(bucket.checkpoint, path)

        making = asyncio.create_task(make())
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            making.cancel()
            self._remember(_wait_for_end(making))
            raise

    def discard_later(self, discard: Callable[[], None]) -> None:
        """Removes the files of a failed `cut` by `discard`, in a thread, once no other thread works on them."""
        working = list(self._leftovers)

        async def remove() -> None:
            if working:
                await asyncio.wait(working)
            try:
                await self._executor.run(discard)
            except OSError as error:
                _log.warning("the files of a failed snapshot cannot be removed before the next start: %s", error)

        self._remember(remove())

    def _remember(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)

    async def close(self, reason: ScanKvError) -> None:
        """Refuses further views with `reason`. Returns once no work on the buckets is left."""
        self._closed = reason
        async with self._lock:
            while self._leftovers:
                await asyncio.wait(list(self._leftovers))


def _link(bases: dict[int, BaseView], paths: Mapping[int, Path]) -> None:
    for number, view in list(bases.items()):
        try:
            link_base(view.base.path, paths[number])
        except OSError as error:
            _log.warning("a snapshot is taken without the columnar base of %s: %s", view.location, error)
            del bases[number]


async def _flush_one(live: LiveBucket, bucket: Bucket, places: asyncio.Semaphore) -> None:
    async with places:
        # Without the mutex, so that writers continue.
        async with live.maintenance:
            if live.open_bucket is bucket:
                await live.run(bucket.flush)


async def _wait_for_end(making: asyncio.Task[None]) -> None:
    await asyncio.wait([making])
    if not making.cancelled():
        making.exception()
