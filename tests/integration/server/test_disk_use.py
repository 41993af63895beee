"""The disk use that the server reports equals the size of its files, by kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = 20_000


def on_disk(path: Path) -> int:
    """Returns the bytes that a directory takes, with each file counted once."""
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            status = os.stat(os.path.join(directory, name))
            found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def rewrite(table: sync.Table) -> None:
    table.upsert(pa.table({"k": range(ROWS), "v": [os.urandom(20).hex() for _ in range(ROWS)]}, schema=SCHEMA))


@pytest.mark.breadth
def test_what_is_told_of_a_table_and_of_the_server_is_what_the_files_take(server: ServerProcess) -> None:
    path = server.data_dir / "tables" / "test" / "t"
    with sync.connect(server.url) as client:
        table = client.create_table("test.t", SCHEMA, primary_key="k", buckets=3, indexes=["v"])
        for _ in range(3):
            rewrite(table)
        used = table.disk_use()
        assert used.total == on_disk(path)
        assert used.write_ahead_logs > 3 * ROWS * 40, "nothing was flushed"
        assert sum(bucket.disk_bytes for bucket in table.stats()) <= used.total
        assert sum(bucket.log_bytes for bucket in table.stats()) > 3 * ROWS * 40
        with table.snapshot():
            flushed = table.disk_use()
            assert flushed.total == on_disk(path)
            assert min(flushed.rows, flushed.changelog, flushed.indexes) > ROWS * 40
            assert flushed.snapshots < ROWS * 40, "table files are shared with the table"
            for _ in range(4):
                rewrite(table)
                table.snapshot().release()
            wait_until(lambda: table.disk_use().snapshots > ROWS * 40, "files that the snapshot alone keeps")
            wait_until(lambda: table.disk_use().total == on_disk(path), "compactions to end")
            held = [(bucket.retention_holder, bucket.retention_hold_bytes) for bucket in table.stats()]
            assert all(holder is not None and size > ROWS * 40 for holder, size in held)
        with client.transaction() as transaction:
            transaction.upsert(table, [{"k": k, "v": os.urandom(5_000).hex()} for k in range(10)])
            assert client.stats().disk.staging >= 100_000
            wait_until(lambda: client.stats().disk.total == on_disk(server.data_dir), "compactions to end")
            stats = client.stats()
            assert 0 < stats.free_disk_bytes
            assert 0 < stats.open_files < stats.file_limit
    server.stop()
    server.restart()
    with sync.connect(server.url) as client:
        stats = client.stats()
        assert stats.open_buckets == 0
        assert stats.disk.unopened > 0
        assert stats.disk.total == on_disk(server.data_dir)
    scankv = CommandLine(server.url)
    assert "on disk" in scankv("describe", "test.t").text
    assert scankv("describe", "test.t", "--json").json["disk_use"]["total"] > 0
    assert scankv("stats", "--json").json["disk"]["total"] > 0
    assert "free disk" in scankv("stats").text
