"""`CheckTable` over the wire, and tables with indexes as the service creates, alters and describes them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from scankv.v1 import admin_pb2, table_pb2, write_pb2
from tests.support.tables import ipc_stream
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal, refusal_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("k", pa.int64()), ("score", pa.int64()), ("league", pa.string())])


def create(wire: Wire, name: str, *indexes: tuple[str, ...], buckets: int = 3) -> table_pb2.Table:
    """Creates a table with indexes."""
    request = table_pb2.CreateTableRequest(
        name=name,
        arrow_schema=SCHEMA.serialize().to_pybytes(),
        primary_key=["k"],
        buckets=buckets,
        indexes=[table_pb2.IndexColumns(columns=columns) for columns in indexes],
    )
    return wire.tables.CreateTable(request, timeout=60).table


def put(wire: Wire, name: str, rows: int) -> None:
    """Upserts the rows 0, 1, 2, ..."""
    for start in range(0, rows, 100_000):
        keys = range(start, min(start + 100_000, rows))
        columns = [pa.array(keys, pa.int64()), pa.array([key % 100 for key in keys], pa.int64())]
        batch = pa.RecordBatch.from_arrays([*columns, pa.nulls(len(keys), pa.string())], schema=SCHEMA)
        wire.writes.Upsert(write_pb2.UpsertRequest(table=name, rows=ipc_stream(SCHEMA, batch)), timeout=60)


def check(wire: Wire, name: str) -> list[admin_pb2.BucketCheck]:
    """Returns the answer of `CheckTable`."""
    return list(wire.admin.CheckTable(admin_pb2.CheckTableRequest(table=name), timeout=60))


def described(wire: Wire, name: str) -> table_pb2.GetTableResponse:
    """Returns the answer of `GetTable`, with statistics."""
    request = table_pb2.GetTableRequest(name=name, statistics=True)
    answer: table_pb2.GetTableResponse = wire.tables.GetTable(request, timeout=60)
    return answer


def columns_of(indexes: list[table_pb2.Index]) -> list[tuple[int, tuple[str, ...]]]:
    """Returns the ids and columns of indexes."""
    return [(index.id, tuple(index.columns)) for index in indexes]


def test_a_table_is_created_altered_and_described_with_its_indexes(wire: Wire, name: str) -> None:
    table = create(wire, name, ("score",), ("league", "score"))
    assert columns_of(list(table.indexes)) == [(1, ("score",)), (2, ("league", "score"))]
    put(wire, name, 1_000)
    altered = wire.tables.AlterTable(
        table_pb2.AlterTableRequest(
            name=name,
            add_columns=pa.schema([("team", pa.string())]).serialize().to_pybytes(),
            add_indexes=[table_pb2.IndexColumns(columns=["team"]), table_pb2.IndexColumns(columns=["score"])],
            drop_indexes=[table_pb2.IndexColumns(columns=["score"])],
        ),
        timeout=60,
    ).table
    expected = [(2, ("league", "score")), (3, ("team",)), (4, ("score",))]
    assert columns_of(list(altered.indexes)) == expected
    wait_until(lambda: all(status.ready for status in described(wire, name).indexes), "all indexes ready")
    answer = described(wire, name)
    assert columns_of(list(answer.table.indexes)) == expected
    found = [(status.id, status.rows_done, status.rows, status.failure) for status in answer.indexes]
    assert found == [(id_, 1_000, 1_000, "") for id_ in (2, 3, 4)]
    listed = wire.tables.ListTables(table_pb2.ListTablesRequest(), timeout=60).tables
    assert columns_of(next(list(table.indexes) for table in listed if table.name == name)) == expected
    assert not wire.tables.GetTable(table_pb2.GetTableRequest(name=name), timeout=60).indexes


def test_an_alteration_of_nothing_is_refused(wire: Wire, name: str) -> None:
    create(wire, name)
    refused = refusal(wire.tables.AlterTable, table_pb2.AlterTableRequest(name=name))
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert "there is nothing to change" in refused.message


def test_a_sound_table_has_no_problem_in_any_bucket(wire: Wire, name: str) -> None:
    create(wire, name, ("score",), ("league", "score"))
    put(wire, name, 5_000)
    checks = check(wire, name)
    assert [checked.bucket for checked in checks] == [0, 1, 2]
    assert sum(checked.rows for checked in checks) == 5_000
    for checked in checks:
        assert checked.problem == ""
        found = [(tuple(index.columns), index.entries, index.ready, index.problem) for index in checked.indexes]
        assert found == [(("score",), checked.rows, True, ""), (("league", "score"), checked.rows, True, "")]
    assert wire.server().open_cursors == 0


def test_a_table_that_does_not_exist_cannot_be_checked(wire: Wire) -> None:
    refused = refusal(wire.admin.CheckTable, admin_pb2.CheckTableRequest(table="no.table"))
    assert (refused.code, refused.reason) == ("NOT_FOUND", "TABLE_NOT_FOUND")


@pytest.mark.breadth
def test_a_check_is_listed_as_a_scan_and_can_be_cancelled(wire: Wire, name: str) -> None:
    create(wire, name, ("score",), ("league", "score"))
    put(wire, name, 300_000)
    scanned = wire.server().rows_scanned
    ended: list[grpc.RpcError] = []

    def run() -> None:
        try:
            check(wire, name)
        except grpc.RpcError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def listed() -> admin_pb2.LiveScan | None:
        scans = wire.admin.ListScans(admin_pb2.ListScansRequest(), timeout=60).scans
        return next((scan for scan in scans if scan.table == name), None)

    found = wait_until(listed, "the check listed")
    assert found is not None
    assert list(found.buckets) == [0, 1, 2]
    wire.admin.CancelScan(admin_pb2.CancelScanRequest(scan_id=found.scan_id), timeout=60)
    thread.join(60)
    assert refusal_of(ended[0]).reason == "SCAN_CANCELLED"
    assert listed() is None
    assert wire.server().open_cursors == 0
    assert wire.server().rows_scanned - scanned < 300_000


def test_a_check_whose_caller_goes_frees_everything(wire: Wire, name: str) -> None:
    create(wire, name, ("score",), buckets=8)
    put(wire, name, 100_000)
    call = wire.admin.CheckTable(admin_pb2.CheckTableRequest(table=name), timeout=60)
    assert next(iter(call)).bucket == 0
    call.cancel()  # type: ignore[no-untyped-call]  # the stub of gRPC lacks its type
    wait_until(lambda: wire.server().open_cursors == 0 and wire.server().live_scans == 0, "the check gone")
    assert len(check(wire, name)) == 8


def test_a_damaged_bucket_is_told_and_the_others_are_checked(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        create(wire, "test.t", ("score",))
        put(wire, "test.t", 900)
        rows = {checked.bucket: checked.rows for checked in check(wire, "test.t")}
    assert server.stop() == 0
    damage(server.data_dir / "tables" / "test" / "t" / "buckets" / "0001.durable")
    server.restart()
    with Wire(server.url) as wire:
        checks = check(wire, "test.t")
        assert [(checked.bucket, checked.rows) for checked in checks] == [(0, rows[0]), (1, 0), (2, rows[2])]
        assert [bool(checked.problem) for checked in checks] == [False, True, False]
        assert "bucket 1 of test.t is damaged" in checks[1].problem
        assert [(tuple(index.columns), index.ready) for index in checks[1].indexes] == [(("score",), False)]
        (status,) = described(wire, "test.t").indexes
        assert not status.ready
        assert "bucket 1 of test.t is damaged" in status.failure


def damage(mark: Path) -> None:
    """Makes the durable watermark of a bucket unreadable."""
    mark.write_bytes(b"?")
