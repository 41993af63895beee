"""`ContinuedStep`: a step of a reader that outlives the wait for it, so that a cancelled read loses nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Result = TypeVar("_Result")


class ContinuedStep(Generic[_Result]):
    """Runs one step at a time in a task. A wait that is cancelled leaves its step to the next wait.

    Dropping the object cancels the step, from any thread. So a step must not refer to what holds this object.
    """

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: asyncio.Task[_Result] | None = None

    def __del__(self) -> None:
        if self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # The event loop may be closed.
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def wait(self, start: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Returns the result of the step that continues. If no step does, `start` makes one.

        Raises:
            UsageError: The step was cancelled.
            Exception: What the step raised.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(start())
        if not self._task.done():
            await _wait_for_end(self._task)
        task, self._task = self._task, None
        if task.cancelled():
            raise UsageError("the scan was closed while it was being read")
        return task.result()

    def cancel(self) -> None:
        """Cancels the step, if one continues. Its event loop calls this."""
        if self._task is not None:
            self._task.cancel()


async def _wait_for_end(task: asyncio.Task[Any]) -> None:
    """Waits until a task has ended, and does not cancel it when the wait is cancelled."""
    ended = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not task.cancelled():
            task.exception()  # Marks it as retrieved, if no later wait follows.
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(end)
    await ended
