"""The errors of a client that is used in another event loop, after it was closed, or that was never closed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from aio_client import ScanSpec, ScanStream, UsageError, connect
from tests.unit.client.misbehaving import KeepsItsContract, NeverEnds, serving

SPEC = ScanSpec("game.scores")


def test_a_client_of_another_loop_is_refused() -> None:
    async def opened() -> object:
        client = await connect("localhost:1")
        await client.aclose()
        return await connect("localhost:1")

    async def use(client: object) -> None:
        with pytest.raises(UsageError, match="belongs to another event loop"):
            await client.tables()  # type: ignore[attr-defined]

    clients = [asyncio.run(opened())]
    asyncio.run(use(clients[0]))
    with pytest.warns(ResourceWarning, match="was not closed before its event loop"):
        clients.clear()


@pytest.mark.asyncio
async def test_a_closed_client_is_refused() -> None:
    client = await connect("localhost:1")
    await client.aclose()
    await client.aclose()
    with pytest.raises(UsageError, match="the client of localhost:1 is closed"):
        await client.tables()
    with pytest.raises(UsageError, match="closed"):
        await client.wait_ready(1)
    with pytest.raises(UsageError, match="closed"):
        await anext(client.scan(SPEC).stream())


@pytest.mark.asyncio
async def test_a_client_that_is_dropped_while_its_scan_runs_lives_on_with_it() -> None:
    async with serving(KeepsItsContract()) as url:
        stream = (await connect(url)).scan(SPEC).stream()
        gc.collect()
        assert sum([rows.num_rows async for rows in stream]) == 15


@pytest.mark.asyncio
async def test_a_client_that_is_dropped_in_its_loop_closes_in_silence() -> None:
    async with serving(KeepsItsContract()) as url:
        client = await connect(url)
        await client.scan(SPEC).to_arrow()
        del client
        gc.collect()


def test_a_scan_that_outlives_its_loop_is_warned_about() -> None:
    async def start() -> ScanStream:
        async with serving(NeverEnds()) as url:
            stream = (await connect(url)).scan(SPEC).stream()
            await anext(stream)
            return stream

    streams = [asyncio.run(start())]
    with pytest.warns(ResourceWarning):
        streams.clear()
