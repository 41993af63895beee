"""Connections take turns in receiving messages."""

from __future__ import annotations

import asyncio

import pytest

from streaming_server.services.prompt_turns import PromptTurns

pytestmark = pytest.mark.asyncio


async def test_connections_take_turns_whatever_number_of_calls_each_has() -> None:
    turns, served = PromptTurns(1), []
    assert not await turns.acquire("first")

    async def receive(peer: str) -> None:
        assert await turns.acquire(peer)
        served.append(peer)
        turns.release()

    tasks = [asyncio.create_task(receive(peer)) for peer in ["greedy"] * 5 + ["modest"] * 2]
    await asyncio.sleep(0)
    turns.release()
    await asyncio.gather(*tasks)
    assert served == ["greedy", "modest", "greedy", "modest", "greedy", "greedy", "greedy"]
    assert not await turns.acquire("last")


@pytest.mark.parametrize("released_first", [False, True])
async def test_a_cancelled_call_keeps_no_slot(released_first: bool) -> None:
    turns = PromptTurns(1)
    await turns.acquire("first")
    waiting = asyncio.create_task(turns.acquire("gone"))
    await asyncio.sleep(0)
    if released_first:
        turns.release()
        waiting.cancel()
    else:
        waiting.cancel()
        turns.release()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not await turns.acquire("next")
