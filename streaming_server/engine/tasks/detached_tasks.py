"""Tasks that run to completion even when their caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scankv.model.errors import ScanKvError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_CODES_OF_CLIENTS: Final = ("INVALID_ARGUMENT", "NOT_FOUND")

_log: Final = logging.getLogger(__name__)


class DetachedTasks:
    """Runs coroutines to completion. Bound to the event loop.

    A caller that awaits a task shields it, so that cancelling the caller does not cancel the task.

    Args:
        failure: What to log when a task fails, with one placeholder for the error. None: failures are for the caller.
    """

    def __init__(self, failure: str | None = None) -> None:
        self._failure = failure
        # asyncio refers to its tasks only weakly.
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """Starts a task, for which `join` waits."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def join(self) -> None:
        """Returns once all tasks have ended, including those that they have started."""
        while self._running:
            await asyncio.wait(list(self._running))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        # Retrieving the exception keeps asyncio from logging it when no caller awaits the task any more.
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is not None:
            # A wrong request, or the end of work on a table that a client drops, is no failure of the server.
            is_of_client = isinstance(error, ScanKvError) and error.code in _CODES_OF_CLIENTS
            level = logging.INFO if is_of_client else logging.ERROR
            _log.log(level, self._failure, error)
