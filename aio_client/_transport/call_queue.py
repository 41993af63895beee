"""How many calls of a client are in flight at once, and the queue of those that wait for their turn."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from scankv.model.errors import DeadlineExceeded

SHORT_CALLS: Final = 256
"""Calls with one prompt answer that a client has in flight at once; the others wait in it, first come first served.

The rule: no client puts more calls on a connection than the server takes from it at once
(`limits.MIN_CALLS_PER_CONNECTION`). What is beyond waits here, where waiting costs no attempt its timeout, and where
gRPC does not drop it: a gRPC server that gets thousands of calls at once cancels some of them unseen.
"""

LONG_CALLS: Final = 64
"""The same for answers that the server reads whole tables for, so that these never take the turns of short calls."""

STREAMS_PER_CONNECTION: Final = 256
"""Scans, streams of changes and watches on one connection. Further ones get another connection: they may never end."""


class CallQueue:
    """Lets a bounded number of calls be in flight, and the others wait in the order in which they came.

    Belongs to one event loop. Whoever waits may be cancelled at any time without a trace.
    """

    def __init__(self, most: int) -> None:
        """Takes how many may be in flight."""
        self._turns = asyncio.Semaphore(most)
        self._most = most

    async def enter(self, deadline: float) -> None:
        """Waits for a turn, which `leave` gives back.

        Args:
            deadline: The instant of `time.monotonic` at which the whole operation ends.

        Raises:
            DeadlineExceeded: There was none until then. Nothing was sent.
        """
        if not self._turns.locked():
            await self._turns.acquire()  # Returns at once.
            return
        started = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, deadline - started)):
                await self._turns.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the call was not sent: it waited {time.monotonic() - started:.3g} s while {self._most} calls of this "
                "client were in flight; make fewer at once, or connect with a longer operation_timeout"
            ) from error

    def leave(self) -> None:
        """Returns a turn; the caller that has waited longest gets it."""
        self._turns.release()
