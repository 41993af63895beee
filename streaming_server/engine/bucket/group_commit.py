"""Group commit: all requests that wait for durability of one bucket share the syncs of its write-ahead log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.engine.tasks.executor import StorageExecutor

_STEPS_PER_SYNC: Final = 4
"""How many steps of one request share a sync that runs while the next step is applied. More would leave more to sync
at the end of the request. Fewer would take more processor time: a sync takes as much as a tenth of a step."""


class GroupCommit:
    """Tracks up to which offset a bucket is durable, and syncs when a request waits for more.

    Bound to the running event loop.

    Args:
        written: Returns the offset up to which the bucket has been written.
        sync: Makes everything below a written offset durable. Blocks.
        executor: Runs `sync`.
        durable: The offset up to which the bucket is durable at the start.

    Attributes:
        syncing: Held while a sync runs. Its holder keeps the next sync from beginning.
        syncs: The number of syncs.
        failure: Why the last sync failed. All waiting requests get this error, until `resume`.
    """

    def __init__(
        self, *, written: Callable[[], int], sync: Callable[[int], None], executor: StorageExecutor, durable: int
    ) -> None:
        self._written = written
        self._sync = sync
        self._executor = executor
        self._durable = durable
        self._paused = False
        self._unsynced_steps = 0
        self._running: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self._listeners: set[Callable[[], None]] = set()
        # Held while a sync runs.
        self.syncing = asyncio.Lock()
        self.syncs = 0

    @property
    def durable(self) -> int:
        """The offset below which everything survives a power failure."""
        return self._durable

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener whenever more is durable. Returns a function that removes the listener."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def notify(self) -> None:
        """Calls the listeners."""
        for listener in list(self._listeners):
            listener()

    @property
    def is_idle(self) -> bool:
        """Whether there is no listener, no running sync, and no failure."""
        return not self._listeners and self._running is None and self.failure is None

    def pause(self) -> None:
        """Stops syncs until `resume`. Call it when everything written is durable, and write nothing until `resume`."""
        self._durable, self._paused = self._written(), True

    def resume(self, *, written: Callable[[], int], sync: Callable[[int], None], durable: int) -> None:
        """Resumes with a reopened bucket, which is durable up to an offset. Listeners stay.

        Rule: the reopened bucket has all earlier writes. Otherwise, requests that wait for these writes would report
        lost writes as durable.
        """
        self._written, self._sync, self._durable, self._paused = written, sync, durable, False
        self.failure = None

    @property
    def can_sync(self) -> bool:
        """Whether a sync would begin at once."""
        return self._running is None and self.failure is None and not self._paused and not self.syncing.locked()

    async def write_and_sync(
        self, write: Callable[..., None], *args: object, may_sync: Callable[[], bool] = lambda: True
    ) -> None:
        """Runs a write in a thread, and a sync right after it in the same thread, which saves a change of threads.

        Call it if `can_sync`. A failed sync is recorded as that of any other, so `wait` raises it.

        Args:
            write: The write.
            args: Its arguments.
            may_sync: Called in the thread after the write. If it returns False, `wait` syncs.
        """
        durable: int | None = None

        def write_then_sync() -> None:
            nonlocal durable
            write(*args)
            target = self._written()
            if target > self._durable and may_sync():
                try:
                    self._sync(target)
                except Exception as error:
                    self.failure = self.failure or error
                    return
                durable = target

        async with self.syncing:
            try:
                await self._executor.run(write_then_sync)
            finally:
                # Also for a caller that was cancelled, who has waited for the end of the thread.
                if durable is not None:
                    self._durable, self._unsynced_steps = durable, 0
                    self.syncs += 1
                    self.notify()

    def record_step(self) -> None:
        """Records a written step of a request that continues. Every few steps, a sync begins in the background.

        Its failure is raised by `wait`.
        """
        self._unsynced_steps += 1
        if self._unsynced_steps >= _STEPS_PER_SYNC:
            self.begin()

    def abandon_steps(self) -> None:
        """Begins a sync of recorded steps, because their request ends without a wait for them.

        Otherwise, streams of changes would return these steps only after a later write.
        """
        if self._unsynced_steps:
            self.begin()

    def begin(self) -> None:
        """Begins a sync in the background, after the running one if there is one. Its failure is raised by `wait`."""
        self._unsynced_steps = _STEPS_PER_SYNC
        if self.can_sync:
            self._running = asyncio.create_task(self._run())

    def is_durable(self, offset: int) -> bool:
        """Whether everything below a written offset is durable."""
        return self._durable >= offset or self._paused

    async def wait(self, offset: int) -> None:
        """Returns once everything below a written offset is durable.

        A waiter shares the running sync only if that began after its write. Otherwise it shares the next one. After a
        failed sync, every wait fails with its error until the bucket is reopened.
        """
        while not self.is_durable(offset):
            if self.failure is not None:
                raise self.failure
            if self._running is None:
                self._running = asyncio.create_task(self._run())
            # Shielded, because a waiter that is cancelled must not cancel the sync of the others.
            await asyncio.shield(self._running)

    async def wait_written(self) -> None:
        """Returns once everything written so far is durable, even writes without an offset. Fails as `wait` does."""
        if self._running is not None:
            # The running sync may have begun before the write.
            await asyncio.shield(self._running)
        if self.failure is None and not self._paused:
            self._running = self._running or asyncio.create_task(self._run())
            await asyncio.shield(self._running)
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        try:
            async with self.syncing:
                target, self._unsynced_steps = self._written(), 0
                await self._executor.run(self._sync, target)
            self._durable = target
            self.syncs += 1
            self.notify()
        except Exception as error:
            # After a failed sync, the system may report the next one as done without having written. Never trust it.
            self.failure = self.failure or error
        finally:
            self._running = None
        if self._unsynced_steps >= _STEPS_PER_SYNC and self.can_sync:
            self._running = asyncio.create_task(self._run())

    async def close(self, reason: BaseException) -> None:
        """Ends all syncs: requests that wait, or will wait, get `reason`. Returns once no sync is running."""
        self.failure = reason
        if self._running is not None:
            await asyncio.wait([self._running])
