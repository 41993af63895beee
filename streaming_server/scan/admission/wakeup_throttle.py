"""The wake-up throttle: wakes many tasks that wait for one event a few at a time, so that the event loop stays free."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import Final

# Until it awaits again, a woken task runs for about 0.1 ms.
_TASKS_PER_TURN: Final = 16


class WakeupThrottle:
    """Tasks that wait for the one call of `wake`. Bound to the event loop; `len` counts the tasks that still wait."""

    def __init__(self) -> None:
        # Futures in the order of their arrival.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> None:
        """Returns after `wake`, which must not have been called before."""
        future = self._loop.create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            del self._waiting[future]

    def wake(self) -> None:
        """Wakes all waiting tasks: the first ones immediately, the others in the next turns of the event loop."""
        self._wake_some(deque(self._waiting))

    def _wake_some(self, waiting: deque[asyncio.Future[None]]) -> None:
        for future in list(islice(waiting, _TASKS_PER_TURN)):
            waiting.popleft()
            if not future.done():
                future.set_result(None)
        if waiting:
            self._loop.call_soon(self._wake_some, waiting)
