"""Threads for blocking storage work, so that the event loop continues."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

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
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="storage")
        self._opening = ThreadPoolExecutor(max_workers=_OPENINGS_AT_ONCE, thread_name_prefix="opening")

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs `function` in a thread and returns its result.

        A caller that is cancelled after the work has begun still waits for its end, because it must not release what it
        holds, above all a mutex, while the thread works. Keep the work short.
        """
        return await self._in(self._pool, function, *args)

    async def run_opening(self, function: Callable[..., T], *args: object) -> T:
        """As `run`, for opening and closing files. These mostly wait for syncs, which the disk can combine."""
        return await self._in(self._opening, function, *args)

    async def _in(self, pool: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> T:
        work = pool.submit(function, *args)
        future = asyncio.wrap_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                if work.cancel():
                    raise
                cancelled = error
        if cancelled is not None:
            future.exception()
            try:
                raise cancelled
            finally:
                # Its traceback refers to this frame. The cycle would keep the result until the next garbage collection.
                del cancelled
        try:
            return future.result()
        finally:
            # As above: the frames of an error may hold megabytes of a refused request.
            del future, work

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        self._pool.shutdown()
        self._opening.shutdown()
