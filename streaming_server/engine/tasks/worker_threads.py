"""Threads that run work for the event loop: a pool as in `concurrent.futures`, for a third of its cost per call.

Nearly every call of the server changes threads, and a scan does so for every slice. `ThreadPoolExecutor` together with
`asyncio.wrap_future` takes 95 microseconds of processor time for that, and these threads take 30 (measured on CPython
3.11). They have no locks, because everything but the work itself runs on the event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ThreadWork(Generic[T]):
    """A piece of work, run by a thread. Bound to the event loop.

    Attributes:
        result: What the work has returned.
        error: What the work has raised.
        is_done: Whether it has ended, or has been cancelled.
    """

    result: T

    def __init__(self, function: Callable[..., T], args: tuple[object, ...], ended: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self.is_done = False
        self._function = function
        self._args = args
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        # The thread and `cancel` both try to remove the item, which only one of them can do.
        self._claim = [True]

    async def wait(self) -> None:
        """Returns once the work has ended, unless it `is_done` already. Cancelling this does not cancel the work."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def cancel(self) -> bool:
        """Cancels the work if no thread has begun it. Returns whether that is so."""
        if not self._take():
            return False
        self._end()
        return True

    def run(self) -> None:
        """Runs the work, in a thread, unless it was cancelled."""
        if not self._take():
            return
        try:
            self.result = self._function(*self._args)
        except BaseException as error:
            self.error = error
        # The arguments may be large, and the thread may take long to wake the loop.
        del self._function, self._args
        # The loop is closed only when no caller waits any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _take(self) -> bool:
        try:
            return self._claim.pop()
        except IndexError:
            return False

    def _end(self) -> None:
        self.is_done = True
        self._ended()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WorkerThreads:
    """A pool of threads, which are started when they are needed. Bound to the event loop.

    Args:
        count: The most threads.
        name: The beginning of their names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._threads: list[Thread] = []
        self._queue: SimpleQueue[ThreadWork[Any] | None] = SimpleQueue()
        self._unfinished = 0
        self._is_closed = False

    def submit(self, function: Callable[..., T], *args: object) -> ThreadWork[T]:
        """Hands work to the threads, which begin it in the order of these calls. Raises RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError("the threads have ended")
        work = ThreadWork(function, args, self._count_end)
        self._unfinished += 1
        if self._unfinished > len(self._threads) < self._count:
            # A daemon, so that a process that fails before it calls `close` can end.
            thread = Thread(target=_serve, args=(self._queue,), name=f"{self._name}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(work)
        return work

    def close(self) -> None:
        """Waits for submitted work and ends the threads. Blocks."""
        self._is_closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _count_end(self) -> None:
        self._unfinished -= 1


def _serve(queue: SimpleQueue[ThreadWork[Any] | None]) -> None:
    while (work := queue.get()) is not None:
        work.run()
        # Otherwise its result would live until the next piece of work.
        del work
