"""The commit barrier: delays readers and writers of the buckets that a transaction is being applied to.

While a barrier is raised, acquiring a bucket's mutex waits for it, so that nothing begins to read or write half a
transaction. Lookups, and requests that only ask for statistics, get the buckets as of the moment when the barrier was
raised. The barrier is lifted for all of its buckets at the same instant.

If other worker processes raise barriers for the same transaction, no instant is the same for all of them. Then lookups
wait, too, so that none returns what was before the transaction after another one has returned what is after it.

Reads with the isolation `read_latest` pass the barrier: they read what is applied between two steps of the transaction.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Final

from scankv.model.errors import Unavailable
from streaming_server.engine.tasks.executor import all_ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from scankv.model.errors import ScanKvError
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket

_OPENED_TOGETHER: Final = 32
"""After so many buckets, the time is looked at."""
_RETRY_SECONDS: Final = 0.1


class CommitBarrier:
    """One barrier before some buckets. Bound to the event loop.

    Attributes:
        delays_lookups: Whether lookups wait for it.
    """

    def __init__(self, *, delays_lookups: bool = False) -> None:
        self.delays_lookups = delays_lookups
        self._lifted = asyncio.Event()
        self._failure: ScanKvError | None = None

    async def wait(self) -> None:
        """Returns once the barrier is lifted. Raises the error that `fail` was given."""
        await self._lifted.wait()
        if self._failure is not None:
            raise copy(self._failure)

    @property
    def failure(self) -> ScanKvError | None:
        """Why the barrier will never be lifted. None: it will be lifted."""
        return self._failure

    def lift(self) -> None:
        """Lets all waiting callers continue."""
        self._lifted.set()

    def fail(self, error: ScanKvError) -> None:
        """Raises an error in all callers that wait, or will wait."""
        self._failure = error
        self._lifted.set()


class BarrierMutex(asyncio.Lock):
    """A bucket's mutex, which nothing acquires while a commit barrier is raised.

    A holder whose write is applied, and who only waits for the sync, shares the mutex with readers of what is applied.

    Attributes:
        barrier: The barrier before the bucket. None: no barrier is raised.
        is_shared: Whether the holder changes nothing any more, and only waits for a sync.
        latest_readers: How many readers must not wait for a sync. While there are any, no holder begins one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.barrier: CommitBarrier | None = None
        self.is_shared = False
        self._sharers = 0
        self._is_release_due = False
        self.latest_readers = 0

    @property
    def failure(self) -> ScanKvError | None:
        """Why the mutex can never be acquired. None: it can."""
        return None if self.barrier is None else self.barrier.failure

    @property
    def has_waiters(self) -> bool:
        """Whether a caller waits for the mutex, which is held."""
        return bool(self._waiters)

    async def acquire(self) -> bool:  # type: ignore[override]  # typeshed has Literal[True]
        """Acquires the mutex once no barrier is raised. Raises the error that the barrier failed with."""
        while True:
            await self.wait_for_barrier()
            await super().acquire()
            if self.barrier is None:
                return True
            self.release()

    def acquire_now(self) -> bool:
        """Acquires the mutex, whether or not a barrier is raised, if that takes no waiting. Returns whether it did."""
        if self.locked() or self._waiters:
            return False
        self._locked = True
        return True

    async def acquire_behind_barrier(self) -> None:
        """Acquires the mutex whether or not a barrier is raised."""
        await super().acquire()

    async def wait_for_barrier(self) -> None:
        """Returns once no barrier is raised. Another one may be raised right after."""
        while self.barrier is not None:
            await self.barrier.wait()

    @asynccontextmanager
    async def bypass_barrier(self) -> AsyncIterator[None]:
        """Acquires the mutex whether or not a barrier is raised. For the transaction itself."""
        await self.acquire_behind_barrier()
        try:
            yield
        finally:
            self.release()

    @asynccontextmanager
    async def look_up(self) -> AsyncIterator[None]:
        """Acquires the mutex as soon as no barrier delays lookups. For readers of the bucket as of before the barrier.

        Raises:
            ScanKvError: The barrier has failed, so the bucket lacks rows.
        """
        while True:
            while self.barrier is not None and self.barrier.delays_lookups:
                await self.barrier.wait()
            async with self.bypass_barrier():
                if (failure := self.failure) is not None:
                    raise copy(failure)
                if self.barrier is None or not self.barrier.delays_lookups:
                    yield
                    return

    def begin_sync(self) -> bool:
        """Returns whether the holder, whose write is applied, may sync with the mutex held. Called in its thread.

        From then on until `end_sync`, readers share the mutex.
        """
        # In this order, since `read_latest` counts its reader before it reads this: one of the two sees the other.
        self.is_shared = True
        if self.latest_readers:
            self.is_shared = False
        return self.is_shared

    def end_sync(self) -> None:
        """Lets no further reader share the mutex."""
        self.is_shared = False

    def release(self) -> None:
        """Releases the mutex, or lets the last reader that shares it do so."""
        if self._sharers:
            self._is_release_due = True
        elif self._waiters:
            super().release()
        else:
            self._locked = False

    @asynccontextmanager
    async def read_latest(self) -> AsyncIterator[None]:
        """Keeps the bucket from changing for the length of the block, whether or not a barrier is raised.

        Waits for the step of a write or a transaction, but not for its sync. The block must not write.

        Raises:
            ScanKvError: The barrier has failed, so the bucket lacks rows.
        """
        self.latest_readers += 1
        try:
            shares = self.is_shared
            if shares:
                self._sharers += 1
            else:
                await super().acquire()
        finally:
            self.latest_readers -= 1
        try:
            if (failure := self.failure) is not None:
                raise copy(failure)
            yield
        finally:
            if shares:
                self._sharers -= 1
            if not shares or (self._is_release_due and not self._sharers):
                self._is_release_due = False
                self.release()


