"""Waits for conditions, and checks promises about time. Tests use this instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_PAUSE_SECONDS = 0.01
_MOST_PAUSE_SECONDS = 0.1


def _pause(started: float, began: float) -> float:
    """Returns how long to pause after a check, to leave the machine to what is waited for.

    As long as the check took that began at `began`, and a tenth of the time since the first one at `started`.
    """
    now = time.monotonic()
    return min(max(_PAUSE_SECONDS, now - began, (now - started) / 10), _MOST_PAUSE_SECONDS)


def wait_until(condition: Callable[[], T], what: str, timeout: float = 60.0) -> T:
    """Calls `condition` until its result is true, and returns that. Fails with `what` after `timeout` seconds."""
    started = began = time.monotonic()
    deadline = started + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:g} s: not {what}; last seen: {value!r}")
        time.sleep(_pause(started, began))
        began = time.monotonic()
    return value


def in_time(attempt: Callable[[], float], seconds: float, tries: int = 30) -> None:
    """Fails unless one of several attempts takes at most `seconds`. An attempt returns its duration.

    Use it for promises about time: a busy machine delays some attempts, and a broken promise delays all.
    """
    took: list[float] = []
    while not took or (min(took) > seconds and len(took) < tries):
        took.append(attempt())
    assert min(took) <= seconds, took


async def await_until(condition: Callable[[], Awaitable[T]], what: str, timeout: float = 60.0) -> T:
    """As `wait_until`, for a coroutine function. The event loop continues to run."""
    started = began = time.monotonic()
    deadline = started + timeout
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:g} s: not {what}; last seen: {value!r}")
        await asyncio.sleep(_pause(started, began))
        began = time.monotonic()
    return value
