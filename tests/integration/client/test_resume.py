"""Interrupted scans of a real server: exactly the missing rows of a snapshot, and a new view of a live table."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    InvalidResumeToken,
    Resume,
    ScanInterrupted,
    ScanKvError,
    ScanStalled,
    SnapshotLost,
    Unavailable,
    connect,
    sync,
)
from aio_client.testing import Fault, FaultProxy
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Client, Scan, ScanStream, Table

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


@pytest_asyncio.fixture
async def cut_client(proxy: FaultProxy) -> AsyncIterator[Client]:
    """Connects a client whose connections can be cut."""
    async with connect(proxy.address, read_ahead_bytes=64 << 10) as client:
        yield client


def through(client: Client, scan: Scan) -> Scan:
    """Returns the same scan in small chunks, through another client."""
    return client.scan(scan.with_chunk(rows=CHUNK_ROWS).spec)


async def read_cut(stream: ScanStream, proxy: FaultProxy, every: int) -> tuple[pa.Table, int]:
    """Returns all rows of a scan whose connection is cut after every few chunks, and the number of cuts."""
    batches, cuts = [], 0
    async for rows in stream:
        batches.append(rows)
        if len(batches) % every == 0:
            proxy.apply(Fault("reset"))
            cuts += 1
    return pa.Table.from_batches(batches), cuts


@pytest.mark.parametrize(("every", "reverse"), [(1, False), (2, True), (5, False)])
@pytest.mark.asyncio
@pytest.mark.represented_by("1-False")
async def test_a_pinned_scan_that_is_cut_gives_the_rows_of_one_that_is_not(
    table: Table, cut_client: Client, proxy: FaultProxy, every: int, reverse: bool
) -> None:
    async with table.snapshot() as snapshot:
        scan = table.scan().as_of(snapshot)
        scan = scan.reverse() if reverse else scan
        whole = await scan.to_arrow()
        await table.upsert([{"k": k, "name": "changed"} for k in range(-ROWS, ROWS, 7)])
        stream = through(cut_client, scan).stream()
        rows, cuts = await read_cut(stream, proxy, every)
        same = rows.equals(whole)
        assert same, f"{rows.num_rows} rows, expected {whole.num_rows}"
        statistics = stream.stats()
        # For a moment after a cut, gRPC may start an attempt over the connection that was cut. It delivers nothing.
        assert statistics.attempts <= 2 * cuts + 1
        assert statistics.rows_scanned <= ROWS + cuts * CHUNK_ROWS
        assert len(stream.resumptions) == statistics.attempts - 1 > 1
        assert {tuple(sorted(each.to_log_offsets.items())) for each in stream.resumptions} == {
            tuple(sorted(snapshot.log_offsets.items()))
        }


@pytest.mark.asyncio
async def test_a_live_scan_goes_on_over_a_fresh_view_and_says_so(
    table: Table, cut_client: Client, proxy: FaultProxy
) -> None:
    stream = through(cut_client, table.scan().with_buckets(1).resume(Resume.LATEST)).stream()
    first = await anext(stream)
    last_key = first["k"][-1].as_py()
    before = stream.log_offsets
    result = await table.upsert([{"k": k, "name": "changed"} for k in range(ROWS + 1000)])
    proxy.apply(Fault("reset"))
    seen = {row["k"]: row["name"] async for rows in stream for row in rows.to_pylist()}
    (resumption,) = stream.resumptions
    assert resumption.rows >= first.num_rows
    assert isinstance(resumption.cause, Unavailable)
    assert (resumption.from_log_offsets, resumption.to_log_offsets) == (before, {1: result.log_offsets[1]})
    assert stream.log_offsets == resumption.to_log_offsets
    # The rows before are unchanged; the rows after it are as of now, including new ones.
    assert min(seen) > last_key
    assert seen[max(seen)] == "changed"
    assert max(seen) >= ROWS
    fresh = {row["k"] for row in await table.scan(columns=["k"]).with_buckets(1).to_pylist() if row["k"] > last_key}
    assert set(seen) == fresh


@pytest.mark.asyncio
async def test_a_limit_counts_over_all_attempts(table: Table, cut_client: Client, proxy: FaultProxy) -> None:
    async with table.snapshot() as snapshot:
        stream = through(cut_client, table.scan().as_of(snapshot).limit(3 * CHUNK_ROWS + 1)).stream()
        rows, _ = await read_cut(stream, proxy, 1)
        assert rows.num_rows == len(set(rows["k"].to_pylist())) == 3 * CHUNK_ROWS + 1


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
async def test_a_token_for_another_question_is_refused(table: Table) -> None:
    scan = table.scan().with_chunk(rows=CHUNK_ROWS)
    async with scan.stream() as stream:
        await anext(stream)
        token = stream.resume_token
    assert token is not None
    for other in (scan.select("k"), scan.limit(7), scan.with_buckets(0), scan.reverse()):
        with pytest.raises(InvalidResumeToken) as caught:
            await other.resume_from(token).to_arrow()
        assert caught.value.resume_token == token
    for bad in (token[:-1], token + b"x", bytes([token[0] ^ 1]) + token[1:], token[:-1] + bytes([token[-1] ^ 1])):
        with pytest.raises(InvalidResumeToken) as caught:
            await scan.resume_from(bad).to_arrow()
        assert token.hex() not in str(caught.value)


@pytest.mark.asyncio
async def test_a_token_of_the_end_reads_nothing(table: Table) -> None:
    async with table.scan().stream() as stream:
        async for _ in stream:
            pass
        token = stream.resume_token
    assert token is not None
    async with table.scan().resume_from(token).stream() as stream:
        assert [rows async for rows in stream] == []
    assert stream.stats().rows_scanned == 0


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
