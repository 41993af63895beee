"""Group commit: all requests that wait for durability of one bucket share the syncs of its write-ahead log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.engine.tasks.executor import StorageExecutor


class GroupCommit:
    """Knows up to which offset one bucket is durable, and makes it durable further when somebody waits.

    Bound to the running event loop.

    Args:
        written: The offset up to which the bucket has been written, now.
        sync: Makes everything below an offset, already written, durable; blocks.
        executor: Runs `sync`.
        durable: The offset up to which the bucket is durable at the start.

    Attributes:
        syncing: Held while a sync runs; whoever holds it keeps the next one from beginning.
        syncs: How many there were.
        failure: Why the last one has failed: everybody who waits gets that, until `resume`.
    """

    def __init__(
        self, *, written: Callable[[], int], sync: Callable[[int], None], executor: StorageExecutor, durable: int
    ) -> None:
        self._written = written
        self._sync = sync
        self._executor = executor
        self._durable = durable
        self._paused = False
        self._running: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self._listeners: set[Callable[[], None]] = set()
        # Held while a sync runs.
        self.syncing = asyncio.Lock()
        self.syncs = 0

    @property
    def durable(self) -> int:
        """Everything below this offset survives a power failure."""
        return self._durable

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called whenever more has become durable, until the function returned is called."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def notify(self) -> None:
        """Calls the listeners."""
        for listener in list(self._listeners):
            listener()

    @property
    def is_idle(self) -> bool:
        """Whether nobody listens, no sync runs, and none has failed."""
        return not self._listeners and self._running is None and self.failure is None

    def pause(self) -> None:
        """Takes notice that all that was written is durable, and that nothing is written until `resume`."""
        self._durable, self._paused = self._written(), True

    def resume(self, *, written: Callable[[], int], sync: Callable[[int], None], durable: int) -> None:
        """Goes on with a bucket that was opened again, of which so much is durable; listeners stay.

        Rule: it has all that was written before. So who waits still for a write of before is told the truth.
        """
        self._written, self._sync, self._durable, self._paused = written, sync, durable, False
        self.failure = None

    async def wait(self, offset: int) -> None:
        """Returns once everything below `offset`, which has been written, is durable.

        A waiter joins the sync that runs only when that began after its write; else it takes part in the next. After a
        sync has failed, every wait fails with its error until the bucket is opened again.
        """
        while self._durable < offset and not self._paused:
            if self.failure is not None:
                raise self.failure
            if self._running is None:
                self._running = asyncio.create_task(self._run())
            # Shielded: one waiter that gives up must not take the sync from the others.
            await asyncio.shield(self._running)

    async def wait_written(self) -> None:
        """Returns once everything that is written now is durable, also what took no offset. Fails as `wait` does."""
        if self._running is not None:
            # It may have begun before the write.
            await asyncio.shield(self._running)
        if self.failure is None and not self._paused:
            self._running = self._running or asyncio.create_task(self._run())
            await asyncio.shield(self._running)
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        try:
            async with self.syncing:
                target = self._written()
                await self._executor.run(self._sync, target)
            self._durable = target
            self.syncs += 1
            self.notify()
        except Exception as error:
            # Once a sync has failed, the system may report the next one as done without having written: never trust it.
            self.failure = self.failure or error
        finally:
            self._running = None

    async def close(self, reason: BaseException) -> None:
        """Lets no further sync begin: who waits, or will wait, gets `reason`. Returns once none is running."""
        self.failure = reason
        if self._running is not None:
            await asyncio.wait([self._running])
