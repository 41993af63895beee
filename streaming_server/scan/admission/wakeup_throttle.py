"""Many tasks that wait for one thing, woken a few at a time, so that together they do not hold the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import Final

# What one of them does until it awaits again takes some 0.1 ms.
_AT_ONCE: Final = 16


class Crowd:
    """Tasks that wait until `wake` is called, once. Bound to the event loop; `len` is how many there still are."""

    def __init__(self) -> None:
        # In the order in which they came.
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
        """Lets all that wait go on, the first ones at once, the others in the next turns of the event loop."""
        self._wake_some(deque(self._waiting))

    def _wake_some(self, waiting: deque[asyncio.Future[None]]) -> None:
        for future in list(islice(waiting, _AT_ONCE)):
            waiting.popleft()
            if not future.done():
                future.set_result(None)
        if waiting:
            self._loop.call_soon(self._wake_some, waiting)
