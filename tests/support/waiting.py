"""Waiting for a condition, and promises about time: what tests do in place of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_PAUSE_SECONDS = 0.01


def wait_until(condition: Callable[[], T], what: str, timeout: float = 60.0) -> T:
    """Calls `condition` until it gives something true, and returns that; fails with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:g} s: not {what}; last seen: {value!r}")
        time.sleep(_PAUSE_SECONDS)
    return value


def in_time(attempt: Callable[[], float], seconds: float, tries: int = 10) -> None:
    """Fails unless one of some attempts, which give how long they took, took no longer than `seconds`.

    For promises about time: a busy machine delays some, and what breaks the promise delays all.
    """
    took: list[float] = []
    while not took or (min(took) > seconds and len(took) < tries):
        took.append(attempt())
    assert min(took) <= seconds, took


async def await_until(condition: Callable[[], Awaitable[T]], what: str, timeout: float = 60.0) -> T:
    """`wait_until` for a coroutine function; the event loop goes on meanwhile."""
    deadline = time.monotonic() + timeout
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:g} s: not {what}; last seen: {value!r}")
        await asyncio.sleep(_PAUSE_SECONDS)
    return value
