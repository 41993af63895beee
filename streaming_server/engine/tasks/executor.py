"""The threads that blocking storage work runs in, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")

_OPENINGS_AT_ONCE: Final = 16
"""Buckets that are opened or closed at once: with 24 threads 64 of them took half of the time that they took with 4."""


async def all_ended(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all, in order, once all have ended; the first error among them is raised only then.

    So nothing goes on behind the caller's back, under a mutex that the caller has let go.
    """
    several = list(awaitables)
    if len(several) == 1:
        # Without a task for it, which would come to its turn only after whatever else is waiting for one.
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
        threads: How many pieces of work run at once.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="storage")
        self._opening = ThreadPoolExecutor(max_workers=_OPENINGS_AT_ONCE, thread_name_prefix="opening")

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs `function` in a thread and returns what it gives.

        A caller that is cancelled once the work has begun still waits for its end: what it holds meanwhile, a mutex
        above all, must not be let go while the thread works. Keep the work short.
        """
        return await self._in(self._pool, function, *args)

    async def run_opening(self, function: Callable[..., T], *args: object) -> T:
        """The same for opening and closing files, which mostly waits for syncs that the disk can join."""
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
                # Its traceback has this frame: together they would keep the result until the next garbage collection.
                del cancelled
        try:
            return future.result()
        finally:
            # As above: what a refused request was, megabytes of it, is in the frames of its error.
            del future, work

    def close(self) -> None:
        """Waits for running work and ends the threads."""
        self._pool.shutdown()
        self._opening.shutdown()