@asynccontextmanager
async def lock_latest(buckets: Sequence[LiveBucket]) -> AsyncIterator[None]:
    """Keeps some buckets from changing, as `BarrierMutex.read_latest`. They are given in ascending order."""
    async with AsyncExitStack() as mutexes:
        for live in buckets:
            await mutexes.enter_async_context(live.mutex.read_latest())
        yield


@asynccontextmanager
async def lock_mutexes(buckets: Sequence[LiveBucket]) -> AsyncIterator[None]:
    """Holds the mutexes of some buckets, which are given in ascending order.

    All callers lock in this order, so they cannot deadlock. While this waits for the barrier of one bucket, it holds
    no mutex, so that readers of the other buckets need not wait.
    """
    held: list[BarrierMutex] = []
    try:
        while True:
            mutexes = [live.mutex for live in buckets]
            for mutex in mutexes:
                if mutex.barrier is not None:
                    await mutex.wait_for_barrier()
            for mutex in mutexes:
                if not mutex.acquire_now():
                    await mutex.acquire_behind_barrier()
                held.append(mutex)
            if all(mutex.barrier is None for mutex in held):
                break
            _release(held)
        yield
    finally:
        _release(held)


@asynccontextmanager
async def lock_behind_barriers(buckets: Sequence[LiveBucket]) -> AsyncIterator[None]:
    """As `lock_mutexes`, but bypasses barriers. Only while no transaction is being applied to the buckets."""
    async with AsyncExitStack() as mutexes:
        for live in buckets:
            await mutexes.enter_async_context(live.mutex.bypass_barrier())
        yield


def _release(held: list[BarrierMutex]) -> None:
    while held:
        held.pop().release()


async def open_locked(buckets: Sequence[LiveBucket], *, within: float | None = None) -> list[Bucket]:
    """Opens some buckets, whose mutexes are held, as `LiveBucket.open`. Raises the first error once all have ended.

    Args:
        buckets: The buckets.
        within: After so many seconds, no other bucket is opened. None: all are opened, which takes 20 ms each.

    Raises:
        Unavailable: The time is over. Those that are open stay open, so the next attempt gets further.
    """
    ready = [live.open_now() for live in buckets]
    if None not in ready:
        return [bucket for bucket in ready if bucket is not None]
    closed = [live for live, bucket in zip(buckets, ready, strict=True) if bucket is None]
    ends = inf if within is None else time.monotonic() + within
    for first in range(0, len(closed), _OPENED_TOGETHER):
        if first and time.monotonic() >= ends:
            raise still_opening(buckets)
        await all_ended(live.open() for live in closed[first : first + _OPENED_TOGETHER])
    return [await live.open() for live in buckets]


def still_opening(buckets: Sequence[LiveBucket]) -> Unavailable:
    """Returns the error for a call that needs buckets of a table, not all of which are open yet."""
    return Unavailable(
        f"{sum(live.is_open for live in buckets):,} of {len(buckets):,} buckets of {buckets[0].table} are open so far, "
        "since few of them were used of late: try again, and the others are opened",
        retry_after=_RETRY_SECONDS,
        table=buckets[0].table,
    )


@asynccontextmanager
async def raise_barrier(buckets: Sequence[LiveBucket], *, delays_lookups: bool = False) -> AsyncIterator[CommitBarrier]:
    """Raises one barrier before some buckets, which are given in ascending order, at one instant.

    Lifts it at the end of the block, at one instant for all buckets except those that are blocked. During the block,
    `LiveBucket.before` of each bucket is its state as of that instant.

    Raises:
        DataLoss: A bucket is damaged. No barrier is raised.
    """
    barrier = CommitBarrier(delays_lookups=delays_lookups)
    async with lock_mutexes(buckets):
        opened = await open_locked(buckets)
        for live, bucket in zip(buckets, opened, strict=True):
            live.raise_barrier(barrier, bucket)
    try:
        yield barrier
    finally:
        served = [live for live in buckets if live.mutex.barrier is barrier]
        for live in served:
            live.lift_barrier()
        barrier.lift()
        for live in served:
            live.notify()
