"""Scans whose rows may come in any order read the tablets of all owners at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import Resume, connect, sync
from scankv.model.errors import ScanInterrupted, ScanStalled
from tests.support.server_process import ServerProcess
from tests.support.streams import cancel_reading
from tests.support.tables import SCORES
from tests.support.waiting import await_until, wait_until
from tests.support.workers import freeze, kill_worker, names_of_workers, processes_of, wait_for_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

ROWS, BUCKETS, TABLETS = 30_000, 8, 4
HOME, OTHER = 0, 1
"""The worker that owns the table, its first tablet and its third one, and the worker that owns the others."""

OF_HOME = {0, 1, 4, 5}
"""The buckets of the first worker."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("unordered") / "data"
    with ServerProcess(data, "--workers", "2") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(server.url, read_ahead_bytes=65536) as client:
        yield client


def create(client: sync.Client, database: str) -> sync.Table:
    """Creates a table that the first worker owns, with rows that do not fit into what clients read ahead."""
    (name,) = names_of_workers(2, database)[HOME]
    table = client.create_table(name, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
    table.upsert(pa.table({"player": [f"p{n:06}" for n in range(ROWS)], "score": list(range(ROWS))}, schema=SCORES))
    return table


def test_rows_of_an_owner_come_while_another_one_sends_none(client: sync.Client, server: ServerProcess) -> None:
    scan = create(client, "owners").scan().with_chunk(rows=500)
    of_other = scan.with_buckets(sorted({*range(BUCKETS)} - OF_HOME)).to_arrow().num_rows
    seen: list[tuple[int, pa.RecordBatch]] = []
    with scan.unordered().stream() as stream:
        with freeze(processes_of(server)[HOME]):
            while _rows_beyond(seen, OF_HOME) < of_other:
                rows = next(stream)
                assert stream.bucket is not None
                seen.append((stream.bucket, rows))
        seen += ((stream.bucket or 0, rows) for rows in stream)
        statistics = stream.stats()
    assert (statistics.rows_returned, statistics.rows_scanned) == (ROWS, ROWS)
    with scan.stream() as stream:
        ordered = [(stream.bucket, rows) for rows in stream]
    for bucket in range(BUCKETS):
        assert _of_bucket(seen, bucket) == _of_bucket(ordered, bucket)


def _rows_beyond(seen: list[tuple[int, pa.RecordBatch]], buckets: set[int]) -> int:
    return sum(rows.num_rows for bucket, rows in seen if bucket not in buckets)


def _of_bucket(seen: Sequence[tuple[int | None, pa.RecordBatch]], bucket: int) -> pa.Table:
    """Returns the rows of a bucket in the order in which they came."""
    return pa.Table.from_batches([rows for number, rows in seen if number == bucket], SCORES).combine_chunks()


@pytest.mark.breadth
def test_collected_rows_have_the_order_of_the_stream(client: sync.Client) -> None:
    scan = create(client, "collected").scan().with_chunk(rows=500)
    for each in (scan, scan.reverse(), scan.unordered(), scan.ordered(), scan.with_buckets(6, 1), scan.limit(0)):
        with each.stream() as stream:
            rows = pa.Table.from_batches(stream, stream.schema)
        if each.spec.unordered:
            rows = pa.Table.from_batches(scan.stream(), SCORES)
        assert each.to_arrow().combine_chunks() == rows.combine_chunks()


def test_no_token_says_where_an_unordered_scan_continues(client: sync.Client, server: ServerProcess) -> None:
    scan = create(client, "tokens").scan().with_chunk(rows=500)
    with scan.unordered().stream() as stream:
        next(stream)
        assert stream.resume_token is None
        kill_worker(server, OTHER)
        with pytest.raises(ScanInterrupted, match="start the scan again") as caught:
            list(stream)
    assert caught.value.resume_token is None
    wait_for_worker(server, OTHER)
    with scan.unordered().resume(Resume.LATEST).stream() as stream:
        assert next(stream).num_rows
        assert stream.resume_token is not None
        kill_worker(server, OTHER)
        list(stream)
        assert stream.stats().rows_returned == ROWS
        assert stream.resumptions
    wait_for_worker(server, OTHER)
    with scan.stream() as stream:
        first = next(stream).num_rows
        continued = scan.unordered().resume_from(stream.resume_token or b"")
    assert continued.to_arrow().num_rows == ROWS - first


@pytest.mark.breadth
def test_a_reader_that_stops_is_noticed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2", "--set=stall_timeout_seconds=1") as server:
        with sync.connect(server.url, read_ahead_bytes=65536) as client:
            scan = create(client, "stalls").scan().with_chunk(rows=500).unordered()
            with scan.stream() as stream:
                next(stream)
                wait_until(lambda: not client.live_scans(), "the server ends the scan")
                with pytest.raises(ScanStalled):
                    list(stream)
            assert scan.to_arrow().num_rows == ROWS


@pytest.mark.parametrize("how", ["drop", "close", "cancel"])
def test_the_reads_at_all_owners_end_with_the_stream(client: sync.Client, server: ServerProcess, how: str) -> None:
    name = create(client, f"ends{how}").name
    asyncio.run(_end(server, name, how))


async def _end(server: ServerProcess, name: str, how: str) -> None:
    """Ends a scan while one owner sends nothing, and waits until neither the client nor the server has any of it."""
    async with connect(server.url, read_ahead_bytes=65536) as client:
        stream = (await client.table(name)).scan().with_chunk(rows=500).unordered().stream()
        await stream.__aenter__()
        before = asyncio.all_tasks()
        with freeze(processes_of(server)[OTHER]):
            assert (await anext(stream)).num_rows
            reads = asyncio.all_tasks() - before
            assert reads
            if how == "close":
                await stream.aclose()
            else:
                if how == "cancel":
                    await cancel_reading(stream)
                del stream
            async with asyncio.timeout(20):
                await asyncio.wait(reads)

        async def none_is_live() -> bool:
            return not await client.live_scans()

        # Long before the stall timeout, after which the server would notice by itself.
        await await_until(none_is_live, "the server has ended the scan", timeout=20)
