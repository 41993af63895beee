"""A timeout for what the server sends, which does not blame the server if the client's event loop was blocked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

_LATE_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 0.1
_MOST_GRACES: Final = 20


class PatientTimeout:
    """Like `asyncio.timeout`, but an event loop that was blocked gets some turns to take what has arrived.

    When a loop is late, its timers are due at the same time as messages that have arrived in the meantime. A plain
    timeout would then cancel the task before it has seen them.

    Args:
        seconds: The seconds to wait. None: without a limit.
    """

    __slots__ = ("_due", "_graces", "_limit", "_seconds", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._limit = asyncio.timeout(None)
        self._graces = _MOST_GRACES
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        if self._seconds is not None:
            self._start(asyncio.get_running_loop(), self._seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises TimeoutError if the time is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._limit.__aexit__(kind, error, traceback)

    def _start(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._due = loop.time() + seconds
        self._timer = loop.call_at(self._due, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop.time() - self._due > _LATE_SECONDS and self._graces:
            self._graces -= 1
            self._start(loop, _GRACE_SECONDS)
        else:
            self._limit.reschedule(loop.time())
