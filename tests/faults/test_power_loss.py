"""A power loss before a sync loses what was written to the write-ahead log since the last sync.

strace holds every sync back for a while, so that the server is killed between a write and its sync, and the log is cut
to what the last sync covered. That is what a disk may keep of it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import PositionOutOfRange, StartFrom, StopAt, connect
from tests.support.offline import bucket_path
from tests.support.server_process import ServerProcess
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import ScanStream

pytestmark = pytest.mark.usefixtures("strace")

NAME = "test.lost"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
SLOW_SYNCS = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e")
DELAY = "inject=fdatasync:delay_enter=300000"


def log_sizes(data_dir: Path) -> dict[Path, int]:
    """Returns the write-ahead log files of the bucket and their sizes."""
    return {path: path.stat().st_size for path in bucket_path(data_dir, NAME, 0).glob("*.log")}


async def changes_until(stream: ScanStream, v: int) -> list[tuple[int, int]]:
    """Returns offset and value of all changes up to the first with a given value."""
    found: list[tuple[int, int]] = []
    while v not in (value for _, value in found):
        rows = await anext(stream)
        found += zip(rows["_log_offset"].to_pylist(), rows["v"].to_pylist(), strict=True)
    return found


@pytest.mark.asyncio
@pytest.mark.soak
async def test_no_stream_has_seen_changes_lost_in_a_power_failure_and_their_offsets_are_never_reused(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data", wrapper=(*SLOW_SYNCS, DELAY)) as server:
        async with connect(server.url, operation_timeout=120, attempt_timeout=60) as client:
            table = await client.create_table(NAME, SCHEMA, primary_key=["k"], buckets=1)
            await table.upsert([{"k": 1, "v": 1}])
            synced = log_sizes(server.data_dir)
            async with table.changes(StartFrom.EARLIEST).stream() as stream:
                seen = await changes_until(stream, 1)
                unseen = asyncio.create_task(anext(stream))
                lost = asyncio.create_task(table.upsert([{"k": 2, "v": 2}]))

                async def is_written() -> bool:
                    return log_sizes(server.data_dir) != synced

                await await_until(is_written, "in the log's file")
                assert not lost.done()
                assert not unseen.done(), "a change was delivered before its sync"
                await asyncio.to_thread(server.kill)
                lost.cancel()  # without retries
                for path, size in synced.items():
                    os.truncate(path, size)
                await asyncio.to_thread(server.restart)
                with pytest.raises(asyncio.CancelledError):
                    await lost
                await client.wait_ready()
                await table.upsert([{"k": 3, "v": 3}])
                rows = await unseen
                seen += zip(rows["_log_offset"].to_pylist(), rows["v"].to_pylist(), strict=True)
            assert [value for _, value in seen] == [1, 3]
            taken = seen[0][0] + 1
            assert seen[1][0] > taken, "the offset of the lost change was used again"
            assert (await table.scan().to_arrow()).sort_by("k")["v"].to_pylist() == [1, 3]
            with pytest.raises(PositionOutOfRange):
                await table.changes(StartFrom.offsets({0: taken + 1})).stop_at(StopAt.LATEST).to_arrow()
