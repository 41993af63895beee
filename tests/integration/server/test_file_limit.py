"""A server with few file descriptors accepts writes, however often a table is pinned and its pins are read."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import DeadlineExceeded, ServerBusy, sync
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FEW_FILES = 260
ROWS = 20
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
LIMITED = ("sh", "-c", f'ulimit -n {FEW_FILES}; exec "$0" "$@"')


def write(table: sync.Table, number: int) -> None:
    """Upserts rows with ascending keys, whose files RocksDB itself would never merge."""
    table.upsert(pa.table([range(number * ROWS, (number + 1) * ROWS), [number] * ROWS], schema=SCHEMA))


# Twelve pins, of which every fourth is read, were enough to make writes fail; without readers, 115.
@pytest.mark.breadth
@pytest.mark.parametrize("pins", [40, pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.timeout(180)  # 40 pins, each with a flush
def test_a_table_that_is_pinned_and_written_by_turns_needs_few_files(tmp_path: Path, pins: int) -> None:
    with ServerProcess(tmp_path / "data", wrapper=LIMITED) as server, sync.connect(server.url) as client:
        table = client.create_table("test.t", SCHEMA, primary_key="k", buckets=4)
        most = 0
        for number in range(pins):
            write(table, number)
            snapshot = table.snapshot()
            if number % 4 == 0:
                assert table.scan().as_of(snapshot).to_arrow().num_rows == (number + 1) * ROWS
                most = max(most, client.stats().open_files)
        assert client.stats().file_limit == FEW_FILES
        assert most < FEW_FILES * 3 // 4
        assert table.count() == pins * ROWS
        assert "ERROR" not in server.log


@pytest.mark.breadth
def test_writes_go_on_after_the_server_has_run_out_of_files(server: ServerProcess) -> None:
    with sync.connect(server.url) as client, sync.connect(server.url, operation_timeout=0.5) as hasty:
        table = client.create_table("test.t", SCHEMA, primary_key="k", buckets=2)
        impatient = hasty.table("test.t")
        refused = number = 0
        write(table, number)
        for spare in range(1, 9):
            with few_files(server, client.stats().open_files + spare):
                try:
                    with impatient.snapshot():
                        pass
                    write(impatient, number)
                except (ServerBusy, DeadlineExceeded):
                    refused += 1
            number += 1
            write(table, number)
            with table.snapshot() as snapshot:
                assert table.scan().as_of(snapshot).to_arrow().num_rows == (number + 1) * ROWS
        assert refused > 0
        assert table.count() == (number + 1) * ROWS
    assert server.stop() == 0
    assert "incident" not in server.log
    server.restart()
    with sync.connect(server.url) as client:
        assert client.table("test.t").count() == (number + 1) * ROWS


@contextmanager
def few_files(server: ServerProcess, limit: int) -> Iterator[None]:
    """Limits the server's open files during the block."""
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    yield
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
