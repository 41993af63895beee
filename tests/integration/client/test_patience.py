"""Clients with short timeouts: idle streams, refused scans, and keepalive pings."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import ScanKvError, StartFrom, TooManyScans, connect
from aio_client.mirror import mirror
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aio_client import Client

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


async def with_little_patience(attempt: Callable[[float], Awaitable[None]]) -> None:
    """Runs the test with a timeout of some seconds, and with longer ones if it fails.

    A busy machine takes longer than a short timeout for what has to be answered within it. What breaks at a timeout
    breaks at each.
    """
    for seconds in (0.6, 2.5):
        with suppress(ScanKvError, AssertionError):
            return await attempt(seconds)
    return await attempt(10)


@pytest.mark.breadth
@pytest.mark.parametrize("chunks_too", [False, True])
async def test_a_stream_of_an_idle_table_outlives_any_timeout(
    client: Client, shared_server: ServerProcess, name: str, chunks_too: bool
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"])
    keys = itertools.count()

    async def outlives(seconds: float) -> None:
        patience: dict[str, Any] = {"next_chunk_timeout": seconds, "operation_timeout": 2 * seconds}
        if not chunks_too:
            patience = {"operation_timeout": seconds}
        async with connect(shared_server.url, **patience) as hasty:
            stream = (await hasty.table(name)).changes(StartFrom.LATEST).stream()
            heartbeats = asyncio.Semaphore(0)
            stream.on_heartbeat(heartbeats.release)
            async with stream:
                rows = asyncio.ensure_future(anext(stream))
                for _ in range(8):
                    await asyncio.wait_for(heartbeats.acquire(), 60)
                assert not rows.done()
                await table.upsert([{"k": next(keys), "v": "at last"}])
                assert (await rows).num_rows == 1
                assert stream.stats().attempts == 1

    await with_little_patience(outlives)


async def test_a_mirror_of_an_idle_table_outlives_its_timeouts(
    client: Client, shared_server: ServerProcess, name: str
) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"])

    async def outlives(seconds: float) -> None:
        async with (
            connect(shared_server.url, operation_timeout=seconds, next_chunk_timeout=seconds) as hasty,
            mirror(await hasty.table(name)) as copy,
        ):
            # No event shows that nothing has happened for two timeouts.
            await asyncio.sleep(2.2 * seconds)
            written = await table.upsert([{"k": 1, "v": f"after {seconds} s"}])
            await copy.wait_for(written.log_offsets)
            assert copy.get(1) == {"k": 1, "v": f"after {seconds} s"}

    await with_little_patience(outlives)


@pytest.mark.breadth
@pytest.mark.whole_tables  # One live scan is allowed, and a scan is one for each tablet.
async def test_refused_scans_say_so_and_keep_their_connection(tmp_path: Path) -> None:
    settings = ("max_live_scans=1", "max_waiting_scans=0", "admission_wait_seconds=0")
    arguments = [word for each in settings for word in ("--set", each)]
    with ServerProcess(tmp_path / "data", *arguments) as server:
        async with connect(server.url) as client:
            table = await client.create_table("test.t", SCHEMA, primary_key=["k"])
            await table.upsert([{"k": k, "v": "x" * 1000} for k in range(20_000)])
            async with table.scan().stream() as holds_the_place:
                await anext(holds_the_place)

                async def are_refused(seconds: float) -> None:
                    async with connect(server.url, operation_timeout=seconds) as hasty:
                        refused = await hasty.table("test.t")
                        before = hasty._transport.services
                        scans = (refused.scan().to_arrow() for _ in range(20))
                        ended = await asyncio.gather(*scans, return_exceptions=True)
                        assert {type(each) for each in ended} == {TooManyScans}
                        assert hasty._transport.services is before

                await with_little_patience(are_refused)


async def _survives_pings(url: str, interval_millis: int, pings: int) -> bool:
    options = [
        ("grpc.keepalive_time_ms", interval_millis),
        ("grpc.keepalive_timeout_ms", 60_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(url, options) as channel:
        health: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)
        watch = health(b"")
        assert await watch.read()
        ended = asyncio.ensure_future(watch.read())
        done, _ = await asyncio.wait([ended], timeout=interval_millis * pings / 1000)
        watch.cancel()
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await ended
        return not done


@pytest.mark.breadth
async def test_keepalive_pings_that_the_server_allows_end_no_connection(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "min_ping_interval_seconds=0.1") as server:
        # gRPC sends pings at most every second; the third that comes too early ends the connection.
        assert await _survives_pings(server.url, 1000, 5)


@pytest.mark.soak
async def test_keepalive_pings_every_ten_seconds_end_no_connection(shared_server: ServerProcess) -> None:
    assert await _survives_pings(shared_server.url, 10_000, 6)
