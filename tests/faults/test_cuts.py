"""A pinned scan whose connection is cut anywhere returns the same rows, and the server reads no row twice."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import Client, connect
from aio_client.testing import Fault, FaultProxy
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aio_client import Scan, ScanStream, ServerStats, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

ROWS = 3000
CHUNK_ROWS = 300
WINDOW_BYTES = 64 << 10
VALUE_BYTES = 300
"""So long that a chunk exceeds the receive window, and the server holds back most of what was not requested."""
SMALL_ROWS = 120
END_BYTES = 240
"""More than the bytes after the last row: trailer, status, and their frames."""


@pytest_asyncio.fixture
async def client(shared_server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(shared_server.url) as client:
        yield client


async def filled(client: Client, rows: int) -> Table:
    name = f"cuts.t{uuid.uuid4().hex}"
    table = await client.create_table(
        name, pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key=["k"], buckets=3
    )
    await table.upsert(pa.table({"k": range(rows), "v": [f"{k:0{VALUE_BYTES}}" for k in range(rows)]}))
    return table


async def settled(client: Client) -> ServerStats:
    """Waits until the server has ended all scans, and returns its statistics."""

    async def nothing_is_live() -> ServerStats | None:
        stats = await client.stats()
        return stats if stats.live_scans == stats.waiting_scans == stats.open_cursors == 0 else None

    stats = await await_until(nothing_is_live, "all scans over")
    assert stats is not None
    return stats


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.represented_by("False")
async def test_a_cut_after_every_kth_chunk_changes_no_row_and_rereads_at_most_what_was_in_flight(
    shared_server: ServerProcess, client: Client, reverse: bool
) -> None:
    table = await filled(client, ROWS)
    async with table.snapshot() as snapshot:
        scan = table.scan().as_of(snapshot).with_chunk(rows=CHUNK_ROWS)
        scan = scan.reverse() if reverse else scan
        batches = [batch async for batch in scan.stream()]
        whole = pa.Table.from_batches(batches)
        assert whole.num_rows == ROWS
        await table.upsert(pa.table({"k": range(0, 2 * ROWS, 2), "v": ["changed"] * ROWS}))
        async with FaultProxy(shared_server.url) as proxy:
            for every in range(1, len(batches) + 1):
                await check_cut_after_every(every, client, scan, whole, proxy)


async def check_cut_after_every(every: int, client: Client, scan: Scan, whole: pa.Table, proxy: FaultProxy) -> None:
    before = await settled(client)
    async with connect(proxy.address, read_ahead_bytes=WINDOW_BYTES) as cut_client:
        stream = cut_client.scan(scan.spec).stream()
        batches, cuts = [], 0
        async for batch in stream:
            batches.append(batch)
            assert sum(each.num_rows for each in batches) <= ROWS, f"cut after every {every} chunks: rows come again"
            if len(batches) % every == 0:
                proxy.apply(Fault("reset"))
                cuts += 1
    same = pa.Table.from_batches(batches).equals(whole)
    assert same, f"cut after every {every} chunks: other rows"
    statistics = stream.stats()
    assert statistics.attempts <= cuts + 1
    assert statistics.rows_scanned <= ROWS + cuts * CHUNK_ROWS
    after = await settled(client)
    assert after.scans_started - before.scans_started == statistics.attempts
    # The client counts received rows. When the connection breaks, the server has read more: the content of the window,
    # which is less than a chunk, one chunk that is being sent, and one that is being built.
    assert after.rows_scanned - before.rows_scanned <= ROWS + 3 * cuts * CHUNK_ROWS


@dataclass(frozen=True, slots=True)
class Ending:
    """A scan whose connection stalled some bytes before its end and then broke.

    Attributes:
        rows_before: Rows that had come when it broke.
        over: Whether the scan had ended by then.
        rows: Rows that came in all.
        attempts: Calls that the client made.
        calls: Calls that the server took.
        rows_scanned: Rows that the server read.
    """

    rows_before: int
    over: bool
    rows: int
    attempts: int
    calls: int
    rows_scanned: int

    @property
    def between(self) -> bool:
        """Returns whether it broke after all rows and before the trailer."""
        return self.rows_before == SMALL_ROWS and not self.over


async def endings(server: ServerProcess, client: Client, scan: Scan) -> list[Ending]:
    """Breaks scans at every few bytes near the end, each over a new connection."""
    async with FaultProxy(server.url) as proxy:
        async with connect(proxy.address, read_ahead_bytes=WINDOW_BYTES) as unharmed:
            await unharmed.scan(scan.spec).to_arrow()
        size = proxy.bytes_to_client
        found = []
        for missing in range(0, END_BYTES, 20):
            before = await settled(client)
            proxy.on_next(Fault("stall", after_bytes=size - missing))
            stream, rows_before, over = await broken(proxy, scan)
            after = await settled(client)
            statistics = stream.stats()
            found.append(
                Ending(
                    rows_before=rows_before,
                    over=over,
                    rows=statistics.rows_returned,
                    attempts=statistics.attempts,
                    calls=after.scans_started - before.scans_started,
                    rows_scanned=after.rows_scanned - before.rows_scanned,
                )
            )
        return found


async def broken(proxy: FaultProxy, scan: Scan) -> tuple[ScanStream, int, bool]:
    """Reads until the connection stalls, then breaks it and reads the rest."""
    async with connect(proxy.address, read_ahead_bytes=WINDOW_BYTES) as client:
        stream = client.scan(scan.spec).stream()
        keys: list[int] = []

        async def read() -> None:
            async for batch in stream:
                keys.extend(batch.column("k").to_pylist())

        reading = asyncio.create_task(read())

        async def nothing_more_to_come() -> bool:
            return reading.done() or len(keys) == SMALL_ROWS

        with suppress(AssertionError):  # The connection stalls in the middle of a message; nothing reports that.
            await await_until(nothing_more_to_come, "all rows", timeout=0.2)
        rows_before, over = len(keys), reading.done()
        proxy.apply(Fault("reset"))
        await reading
    assert sorted(keys) == list(range(SMALL_ROWS))
    return stream, rows_before, over


@pytest.mark.breadth
async def test_a_cut_between_the_last_row_and_the_trailer_repeats_and_rereads_no_row(
    shared_server: ServerProcess, client: Client
) -> None:
    table = await filled(client, SMALL_ROWS)
    async with table.snapshot() as snapshot:
        found = await endings(shared_server, client, table.scan().as_of(snapshot).with_chunk(rows=20))
    between = [ending for ending in found if ending.between]
    assert between, found
    assert all(ending.attempts == ending.calls and ending.rows_scanned == SMALL_ROWS for ending in between), found
    # If the trailer has arrived and only the status of gRPC has not, the client need not resume.
    assert {ending.attempts for ending in between} in ({1, 2}, {2}), found
    assert any(not ending.over and not ending.between for ending in found), "no cut was in the middle of a row"


@pytest.mark.breadth
async def test_a_cut_after_the_last_row_of_a_limit_needs_no_further_call(
    shared_server: ServerProcess, client: Client
) -> None:
    table = await filled(client, SMALL_ROWS)
    async with table.snapshot() as snapshot:
        scan = table.scan().as_of(snapshot).with_chunk(rows=20).limit(SMALL_ROWS)
        found = await endings(shared_server, client, scan)
    between = [ending for ending in found if ending.between]
    assert between, found
    assert all((ending.attempts, ending.calls, ending.rows_scanned) == (1, 1, SMALL_ROWS) for ending in between), found
