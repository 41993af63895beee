"""A server that dies while it archives loses nothing of the archive, and continues it after its restart."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, connect
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify_archive
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.crashing_server import crashing
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Table

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
# Data, segment, data, segment, and how far the archive is, in some order.
POINTS = [f"store {number} {moment}" for number in range(1, 6) for moment in ("before", "after")]
FEW = POINTS[::3]


@pytest.mark.asyncio
@pytest.mark.timeout(240)  # A server is started for each point.
@pytest.mark.parametrize("points", [FEW, pytest.param(POINTS * 5, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
@pytest.mark.soak
async def test_a_kill_while_archiving_loses_no_acknowledged_row(tmp_path: Path, points: list[str]) -> None:
    armed, store = tmp_path / "point", BackupStore(str(tmp_path / "backups"))
    settings = ("--backup-location", store.location, *ARCHIVING)
    rows: dict[int, int] = {}
    instants: list[tuple[int, dict[int, int]]] = []
    with ServerProcess(tmp_path / "data", *settings, wrapper=crashing(armed)) as server:
        async with connect(server.url) as client:
            await client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=2)
            await client.create_backup()
        # A server that dies before its first segment creates another backup.
        await asyncio.to_thread(wait_archived, store)
        for point in points:
            armed.write_text(point)
            async with connect(server.url, operation_timeout=2) as client:
                with pytest.raises(ConnectionFailed):
                    await _write_until_it_dies(await client.table("test.t"), rows)
            await asyncio.to_thread(server.process.wait)
            assert not armed.exists(), f"the server did not reach {point}"
            server.restart()
            async with connect(server.url) as client:
                # The last write may have been applied or not.
                found = await (await client.table("test.t")).scan().to_arrow()
                rows = dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))
            instants.append((await asyncio.to_thread(wait_archived, store), dict(rows)))
    assert verify_archive(store) == []
    assert len(store.manifests()) == 1
    for instant, expected in instants[:: -max(1, len(points) // 3)]:
        restored = tmp_path / str(instant)
        restore_all(store, plan_instant(store, instant), restored)
        with ServerProcess(restored) as other:
            async with connect(other.url) as client:
                found = await (await client.table("test.t")).scan().to_arrow()
        assert dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected


async def _write_until_it_dies(table: Table, rows: dict[int, int]) -> None:
    while True:
        number = len(rows)
        await table.upsert([{"k": number % 50, "v": number}, {"k": number + 1000, "v": number}])
        rows[number + 1000] = number
