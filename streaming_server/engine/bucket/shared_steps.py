"""Shared steps: requests that wait for the same bucket are applied together, in one thread and mostly with one sync.

A client sends its concurrent calls for single rows as one request. Several clients send several requests. If each of
them changed threads and synced by itself, 16 clients would write hardly more rows per second than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket

_MOST_STEPS: Final = 64
"""How many steps are applied with the mutex held once. More would keep readers waiting for over 20 ms."""


class _WaitingStep:
    """A step that waits for the bucket, or is being applied."""

    def __init__(self, prepare: Callable[[Bucket], Callable[[], None] | None]) -> None:
        self.prepare = prepare
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: Exception | None = None) -> None:
        """Wakes the caller of the step."""
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class SharedSteps:
    """Applies the steps of one bucket that wait at the same time together. Bound to the event loop.

    The first caller applies its own step and those that have arrived before it gets the mutex. A task applies those
    that arrive in the meantime.

    Args:
        live: The bucket.
    """

    def __init__(self, live: LiveBucket) -> None:
        self._live = live
        self._waiting: deque[_WaitingStep] = deque()
        self._is_led = False
        self._leader: asyncio.Task[None] | None = None

    async def apply(self, prepare: Callable[[Bucket], Callable[[], None] | None]) -> None:
        """Applies a step, and returns once it is applied. The caller then waits until it is durable.

        A caller that is cancelled while its step is applied waits for the end, because what it holds protects the step.

        Args:
            prepare: Called on the event loop with the open bucket and the mutex held. Returns the function that applies
                the step in a thread, which raises nothing; or None if nothing is to be applied.

        Raises:
            Exception: What `prepare` has raised, or why the bucket cannot be used.
        """
        step = _WaitingStep(prepare)
        self._waiting.append(step)
        if not self._is_led:
            self._is_led = True
            try:
                await self._apply_waiting()
            finally:
                # Only a caller that was cancelled leaves its step.
                if not step.done.done() and step in self._waiting:
                    self._waiting.remove(step)
                if self._waiting:
                    self._leader = asyncio.create_task(self._lead())
                else:
                    self._is_led = False
        cancelled: asyncio.CancelledError | None = None
        while not step.done.done():
            try:
                await asyncio.shield(step.done)
            except asyncio.CancelledError as error:
                if step in self._waiting:
                    self._waiting.remove(step)
                    raise
                cancelled = error
            except Exception:
                break
        try:
            if cancelled is not None:
                step.done.exception()
                raise cancelled
            step.done.result()
        finally:
            del cancelled, step

    async def _lead(self) -> None:
        try:
            while self._waiting:
                await self._apply_waiting()
        finally:
            self._is_led = False

    async def _apply_waiting(self) -> None:
        """Applies the steps that wait once the mutex is acquired, at most `_MOST_STEPS`."""
        try:
            async with self._live.mutex:
                bucket = await self._live.open()
                await self._apply_steps(bucket, self._take())
        except Exception as error:
            # From the mutex or the opening. Nothing else would wake the callers.
            for step in self._take():
                step.end(copy(error))

    def _take(self) -> list[_WaitingStep]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_STEPS))]

    async def _apply_steps(self, bucket: Bucket, steps: Iterable[_WaitingStep]) -> None:
        prepared: list[_WaitingStep] = []
        functions: list[Callable[[], None]] = []
        for step in steps:
            try:
                function = step.prepare(bucket)
            except Exception as error:
                step.end(error)
                continue
            if function is None:
                step.end()
            else:
                prepared.append(step)
                functions.append(function)
        if not functions:
            return
        failure: Exception | None = None
        try:
            await self._live.write(_run_all, functions)
        except Exception as error:
            failure = error
        finally:
            # Also if the caller who leads was cancelled: the thread has ended by then.
            for step in prepared:
                step.end(None if failure is None else copy(failure))


def _run_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()
