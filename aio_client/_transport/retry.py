"""Trying again: how often, how long apart, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.errors import DeadlineExceeded, ScanKvError, ServerBusy, ServerDraining, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Result = TypeVar("_Result")

PASSING_ERRORS: Final = (Unavailable, DeadlineExceeded, ServerDraining, ServerBusy)
"""Errors after which a call that may be made any number of times is made again."""

_FIRST_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 2.0
_LEAST_SECONDS: Final = 0.02
"""What an attempt that has less time says would only hide what was wrong before."""


def backoff(failures: int, retry_after: float | None = None) -> float:
    """Seconds to wait after so many failures in a row.

    At random between nothing and a bound that doubles from 0.1 s to 2 s, so that clients which were refused together do
    not come back together. Never before the server's `retry_after`.
    """
    bound = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** min(failures - 1, 10))
    return (retry_after or 0.0) + random.uniform(0, bound)


async def with_retries(
    attempt: Callable[[float], Awaitable[_Result]],
    *,
    timeout: float,
    retries: Callable[[ScanKvError], bool],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _Result:
    """Makes attempts until one succeeds, one fails for good, or the time is up.

    Args:
        attempt: One attempt; given the instant of `clock` by which it must end.
        timeout: Seconds for all attempts and the pauses between them.
        retries: Whether an error is worth another attempt.
        pause: Waits for so many seconds; what it raises ends everything.
        clock: Monotonic seconds.

    Raises:
        ScanKvError: That of the last attempt, with a note of the earlier ones.
    """
    deadline = clock() + timeout
    earlier: Counter[str] = Counter()
    last: ScanKvError | None = None
    while True:
        try:
            return await attempt(deadline)
        except ScanKvError as error:
            if last is not None and isinstance(error, DeadlineExceeded) and clock() + _LEAST_SECONDS >= deadline:
                # The rule: an operation ends with what was wrong with it, not with its last attempt being cut short.
                _note(last, earlier)
                raise last from error
            again = retries(error)
            seconds = backoff(earlier.total() + 1, error.retry_after)
            if not again or clock() + seconds + _LEAST_SECONDS >= deadline:
                _note(error, earlier)
                raise
            last = copy(error)  # Without what was running.
        await pause(seconds)
        # It may have taken longer.
        if clock() + _LEAST_SECONDS >= deadline:
            _note(last, earlier)
            raise last
        earlier[f"{type(last).__name__}: {last.message}"] += 1


def _note(error: ScanKvError, earlier: Counter[str]) -> None:
    if not earlier:
        return
    error.add_note(f"{earlier.total()} attempts before this one failed as well:")
    for message, times in earlier.most_common(5):
        error.add_note(f"  {times} x {message}")
