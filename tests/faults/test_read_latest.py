"""`read_latest` shows writes before their sync. Once a power failure has undone them, nothing mistakes others for them.

The disk ends no sync, so that all of `read_committed` waits.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import PositionOutOfRange, StartFrom, StopAt, connect
from scankv.model.scans.isolation import ISOLATIONS
from tests.support.failing_disk import WAITING_SYNCS, FailingDisk, compile_library
from tests.support.offline import bucket_path
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from aio_client import Table
    from scankv.model.scans.isolation import Isolation

pytestmark = pytest.mark.asyncio

NAME = "test.lost"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def log_sizes(data_dir: Path) -> dict[Path, int]:
    """Returns the write-ahead log files of the bucket and their sizes."""
    return {path: path.stat().st_size for path in bucket_path(data_dir, NAME, 0).glob("*.log")}


async def get(table: Table, isolation: Isolation) -> int:
    row = await table.get(2, isolation=isolation)
    return int(row is not None)


async def lookup(table: Table, isolation: Isolation) -> int:
    return int((await table.lookup(pa.array(range(2, 300)), isolation=isolation)).num_rows)


async def scan(table: Table, isolation: Isolation) -> int:
    return int((await table.scan(where="v > 1").isolation(isolation).to_arrow()).num_rows)


async def scan_by_index(table: Table, isolation: Isolation) -> int:
    return int((await table.scan(where="v = 2").isolation(isolation).to_arrow()).num_rows)


async def count(table: Table, isolation: Isolation) -> int:
    return await table.count(isolation=isolation) - 1


async def count_some(table: Table, isolation: Isolation) -> int:
    return await table.count("v > 1", isolation=isolation)


async def aggregate(table: Table, isolation: Isolation) -> int:
    found = await table.aggregate({"v": "count"}, "v > 1", isolation=isolation)
    return int(found["v_count"][0].as_py())


async def top_n(table: Table, isolation: Isolation) -> int:
    return int((await table.top_n(5, "v", "v > 1", isolation=isolation)).num_rows)


async def top_n_without_index(table: Table, isolation: Isolation) -> int:
    return int((await table.top_n(5, "k", "v > 1", isolation=isolation)).num_rows)


# Each returns how many rows with `v` over 1 it finds.
READS: list[Callable[[Table, Isolation], Coroutine[Any, Any, int]]] = [
    get, lookup, scan, scan_by_index, count, count_some, aggregate, top_n, top_n_without_index,
]  # fmt: skip


@pytest.mark.soak
async def test_every_read_shows_what_has_no_sync_yet_and_nothing_is_mistaken_for_it_after_a_power_failure(
    tmp_path: Path,
) -> None:
    disk = FailingDisk(tmp_path, compile_library(tmp_path))
    with ServerProcess(disk.root, wrapper=disk.wrapper) as server:
        async with connect(server.url, operation_timeout=60, attempt_timeout=60) as client:
            table = await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=1, indexes=["v"])
            await table.upsert([{"k": 1, "v": 1}])
            async with table.scan().stream() as stream:
                _ = [rows async for rows in stream]
                durable = stream.version
            synced = log_sizes(server.data_dir)
            disk.fail(WAITING_SYNCS)
            async with (
                table.changes(StartFrom.FULL).isolation("read_latest").stream() as changes,
                table.changes(StartFrom.EARLIEST).stream() as durable_changes,
            ):
                assert (await anext(changes))["v"].to_pylist() == [1]
                assert (await anext(durable_changes))["v"].to_pylist() == [1]
                lost = asyncio.create_task(table.upsert([{"k": 2, "v": 2}]))
                assert (await anext(changes))["v"].to_pylist() == [2]
                committed = [asyncio.create_task(read(table, "read_committed")) for read in READS]
                unseen = asyncio.ensure_future(anext(durable_changes))
                for read in READS:
                    assert await read(table, "read_latest") == 1, read.__name__
                stop_now = table.changes(StartFrom.EARLIEST, StopAt.LATEST).isolation("read_latest")
                assert (await stop_now.to_arrow())["v"].to_pylist() == [1, 2]
                async with table.scan().isolation("read_latest").stream() as stream:
                    _ = [rows async for rows in stream]
                    undone = stream.log_offsets
                    assert stream.version == b""
                # Not even memory hands the result on, nor tells a reader that the durable version has changed in vain.
                await asyncio.gather(*(top_n(table, "read_latest") for _ in range(5)))
                assert not lost.done()
                assert not any(task.done() for task in (*committed, unseen))
                unseen.cancel()
                token = changes.resume_token
                assert token is not None
            await asyncio.to_thread(server.kill)
            for task in (lost, *committed):
                task.cancel()
            await asyncio.wait([lost, *committed])
        for path in log_sizes(server.data_dir):
            os.truncate(path, synced.get(path, 0))
        disk.heal()
        await asyncio.to_thread(server.restart)
        async with connect(server.url) as client:
            table = await client.table(NAME)
            for read in READS:
                assert [await read(table, isolation) for isolation in ISOLATIONS] == [0, 0], read.__name__
            async with table.scan().if_changed_since(durable).stream() as stream:
                assert stream.unchanged
            await table.upsert([{"k": 3, "v": 3}])
            for read in READS[2:]:
                assert await read(table, "read_committed") == (read is not scan_by_index), read.__name__
            resumed = table.changes(StartFrom.FULL).isolation("read_latest").resume_from(token)
            with pytest.raises(PositionOutOfRange):
                async with resumed.stream() as stream:
                    await anext(stream)
            with pytest.raises(PositionOutOfRange):
                await table.changes(StartFrom.offsets(undone), StopAt.LATEST).to_arrow()
            with pytest.raises(PositionOutOfRange):
                await table.upsert([{"k": 3, "v": 4}], if_version=undone)
