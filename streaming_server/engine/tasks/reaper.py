"""The task that ends things with a time to live when they expire: leases, locks, consumers and transactions."""

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
"""The pause after a failure. Without it, the next attempt would follow at once, because the expiry has passed."""

_log: Final = logging.getLogger(__name__)


class Reaper(Background):
    """Sleeps until the next expiry, or until something is added that expires sooner. Bound to the event loop.

    Args:
        next_expiry: Returns the time of the first expiry on the monotonic clock. None: nothing expires.
        end_expired: Ends everything that has expired. Its errors are logged, and it is called again a second later.
        clock: The server's clock.
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
        """Announces an expiry that may be sooner than the one being waited for."""
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
