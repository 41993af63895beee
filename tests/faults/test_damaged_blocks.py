"""Reading a damaged table file is an error, never fewer rows, and everything else continues to work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aio_client import Client, DataLoss, Scan, Table, connect
from tests.support.offline import bucket_path
from tests.support.prepared import flip, keys_in, prepared_table, rows_file, value_of
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio

ROWS = 20_000
DAMAGED_BUCKET = 1
SPREAD = 24
"""The number of positions, spread over a file, that are damaged one after another."""


@dataclass(frozen=True)
class DamagedBlock:
    """A table whose bucket 1 has damage in the block of the row `key`; the row `fine` is in another block."""

    key: int
    fine: int


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "data"


@pytest.fixture(scope="module")
def damaged(data: Path) -> dict[str, DamagedBlock]:
    """Creates tables with damage in the first, a middle and the last block of bucket 1."""
    tables = {}
    for name, place, other in (("test.first", 0, -1), ("test.middle", ROWS // 4, 0), ("test.last", -1, 0)):
        prepared_table(data, name, ROWS)
        keys = keys_in(data, name, DAMAGED_BUCKET)
        file = rows_file(bucket_path(data, name, DAMAGED_BUCKET))
        flip(file, file.read_bytes().find(value_of(keys[place]).encode()) + 3)
        tables[name] = DamagedBlock(keys[place], keys[other])
    return tables


@pytest.fixture(scope="module")
def spread(data: Path) -> list[str]:
    """Creates tables with one damaged byte in bucket 1, at positions all over the file, with default compression."""
    names = [f"test.spread_{number}" for number in range(SPREAD)]
    for number, name in enumerate(names):
        prepared_table(data, name, 5000, compression="lz4")
        file = rows_file(bucket_path(data, name, DAMAGED_BUCKET))
        flip(file, (file.stat().st_size - 1) * number // (SPREAD - 1))
    return names


@pytest.fixture(scope="module")
def harmed_server(data: Path, damaged: dict[str, DamagedBlock], spread: list[str]) -> Iterator[ServerProcess]:
    assert damaged
    assert spread
    with ServerProcess(data) as server:
        yield server


async def within(seconds: float, work: Callable[[Table], object], client: Client, name: str) -> object:
    """Runs some work on a table with a time limit, so that a call that hangs fails the test."""
    async with asyncio.timeout(seconds):
        return await work(await client.table(name))  # type: ignore[misc]


@pytest.mark.represented_by("test.middle")
@pytest.mark.parametrize("name", ["test.first", "test.middle", "test.last"])
async def test_a_scan_over_a_damaged_block_is_data_loss(harmed_server: ServerProcess, name: str) -> None:
    async with connect(harmed_server.url) as client:
        for options in ({}, {"rows": 1000}, {"rows": 65_536, "bytes": 1 << 24}):
            with pytest.raises(DataLoss) as caught:
                await within(30, lambda table, o=options: table.scan().with_chunk(**o).to_arrow(), client, name)  # type: ignore[misc]
            assert caught.value.details["table"] == name
            assert caught.value.details["bucket"] == str(DAMAGED_BUCKET)
            assert f"bucket {DAMAGED_BUCKET}" in caught.value.message
        assert (await client.stats()).live_scans == 0
        assert f"{name}/{DAMAGED_BUCKET}" in (await client.stats()).damaged_buckets
    assert f"DATA_LOSS in bucket {DAMAGED_BUCKET} of {name}" in harmed_server.log
    assert "incident" not in harmed_server.log


@pytest.mark.parametrize("name", ["test.first", "test.middle", "test.last"])
async def test_a_projection_over_a_damaged_block_is_data_loss(harmed_server: ServerProcess, name: str) -> None:
    async with connect(harmed_server.url) as client:
        for columns in (["k"], []):
            with pytest.raises(DataLoss):
                await within(30, lambda table, c=columns: table.scan(columns=c).to_arrow(), client, name)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["test.first", "test.middle", "test.last"])
async def test_a_query_over_a_damaged_block_is_data_loss(harmed_server: ServerProcess, name: str) -> None:
    async with connect(harmed_server.url) as client:
        table = await client.table(name)
        for question in (
            table.count("k >= 0"),
            table.aggregate({"k": ["count", "max"]}),
            table.aggregate({}, group_by=["k"]),
            table.top_n(1, "v"),
            table.top_n(100_000, "k", descending=False),
        ):
            with pytest.raises(DataLoss) as caught:
                await question
            assert caught.value.details["bucket"] == str(DAMAGED_BUCKET)
        assert (await client.stats()).live_scans == 0


@pytest.mark.parametrize("name", ["test.first", "test.middle", "test.last"])
async def test_other_buckets_and_blocks_of_a_damaged_table_can_be_read_and_written(
    harmed_server: ServerProcess, damaged: dict[str, DamagedBlock], data: Path, name: str
) -> None:
    async with connect(harmed_server.url) as client:
        table = await client.table(name)
        whole = await table.scan().with_buckets(0).to_arrow()
        assert sorted(whole.column("k").to_pylist()) == keys_in(data, name, 0)
        fine = damaged[name].fine
        assert await table.get(fine) == {"k": fine, "v": value_of(fine)}
        await table.upsert([{"k": fine, "v": value_of(fine)}])
        assert (await table.get(keys_in(data, name, 0)[5])) is not None


@pytest.mark.parametrize("name", ["test.first", "test.middle", "test.last"])
async def test_reading_or_writing_a_row_in_a_damaged_block_is_data_loss(
    harmed_server: ServerProcess, damaged: dict[str, DamagedBlock], name: str
) -> None:
    key = damaged[name].key
    async with connect(harmed_server.url) as client:
        table = await client.table(name)
        before = [bucket.log_offset for bucket in await table.stats()]
        for work in (
            lambda: table.get(key),
            lambda: table.lookup([damaged[name].fine, key]),
            lambda: table.upsert([{"k": key, "v": "new"}]),
            lambda: table.delete([key]),
        ):
            with pytest.raises(DataLoss) as caught:
                async with asyncio.timeout(60):
                    await work()
            assert caught.value.details["bucket"] == str(DAMAGED_BUCKET)
        assert [bucket.log_offset for bucket in await table.stats()] == before


async def test_a_limited_scan_that_ends_before_the_damage_succeeds(harmed_server: ServerProcess) -> None:
    async with connect(harmed_server.url) as client:
        table = await client.table("test.last")
        assert (await table.scan(limit=100).to_arrow()).num_rows == 100


async def rows_or_none(scan: Scan) -> int | None:
    """Returns the number of rows of a scan, or None if it fails with data loss of the damaged bucket."""
    try:
        rows: int = (await scan.to_arrow()).num_rows
        return rows
    except DataLoss as error:
        if error.details["bucket"] == str(DAMAGED_BUCKET):
            return None
        raise


async def test_a_flipped_byte_anywhere_is_data_loss_or_harmless(
    harmed_server: ServerProcess, spread: list[str]
) -> None:
    harmless = 0
    async with connect(harmed_server.url) as client:
        for name in spread:
            table = await client.table(name)
            async with asyncio.timeout(60):
                sound = (await table.scan().with_buckets(0).to_arrow()).num_rows
                for scan, expected in ((table.scan(), 5000), (table.scan().with_buckets(1), 5000 - sound)):
                    rows = await rows_or_none(scan)
                    assert rows in (expected, None)
                    harmless += rows is not None
    assert harmless < SPREAD
    assert "incident" not in harmed_server.log


@pytest.mark.parametrize("reader_stops", [False, True])
@pytest.mark.represented_by("False")
async def test_data_loss_in_the_middle_of_a_stream_reaches_every_reader(
    harmed_server: ServerProcess, reader_stops: bool
) -> None:
    """The error must arrive even if the server is sending something else at that moment."""
    async with connect(harmed_server.url) as client:
        table = await client.table("test.middle")

        async def read(chunk_rows: int) -> None:
            stream = table.scan().with_chunk(rows=chunk_rows).stream()
            if reader_stops:
                await anext(stream)
                await client.stats()
            with pytest.raises(DataLoss):
                async for _ in stream:
                    pass

        async with asyncio.timeout(60):
            for _ in range(4):
                await asyncio.gather(*(read(rows) for rows in (20, 50, 100, 1000, 8192)))
        assert (await client.stats()).live_scans == 0
