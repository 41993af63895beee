"""Interrupted scans of a real server: exactly the missing rows of a snapshot, and a new view of a live table."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    Resume,
    ScanInterrupted,
    ScanKvError,
    ScanStalled,
    SnapshotLost,
    connect,
    sync,
)
from aio_client.testing import Fault, FaultProxy
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import Client, Scan, Table

SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string())])
# With chunks this small, an interruption always comes before everything has been read ahead.
ROWS = 20_000
CHUNK_ROWS = 500


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await filled(client, name)


async def filled(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await table.upsert(pa.table({"k": range(ROWS), "name": [f"n{k} " + "x" * 50 for k in range(ROWS)]}))
    return table


def through(client: Client, scan: Scan) -> Scan:
    """Returns the same scan in small chunks, through another client."""
    return client.scan(scan.with_chunk(rows=CHUNK_ROWS).spec)


@pytest.mark.asyncio
async def test_a_pinned_scan_rides_through_a_server_that_is_killed(server: ServerProcess) -> None:
    async with connect(server.url, read_ahead_bytes=64 << 10) as client:
        table = await filled(client, "test.killed")
        snapshot = await table.snapshot()
        stream = through(client, table.scan().as_of(snapshot)).stream()
        keys = (await anext(stream))["k"].to_pylist()
        incarnation = stream.incarnation
        server.kill()
        server.restart()
        async for rows in stream:
            keys += rows["k"].to_pylist()
        assert sorted(keys) == list(range(ROWS))
        assert stream.incarnation != incarnation
        assert len(stream.resumptions) == 1


@pytest.fixture
def impatient_server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = ("--set", "stall_timeout_seconds=2", "--set", "drain_seconds=0.1")
    with ServerProcess(tmp_path / "data", *settings) as server:
        yield server


async def no_scan_is_live(client: Client) -> None:
    async def none() -> bool:
        return not await client.live_scans()

    await await_until(none, "without a live scan")


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_reader_that_was_too_slow_goes_on_or_learns_how(impatient_server: ServerProcess) -> None:
    url = impatient_server.url
    async with connect(url, read_ahead_bytes=64 << 10) as client, connect(url) as watching:
        table = await filled(client, "test.slow")
        async with table.snapshot() as snapshot:
            scan = table.scan().with_chunk(rows=CHUNK_ROWS)
            pinned, live = scan.as_of(snapshot).stream(), scan.stream()
            first, last = await anext(pinned), await anext(live)
            await no_scan_is_live(watching)
            keys = first["k"].to_pylist() + [key async for rows in pinned for key in rows["k"].to_pylist()]
            assert sorted(keys) == list(range(ROWS))
            assert {type(each.cause) for each in pinned.resumptions} == {ScanStalled}
            keys = last["k"].to_pylist()

            async def read() -> None:
                async for rows in live:
                    keys.extend(rows["k"].to_pylist())

            with pytest.raises(ScanStalled) as caught:
                await read()
            assert caught.value.resume_token is not None
            rest = await scan.resume_from(caught.value.resume_token).to_arrow()
            assert sorted(keys + rest["k"].to_pylist()) == list(range(ROWS))


@pytest.mark.asyncio
async def test_a_pinned_scan_whose_snapshot_goes_says_so(table: Table) -> None:
    snapshot = await table.snapshot()
    scan = table.scan().as_of(snapshot).with_chunk(rows=CHUNK_ROWS)
    async with scan.stream() as stream:
        await anext(stream)
        token = stream.resume_token
    assert token is not None
    await snapshot.release()
    with pytest.raises(SnapshotLost) as caught:
        await scan.resume_from(token).to_arrow()
    assert caught.value.resume_token == token


def test_the_blocking_stream_goes_on_as_the_asynchronous_one(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    table.upsert(pa.table({"k": range(ROWS), "name": ["n"] * ROWS}))
    with FaultProxy.in_thread(sync_client.config.address) as proxy, sync.connect(proxy.address) as client:
        scan = client.scan(table.scan().with_chunk(rows=100, bytes=1024).spec)
        stream = scan.stream()
        next(stream)
        proxy.apply(Fault("reset"))
        with pytest.raises(ScanInterrupted) as caught:
            list(stream)
        assert caught.value.resume_token == stream.resume_token
        with scan.resume(Resume.LATEST).stream() as stream:
            next(stream)
            proxy.apply(Fault("reset"))
            assert sum(rows.num_rows for rows in stream) < ROWS
            assert len(stream.resumptions) == 1
            assert stream.consistency == "table"


@pytest.mark.asyncio
async def test_errors_of_a_scan_keep_their_token_in_another_process(table: Table) -> None:
    with pytest.raises(ScanKvError) as caught:
        await table.scan().resume_from(b"nonsense").to_arrow()
    assert pickle.loads(pickle.dumps(caught.value)).resume_token == b"nonsense"
