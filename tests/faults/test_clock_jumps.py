"""A server that is killed while its clock jumps applies repeated requests once and keeps commit times in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ScanSource, StartFrom, StopAt, agg, sync
from scankv.v1 import write_pb2
from tests.support.clocks import DAY, HOUR
from tests.support.jumping_clock import jumping
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def offset(tmp_path: Path) -> Path:
    return tmp_path / "offset"


@pytest.fixture
def server(tmp_path: Path, offset: Path) -> Iterator[ServerProcess]:
    settings = ("--set", "log_maintenance_seconds=0.05", "--set", "max_clock_step_seconds=60")
    with ServerProcess(tmp_path / "data", *settings, wrapper=jumping(offset)) as server:
        yield server


def add_five(server: ServerProcess, sequence: int) -> None:
    rows = ipc_stream(SCHEMA, pa.RecordBatch.from_pylist([{"k": 1, "v": 5}], schema=SCHEMA))
    identity = write_pb2.WriterIdentity(id="anybody", sequence=sequence, sent_millis_ago=20_000)
    with Wire(server.url) as wire:
        wire.writes.Upsert(write_pb2.UpsertRequest(table="a.b", rows=rows, writer=identity))


def test_requests_are_applied_once_over_kills_and_jumps_and_commit_times_ascend(
    server: ServerProcess, offset: Path
) -> None:
    with sync.connect(server.url) as client:
        table = client.create_table(
            "a.b", SCHEMA, primary_key=["k"], buckets=1, merge_engine="aggregate", aggregators={"v": agg.sum()}
        )
        for sequence, seconds in enumerate((2 * HOUR, 2 * HOUR - 300 * DAY, 0, 300 * DAY)):
            add_five(server, sequence)
            offset.write_text(str(int(seconds)))
            add_five(server, sequence)
            server.kill()
            server.restart()
            add_five(server, sequence)
            assert table.get(1) == {"k": 1, "v": 5 * (sequence + 1)}
        times = [row["_commit_timestamp"] for row in changes_of(table).to_pylist()]
        assert times == sorted(times)
        assert (times[-1] - times[0]).total_seconds() < HOUR, "all of them were written within a minute or so"
        stats = client.stats()
        assert stats.clock_offset > 299 * DAY
        assert "the wall clock has jumped" in server.log


def changes_of(table: sync.Table) -> sync.Scan:
    scan = table.scan().with_source(ScanSource.LOG).start_from(StartFrom.EARLIEST)
    return scan.stop_at(StopAt.LATEST).with_row_kind()
