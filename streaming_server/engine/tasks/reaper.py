"""Ends what has a time to live when it expires."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from streaming_server.engine.tasks.background import Background

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from streaming_server.clock import ServerClock

_PAUSE_SECONDS: Final = 1.0
"""The pause after a failure. What has expired still exists, so the next attempt would follow at once."""

_log: Final = logging.getLogger(__name__)


class Reaper(Background):
    """Sleeps until the next expiry, or until something is added that expires sooner. Bound to the event loop.

    Args:
        next_expiry: Gives the time of the first expiry on the monotonic clock. None: nothing expires.
        end_expired: Ends what has expired. Its errors are logged, and it is called again a second later.
        clock: The server's.
    """

    def __init__(
        self,
        next_expiry: Callable[[], float | None],
        end_expired: Callable[[], Awaitable[None]],
        clock: ServerClock,
    ) -> None:
        self._clock = clock
        self._next_expiry = next_expiry
        self._end_expired = end_expired
        self._sooner = asyncio.Event()
        self._awaited = float("inf")
        super().__init__(self._run)

    def notify(self, expires: float) -> None:
        """Announces an expiry that `next_expiry` may not have given yet."""
        if expires < self._awaited:
            self._sooner.set()

    async def _run(self) -> None:
        while True:
            if not await self._wait_for_sooner_expiry():
                try:
                    await self._end_expired()
                except Exception:
                    _log.exception("ending what has expired")
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _wait_for_sooner_expiry(self) -> bool:
        """Waits for the next expiry and returns False, or True as soon as `notify` reports a sooner one."""
        self._sooner.clear()
        expiry = self._next_expiry()
        self._awaited = float("inf") if expiry is None else expiry
        with suppress(TimeoutError):
            async with asyncio.timeout(None if expiry is None else max(expiry - self._clock.monotonic(), 0.0)):
                return await self._sooner.wait()
        return False
