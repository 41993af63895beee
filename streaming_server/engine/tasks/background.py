"""Work that runs beside the calls of a server, from `start` to `close`."""

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
        *work: Functions that each make one of them.
    """

    def __init__(self, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts all of them."""
        self._tasks = [asyncio.create_task(work()) for work in self._work]

    async def close(self) -> None:
        """Cancels them, if they were started, and returns once they have ended: a step in a thread is not cut short."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def repeat(seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    """Takes a step again and again, with a pause before each.

    Rule: a step that fails as nobody expects is logged, and does not end those that come after it.

    Args:
        seconds: The pause.
        step: Handles the errors that are to be expected.
    """
    while True:
        await asyncio.sleep(seconds)
        try:
            await step()
        except Exception:
            _log.exception("%s failed, and is tried again in %g s", getattr(step, "__qualname__", step), seconds)
