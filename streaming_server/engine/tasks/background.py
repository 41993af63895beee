"""Background tasks of a server, from `start` to `close`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

_log: Final = logging.getLogger(__name__)


class Background:
    """Runs coroutines from `start` to `close`. Bound to the event loop.

    Args:
        *work: Functions that each make one coroutine.
    """

    def __init__(self, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts all tasks."""
        self._tasks = [asyncio.create_task(work()) for work in self._work]

    async def close(self) -> None:
        """Cancels the tasks, if they were started, and returns once all have ended, steps in threads included."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def repeat(seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    """Repeats a step, with a pause before each.

    Rule: an unexpected error of a step is logged, and does not stop the repetition.

    Args:
        seconds: The pause.
        step: The step. It handles expected errors itself.
    """
    while True:
        await asyncio.sleep(seconds)
        try:
            await step()
        except Exception:
            _log.exception("%s failed, and is tried again in %g s", getattr(step, "__qualname__", step), seconds)
