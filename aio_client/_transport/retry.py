"""Retries: how often, how long apart, and when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.counts import counted
from scankv.model.errors import DeadlineExceeded, ScanKvError, ServerBusy, ServerDraining, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Result = TypeVar("_Result")

PASSING_ERRORS: Final = (Unavailable, DeadlineExceeded, ServerDraining, ServerBusy)
"""Errors after which a call that may be made any number of times is repeated."""

_FIRST_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 2.0
_LEAST_SECONDS: Final = 0.02
"""The least time for an attempt: the timeout of a shorter one would only hide the earlier error."""


def backoff(failures: int, retry_after: float | None = None) -> float:
    """Returns the seconds to wait after `failures` failures in a row, plus the server's `retry_after`.

    The wait is random, between 0 and a bound that doubles from 0.1 s to 2 s, so that clients that were refused together
    do not return together.
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
    """Makes attempts until one succeeds, one fails for good, or the time is over.

    Args:
        attempt: Makes one attempt, which must end by the given instant of `clock`.
        timeout: Seconds for all attempts and the pauses between them.
        retries: Whether an error is worth another attempt.
        pause: Waits for some seconds. An error that it raises ends everything.
        clock: Monotonic seconds.

    Raises:
        ScanKvError: The error of the last attempt, with a note about the earlier ones.
    """
    deadline = clock() + timeout
    earlier: Counter[str] = Counter()
    last: ScanKvError | None = None
    while True:
        try:
            return await attempt(deadline)
        except ScanKvError as error:
            if last is not None and isinstance(error, DeadlineExceeded) and clock() + _LEAST_SECONDS >= deadline:
                # An operation ends with the error that made it fail, not with the timeout of a shortened attempt.
                _add_note_about(last, earlier)
                raise last from last.__cause__
            again = retries(error)
            seconds = backoff(earlier.total() + 1, error.retry_after)
            if not again or clock() + seconds + _LEAST_SECONDS >= deadline:
                _add_note_about(error, earlier)
                raise
            last = _without_traceback(error)
        await pause(seconds)
        # The pause may have taken longer than asked for.
        if clock() + _LEAST_SECONDS >= deadline:
            _add_note_about(last, earlier)
            raise last from last.__cause__
        earlier[f"{type(last).__name__}: {last.message}"] += 1


def _without_traceback(error: ScanKvError) -> ScanKvError:
    """Returns a copy of the error, with its cause, but without the tracebacks, whose frames would keep the call."""
    bare = copy(error)
    bare.__cause__ = None if error.__cause__ is None else error.__cause__.with_traceback(None)
    return bare


def _add_note_about(error: ScanKvError, earlier: Counter[str]) -> None:
    if not earlier:
        return
    error.add_note(f"{counted(earlier.total(), 'attempt')} before this one failed as well:")
    for message, times in earlier.most_common(5):
        error.add_note(f"  {times} x {message}")
