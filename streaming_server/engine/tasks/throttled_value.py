"""A value that is expensive to compute, recomputed only as often as its cost allows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_LOOKS_APART = 20
"""The pause after a computation, in multiples of its duration: computing takes at most a twentieth of the time."""


class ThrottledValue(Generic[T]):
    """The last result of `look`.

    After each run of `look`, its result is reused for 20 times the duration of the run. Concurrent callers share one
    run.
    """

    def __init__(self, look: Callable[[], Awaitable[T]], clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._mutex = asyncio.Lock()
        self._found: tuple[T, float] | None = None

    async def get(self) -> T:
        """Returns the value. Raises the error of `look`; the next call then runs `look` again."""
        async with self._mutex:
            began = self._clock()
            if self._found is not None and began < self._found[1]:
                return self._found[0]
            found = await self._look()
            ended = self._clock()
            self._found = found, ended + _LOOKS_APART * (ended - began)
            return found
