"""A real client and server with the fault proxy in between: every fault is one of our errors, or no fault."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    ScanInterrupted,
    StartFrom,
    Unavailable,
    UsageError,
    connect,
    sync,
)
from aio_client.testing import Fault, FaultProxy
from scankv.model.scans.scan_spec import ScanSpec
from tests.support.streams import read_all
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_client.testing import FaultKind
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

ROWS = 20_000
DATA = pa.table({"k": range(ROWS), "v": [f"{k:0200}" for k in range(ROWS)]})


@pytest_asyncio.fixture
async def filled(client: Client, name: str) -> str:
    """Makes a table of about 4 MB, more than a window."""
    table = await client.create_table(name, DATA.schema, primary_key=["k"], buckets=3)
    await table.upsert(DATA)
    return name


async def scanned(client: Client, name: str) -> pa.Table:
    table = await client.scan(ScanSpec(name, chunk_rows=500)).to_arrow()
    return table.sort_by("k").cast(DATA.schema)


def _async(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return condition()

    return check


async def no_scan_is_live(client: Client) -> None:
    async def none_is_live() -> bool:
        return (await client.stats()).live_scans == 0

    await await_until(none_is_live, "the scan freed")


@pytest.mark.one_process
async def test_without_faults_it_is_as_if_there_were_no_proxy(proxy: FaultProxy, name: str) -> None:
    async with connect(proxy.address) as client:
        table = await client.create_table(name, DATA.schema, primary_key=["k"], buckets=3)
        await table.upsert(DATA)
        assert await scanned(client, name) == DATA
        assert DATA.nbytes < proxy.bytes_to_server < 2 * DATA.nbytes
        assert DATA.nbytes < proxy.bytes_to_client < 2 * DATA.nbytes
    assert (proxy.connections, proxy.faults) == (1, ())


@pytest.mark.parametrize("kind", ["cut", "reset", "half_close"])
@pytest.mark.parametrize("bytes_before", [0, 20, 1000, 1_500_000])
@pytest.mark.represented_by("0-cut", "1500000-half_close")
async def test_a_connection_that_ends_is_an_error_unless_nothing_was_shown_and_the_next_scan_is_whole(
    client: Client, proxy: FaultProxy, filled: str, kind: FaultKind, bytes_before: int
) -> None:
    proxy.on_next(Fault(kind, bytes_before))
    async with connect(proxy.address, attempt_timeout=5) as through:
        stream = through.scan(ScanSpec(filled, chunk_rows=500)).stream()
        failure: ScanInterrupted | Unavailable | None = None
        try:
            await read_all(stream)
        except (ScanInterrupted, Unavailable) as error:
            failure = error
        found = stream.stats()
        if failure is not None:
            # Data that arrived right before the end may be lost, because gRPC drops what was not read yet.
            assert (failure.resume_token is not None) == (found.rows_returned > 0)
        else:
            # A scan whose reader has received nothing is retried if a server can be reached.
            assert (found.attempts > 1, found.rows_returned) == (True, DATA.num_rows)
        assert [made.at_bytes for made in proxy.faults] == [bytes_before], proxy
        await no_scan_is_live(client)
        await through.wait_ready()
        assert await scanned(through, filled) == DATA


@pytest.mark.breadth
async def test_a_stalled_connection_is_noticed_within_its_timeout_and_freed(
    client: Client, proxy: FaultProxy, filled: str
) -> None:
    async with connect(proxy.address, next_chunk_timeout=3) as through:
        stream = through.scan(ScanSpec(filled, chunk_rows=500)).stream()
        await anext(stream)
        proxy.apply(Fault("stall"))
        with pytest.raises(DeadlineExceeded):
            await read_all(stream)
        await no_scan_is_live(client)
        proxy.resume()
        assert await scanned(through, filled) == DATA


@pytest.mark.breadth
@pytest.mark.timeout(180)
async def test_a_pinned_scan_whose_connection_is_forgotten_goes_on_over_another(
    client: Client, proxy: FaultProxy, filled: str
) -> None:
    # Each chunk that is late costs an attempt and a connection. So there are few chunks, and each has some time.
    async with (
        (await client.table(filled)).snapshot() as snapshot,
        connect(proxy.address, next_chunk_timeout=3) as through,
    ):
        stream = through.scan(ScanSpec(filled, chunk_rows=2000)).as_of(snapshot).stream()
        rows = (await anext(stream)).num_rows
        proxy.apply(Fault("stall"))
        async for batch in stream:
            rows += batch.num_rows
        assert rows == ROWS
        # On a busy machine, a chunk of the second attempt may also come too late.
        assert stream.stats().attempts == proxy.connections >= 2, proxy
        proxy.resume()
        await await_until(_async(lambda: proxy.open_connections == 1), "the forgotten connection closed")


@pytest.mark.breadth
async def test_a_stream_whose_event_loop_was_blocked_keeps_its_connection(
    client: Client, shared_server: ServerProcess, filled: str
) -> None:
    async with connect(shared_server.url, next_chunk_timeout=0.5) as hasty:
        async with (await hasty.table(filled)).changes(StartFrom.LATEST).stream() as stream:
            heard = asyncio.Event()
            stream.on_heartbeat(heard.set)
            reading = asyncio.ensure_future(anext(stream))
            await heard.wait()
            for _ in range(3):
                # In the meantime, heartbeats arrive, and the time for the next one ends.
                time.sleep(0.8)  # noqa: ASYNC251
                await asyncio.sleep(0)
            await (await client.table(filled)).upsert([{"k": ROWS, "v": "new"}])
            assert (await reading)["k"].to_pylist() == [ROWS]
            assert stream.stats().attempts == 1


@pytest.mark.breadth
@pytest.mark.one_process
async def test_a_call_after_one_that_was_not_answered_takes_another_connection(proxy: FaultProxy, filled: str) -> None:
    async with connect(proxy.address, attempt_timeout=3) as through:
        table = await through.table(filled)
        proxy.apply(Fault("stall"))
        with pytest.raises(DeadlineExceeded):
            await table.count()
        assert await table.count() == ROWS
        assert (await table.upsert(DATA.slice(0, 1))).rows == 1
        assert proxy.connections == 2, proxy


async def test_scans_on_a_connection_that_was_replaced_go_on_to_their_end(proxy: FaultProxy, filled: str) -> None:
    async with connect(proxy.address) as through:
        stream = through.scan(ScanSpec(filled, chunk_rows=500)).stream()
        rows = (await anext(stream)).num_rows
        through._transport.replace(through._transport.services)
        assert await scanned(through, filled) == DATA
        assert (proxy.connections, proxy.open_connections) == (2, 2), proxy
        async for batch in stream:
            rows += batch.num_rows
        assert rows == ROWS
        del stream
        await await_until(_async(lambda: proxy.open_connections == 1), "the replaced connection closed")


@pytest.mark.breadth
async def test_no_call_takes_the_connection_that_just_broke(proxy: FaultProxy, filled: str) -> None:
    # gRPC uses a broken connection for a moment longer. Without special care, one call in fifteen fails on a busy
    # machine.
    async with connect(proxy.address) as through:
        for connections in range(1, 51):
            stream = through.scan(ScanSpec(filled, chunk_rows=100)).stream()
            await anext(stream)
            assert proxy.connections == connections
            proxy.apply(Fault("reset"))
            with pytest.raises(ScanInterrupted):
                await read_all(stream)


async def test_closing_a_client_ends_the_scans_on_a_connection_that_was_replaced(
    client: Client, proxy: FaultProxy, filled: str
) -> None:
    through = await connect(proxy.address)
    stream = through.scan(ScanSpec(filled, chunk_rows=500)).stream()
    await anext(stream)
    through._transport.replace(through._transport.services)
    await through.aclose()
    await no_scan_is_live(client)
    with pytest.raises(UsageError, match="closed"):
        await read_all(stream)


@pytest.mark.breadth
async def test_a_slow_connection_delays_a_scan_and_loses_nothing(proxy: FaultProxy, filled: str) -> None:
    proxy.on_next(Fault("slow", bytes_per_second=8_000_000))
    async with connect(proxy.address) as through:
        started = time.monotonic()
        assert await scanned(through, filled) == DATA
        assert time.monotonic() - started > 0.8 * DATA.nbytes / 8_000_000


@pytest.mark.breadth
async def test_a_stalled_connection_stops_the_scan_at_the_server(
    client: Client, proxy: FaultProxy, filled: str
) -> None:
    async with connect(proxy.address, read_ahead_bytes=65536) as through:
        stream = through.scan(ScanSpec(filled, chunk_rows=100)).stream()
        rows = (await anext(stream)).num_rows
        proxy.apply(Fault("stall"))
        # In the meantime, this scan is read completely twice; the stalled one has only reached the buffers.
        for _ in range(2):
            assert await scanned(client, filled) == DATA
        assert (await client.stats()).live_scans == (await client.table(filled)).tablets
        assert proxy.bytes_to_client < DATA.nbytes / 2
        proxy.resume()
        async for batch in stream:
            rows += batch.num_rows
        assert rows == ROWS


async def test_a_refused_connection_fails_at_once_and_works_again_later(proxy: FaultProxy, filled: str) -> None:
    proxy.refuse()
    async with connect(proxy.address) as through:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await scanned(through, filled)
        assert time.monotonic() - started < through.config.operation_timeout / 2
        proxy.accept()
        await through.wait_ready()
        assert await scanned(through, filled) == DATA


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.represented_by("1")
async def test_under_random_faults_a_scan_is_whole_or_an_error(proxy: FaultProxy, filled: str, seed: int) -> None:
    proxy.seed = seed
    proxy.random_faults(after_bytes=(0, 2 * DATA.nbytes))
    whole = 0
    for _ in range(10):
        async with connect(proxy.address, attempt_timeout=5) as through:
            try:
                assert await scanned(through, filled) == DATA, proxy
                whole += 1
            except ConnectionFailed:
                assert proxy.faults[-1].connection == proxy.connections, proxy
    assert 0 < whole < 10, proxy
    assert len(proxy.faults) >= 10 - whole, proxy
    proxy.heal()
    async with connect(proxy.address) as through:
        assert await scanned(through, filled) == DATA, proxy


@pytest.mark.one_process
async def test_writes_through_a_broken_connection_are_repeated_until_they_are_applied(
    client: Client, proxy: FaultProxy, name: str
) -> None:
    await client.create_table(name, DATA.schema, primary_key=["k"], buckets=3)
    for bytes_before in (0, 1000, 2_000_000):
        async with connect(proxy.address) as through:
            through_proxy = await through.table(name)
            proxy.apply(Fault("reset", bytes_before, "to_server"))
            assert (await through_proxy.upsert(DATA)).rows == ROWS
    assert len(proxy.faults) == 3, proxy
    assert await scanned(client, name) == DATA


async def test_the_proxy_outlives_a_restart_of_the_server(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy, connect(proxy.address) as through:
        table = await through.create_table("test.restarted", DATA.schema, primary_key=["k"], buckets=1)
        await table.upsert(DATA.slice(0, 10))
        await asyncio.to_thread(server.kill)
        with pytest.raises(ConnectionFailed):
            await scanned(through, "test.restarted")
        await asyncio.to_thread(server.restart)
        await through.wait_ready(10)
        assert (await scanned(through, "test.restarted")).num_rows == 10


async def test_blocking_code_has_a_proxy_in_a_thread(shared_server: ServerProcess, filled: str) -> None:
    def blocking() -> None:
        with FaultProxy.in_thread(shared_server.url) as proxy, sync.connect(proxy.address) as through:
            proxy.on_next(Fault("cut", 1_000_000))
            # The chunks that arrived right before the end may all be lost. Then the scan is retried.
            with suppress(ScanInterrupted, Unavailable):
                assert through.scan(ScanSpec(filled, chunk_rows=500)).to_arrow().num_rows == DATA.num_rows
            assert len(proxy.faults) == 1

    await asyncio.to_thread(blocking)
