"""Threads for blocking storage work, so that the event loop continues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from streaming_server.engine.tasks.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")

_OPENINGS_AT_ONCE: Final = 16
"""How many buckets are opened or closed concurrently. With 24 threads, 64 buckets took half as long as with 4."""


async def all_ended(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Returns the results of all awaitables, in order, once all have ended. Raises the first error only then.

    So no work continues after its caller has released the mutex that protects the work.
    """
    several = list(awaitables)
    if len(several) == 1:
        # Awaited without a task, because a new task runs only after all other tasks that are ready.
        return [await several[0]]
    results = await asyncio.gather(*several, return_exceptions=True)
    good: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        good.append(result)
    return good


class StorageExecutor:
    """A small pool of threads for blocking work.

    Args:
        threads: The number of pieces of work that run at once.

    Attributes:
        large_reads: Hold it while a thread reads rows and until their memory is claimed.
    """

    def __init__(self, threads: int) -> None:
        self._threads = WorkerThreads(threads, "storage")
        # Twice the threads, so that a thread has its next read while the event loop takes the rows of the last one.
        self.large_reads = asyncio.Semaphore(2 * threads)
        self._opening = WorkerThreads(_OPENINGS_AT_ONCE, "opening")

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs `function` in a thread and returns its result.

        A caller that is cancelled after the work has begun still waits for its end, because it must not release what it
        holds, above all a mutex, while the thread works. Keep the work short.
        """
        return await self._in(self._threads, function, *args)

    async def run_opening(self, function: Callable[..., T], *args: object) -> T:
        """Like `run`, for opening and closing files. These mostly wait for syncs, which the disk can combine."""
        return await self._in(self._opening, function, *args)

    async def _in(self, threads: WorkerThreads, function: Callable[..., T], *args: object) -> T:
        work = threads.submit(function, *args)
        cancelled: asyncio.CancelledError | None = None
        while not work.is_done:
            try:
                await work.wait()
            except asyncio.CancelledError as error:
                if work.cancel():
                    raise
                cancelled = error
        # The work keeps neither its error nor its result. The traceback of the error refers to the work, and the cycle
        # would keep megabytes of a refused request until the next garbage collection. The thread may still refer to
        # the work as well.
        failure, work.error = work.error, None
        try:
            if cancelled is not None:
                raise cancelled
            if failure is not None:
                raise failure
            result = work.result
            del work.result
            return result
        finally:
            del work, failure, cancelled

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        self._threads.close()
        self._opening.close()
