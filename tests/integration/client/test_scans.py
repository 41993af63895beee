"""Scans of a real server return all rows once, as of one instant, and leave nothing behind."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import (
    Client,
    DeadlineExceeded,
    InvalidRequest,
    Scan,
    ScanInterrupted,
    ScanSpec,
    SchemaMismatch,
    StartFrom,
    Table,
    Unavailable,
    UsageError,
    connect,
)
from tests.support.streams import read_between_cancellations
from tests.support.waiting import await_until
from tests.support.workers import freeze

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string())])
ROWS = 50_000


@pytest_asyncio.fixture
async def table(client: Client, name: str) -> Table:
    return await filled(client, name)


async def filled(client: Client, name: str) -> Table:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await table.upsert(pa.table({"k": range(ROWS), "name": [f"n{k}" for k in range(ROWS)]}))
    return table


async def live_scans(client: Client) -> int:
    return (await client.stats()).live_scans


async def _read_one_batch(scan: Scan) -> None:
    async for _ in scan.stream():
        await asyncio.Event().wait()


async def no_scan_is_left(client: Client) -> None:
    async def none_is_live() -> bool:
        return await live_scans(client) == 0

    await await_until(none_is_live, "the scan freed")


async def test_every_row_comes_once(table: Table) -> None:
    keys = [key async for rows in table.scan().stream() for key in rows.column("k").to_pylist()]
    assert sorted(keys) == list(range(ROWS))


@pytest.mark.parametrize("kind", ["by bucket", "ordered", "unordered"])
async def test_reads_that_are_cancelled_lose_no_row_and_return_none_twice(table: Table, kind: str) -> None:
    scan = table.scan().with_chunk(rows=500)
    stream = {"ordered": scan.ordered(), "unordered": scan.unordered()}.get(kind, scan).stream()
    batches, cancelled = await read_between_cancellations(stream)
    keys = [key for rows in batches for key in rows.column("k").to_pylist()]
    assert sorted(keys) == list(range(ROWS))
    assert cancelled > 100


async def test_a_read_that_times_out_leaves_its_rows_to_the_next_one(table: Table) -> None:
    async with table.changes(StartFrom.LATEST).stream() as stream:
        for key in (-1, -2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.05)
            await table.upsert([{"k": key, "name": "new"}])
            assert (await anext(stream)).column("k").to_pylist() == [key]


async def test_an_empty_table_gives_schema_and_offsets(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    async with table.scan().stream() as stream:
        assert [rows async for rows in stream] == []
        assert stream.schema == table.schema
        assert stream.log_offsets == {0: 0, 1: 0, 2: 0}
    assert (await table.scan().to_arrow()).schema == table.schema
    assert await table.scan().to_pylist() == []
    assert list((await table.scan().to_pandas()).columns) == ["k", "name"]
    assert (await table.scan().to_polars()).columns == ["k", "name"]


async def test_later_writes_are_invisible_to_a_stream(table: Table) -> None:
    async with table.scan().with_chunk(rows=100).stream() as stream:
        offsets = stream.log_offsets
        first = await anext(stream)
        result = await table.upsert([{"k": k, "name": "changed"} for k in range(ROWS + 10)])
        await table.delete(range(0, ROWS, 2))
        seen = {row["k"]: row["name"] for row in first.to_pylist()}
        async for rows in stream:
            seen |= {row["k"]: row["name"] for row in rows.to_pylist()}
    assert seen == {k: f"n{k}" for k in range(ROWS)}
    assert all(result.log_offsets[bucket] > offset for bucket, offset in offsets.items())


async def test_columns_come_in_the_order_asked(table: Table) -> None:
    scan = table.scan(columns=["name", "k"]).limit(3)
    assert (await scan.to_arrow()).schema.names == ["name", "k"]
    assert (await scan.select("k").to_arrow()).schema.names == ["k"]
    assert (await scan.select(["k"]).to_arrow()).schema.names == ["k"]
    assert (await table.scan("name").to_arrow()).schema.names == ["name"]


async def test_columns_that_are_left_out_are_not_sent(table: Table) -> None:
    async def returned(scan: Scan) -> int:
        async with scan.stream() as stream:
            async for batch in stream:
                assert batch.num_columns == len(stream.schema)
        return stream.stats().bytes_returned

    assert await returned(table.scan(columns=["k"])) < 0.8 * await returned(table.scan())


async def test_rows_without_columns_are_counted(table: Table) -> None:
    counted = await table.scan(columns=[]).to_arrow()
    assert (counted.num_rows, counted.num_columns) == (ROWS, 0)
    assert (await table.scan().select([]).to_arrow()).num_rows == ROWS


@pytest.mark.parametrize("limit", [0, 1, 10, ROWS, ROWS + 1])
async def test_a_limit_is_kept(table: Table, limit: int) -> None:
    assert (await table.scan(limit=limit).to_arrow()).num_rows == min(limit, ROWS)
    assert (await table.scan().limit(limit).limit(None).limit(limit).to_arrow()).num_rows == min(limit, ROWS)


async def test_a_limit_costs_its_rows_only(table: Table) -> None:
    async with table.scan(limit=10).stream() as stream:
        async for _ in stream:
            pass
    assert stream.stats().rows_scanned <= 3 * 10


async def test_buckets_together_are_the_table(table: Table) -> None:
    parts = [await table.scan().with_buckets(bucket).to_arrow() for bucket in range(3)]
    assert sum(part.num_rows for part in parts) == ROWS
    assert all(part.num_rows for part in parts)
    both = table.scan().with_buckets([2, 0])
    assert (await both.to_arrow()).num_rows == parts[0].num_rows + parts[2].num_rows
    async with both.stream() as stream:
        assert sorted(stream.log_offsets) == [0, 2]


@pytest.mark.breadth
async def test_chunks_keep_their_bounds(table: Table) -> None:
    sizes = [rows.num_rows async for rows in table.scan().with_chunk(rows=1000).stream()]
    assert max(sizes) <= 1000
    small = [rows.num_rows async for rows in table.scan().with_chunk(bytes=4096).stream()]
    assert sum(small) == ROWS
    assert len(small) > 50


async def test_a_scan_is_a_value(client: Client, table: Table) -> None:
    scan = table.scan()
    narrower = scan.select("k").limit(5).with_buckets(1).with_chunk(rows=2, bytes=1024)
    assert scan.spec == ScanSpec(table.name)
    assert narrower.spec == ScanSpec(table.name, columns=("k",), limit=5, buckets=(1,), chunk_rows=2, chunk_bytes=1024)
    copied = client.scan(pickle.loads(pickle.dumps(narrower.spec)))
    assert (await copied.to_arrow()).equals(await narrower.to_arrow())


async def test_what_no_scan_can_ask_for_is_refused_before_it_starts(table: Table) -> None:
    attempts: list[Callable[[], Scan]] = [
        lambda: table.scan(limit=-1),
        lambda: table.scan(columns=["k", "k"]),
        lambda: table.scan().with_buckets(0, 0),
        lambda: table.scan().with_buckets([]),
        lambda: table.scan().with_buckets(),
        lambda: table.scan().select(),
        lambda: table.scan().with_chunk(rows=0),
        lambda: table.scan().with_chunk(bytes=1),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError):
            attempt()


async def test_what_the_table_does_not_have_is_refused_when_it_starts(table: Table) -> None:
    with pytest.raises(SchemaMismatch, match=r'"nam".*did you mean "name"'):
        await table.scan(columns=["nam"]).to_arrow()
    with pytest.raises(InvalidRequest, match="7"):
        await table.scan().with_buckets(7).to_arrow()


async def test_a_scan_left_early_leaves_nothing_at_the_server(server: ServerProcess) -> None:
    async with connect(server.url) as client:
        table = await filled(client, "test.left_early")
        scan = table.scan().with_chunk(rows=10)
        async for _ in scan.stream():
            break
        await no_scan_is_left(client)
        async with scan.stream() as stream:
            await anext(stream)
            assert await live_scans(client) == table.tablets
        await no_scan_is_left(client)
        stream = scan.stream()
        await anext(stream)
        del stream
        await no_scan_is_left(client)
        reader = asyncio.create_task(_read_one_batch(scan))
        await asyncio.wait({reader}, timeout=0.1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await no_scan_is_left(client)
        assert (await table.scan().to_arrow()).num_rows == ROWS


async def test_a_server_that_is_killed_interrupts_the_scan(server: ServerProcess) -> None:
    async with connect(server.url, read_ahead_bytes=64 << 10) as client:
        table = await filled(client, "test.killed")
        stream = table.scan().with_chunk(rows=10).stream()
        await anext(stream)
        server.kill()
        with pytest.raises(ScanInterrupted, match=r"broke off after .* rows, before its end") as caught:
            async for _ in stream:
                pass
        assert caught.value.details["address"] == server.url
        with pytest.raises(Unavailable, match=server.url):
            await table.count()
        server.restart()
        await client.wait_ready()
        assert await table.count() == ROWS


@pytest.mark.breadth
@pytest.mark.one_process
async def test_a_frozen_server_is_an_error_that_names_address_and_time(server: ServerProcess) -> None:
    async with connect(server.url, attempt_timeout=1, operation_timeout=1) as client:
        table = await client.create_table("test.frozen", SCHEMA, primary_key=["k"])
        with freeze(server.process.pid):
            with pytest.raises(DeadlineExceeded, match=rf"{server.url} did not answer within (1|0\.\d+) s"):
                await table.upsert([{"k": 1}])
            with pytest.raises(DeadlineExceeded, match=rf"{server.url} sent nothing for (1|0\.\d+) s"):
                await table.scan().to_arrow()
        await client.wait_ready()


async def test_a_scan_is_read_without_a_loop_too(table: Table) -> None:
    def read() -> int:
        return sum(rows.num_rows for rows in table.scan().stream_sync())

    assert await asyncio.to_thread(read) == ROWS
