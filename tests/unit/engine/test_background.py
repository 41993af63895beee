"""Background tasks continue after a failure, and end with the server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from streaming_server.engine.tasks.background import Background, repeat

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.asyncio


def failing_at_first(failures: int, done: asyncio.Event) -> Callable[[], Awaitable[None]]:
    left = failures

    async def step() -> None:
        nonlocal left
        if left:
            left -= 1
            raise ValueError("nobody expects this")
        done.set()

    return step


async def test_a_step_that_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    background = Background(partial(repeat, 0.001, failing_at_first(2, done)))
    background.start()
    await asyncio.wait_for(done.wait(), 60)
    await background.close()
    failures = [record for record in caplog.records if "is tried again" in record.message]
    assert len(failures) == 2
    assert all(record.exc_info and isinstance(record.exc_info[1], ValueError) for record in failures)


async def test_closing_waits_for_a_step_to_end() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    background = Background(partial(repeat, 0.001, step))
    background.start()
    await asyncio.wait_for(entered.wait(), 60)
    await background.close()
    assert ended.is_set()


async def test_what_was_never_started_is_closed_at_once() -> None:
    await Background(partial(repeat, 1, failing_at_first(0, asyncio.Event()))).close()
