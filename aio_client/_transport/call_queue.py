"""The bound on a client's calls in flight, and the queue of the calls that wait for their turn."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from scankv.model.errors import DeadlineExceeded

SHORT_CALLS: Final = 256
"""The most calls with one prompt answer that a client has in flight. Further calls wait, first come first served.

A client must not put more calls on a connection than the server takes from it at once
(`limits.MIN_CALLS_PER_CONNECTION`): a gRPC server that gets thousands of calls at once cancels some of them unseen.
Waiting in the client does not count against the attempt timeout.
"""

LONG_CALLS: Final = 64
"""The same for calls for whose answers the server may read complete tables. They must not delay short calls."""

STREAMS_PER_CONNECTION: Final = 256
"""The most scans, streams of changes and watches on one connection. Further ones do not wait, because these calls may
never end, but get another connection."""


class CallQueue:
    """Bounds the number of calls in flight. Other calls wait in the order in which they came.

    Belongs to one event loop. A waiting call may be cancelled at any time.

    Args:
        most: The most calls in flight.
    """

    def __init__(self, most: int) -> None:
        self._turns = asyncio.Semaphore(most)
        self._most = most

    async def enter(self, deadline: float) -> None:
        """Waits for a turn, which `leave` returns.

        Args:
            deadline: The instant of `time.monotonic` at which the complete operation ends.

        Raises:
            DeadlineExceeded: No turn came by then. Nothing was sent.
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
        """Returns a turn to the call that has waited longest."""
        self._turns.release()
