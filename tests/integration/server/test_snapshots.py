"""Pinned snapshots over the wire: the answers, the leases, and the scans that outlive them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import connect
from scankv.v1 import scan_pb2, snapshot_pb2, table_pb2, write_pb2
from tests.support.snapshots import views_on_disk
from tests.support.tables import SCORES, ipc_stream
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

NAME = "game.scores"


@pytest.fixture
def own(server: ServerProcess) -> Iterator[Wire]:
    """Runs a server for this test only, with a table of a few rows."""
    with Wire(server.url) as wire:
        wire.create(NAME, SCORES)
        asyncio.run(write(server.url, {f"player {i}": i for i in range(50)}))
        yield wire


async def write(url: str, values: dict[str, int]) -> None:
    async with connect(url) as client:
        table = await client.table(NAME)
        await table.upsert(pa.table({"player": list(values), "score": list(values.values())}))


def listed(wire: Wire, table: str = "") -> list[snapshot_pb2.Snapshot]:
    request = snapshot_pb2.ListSnapshotsRequest(table=table)
    return list(wire.snapshots.ListSnapshots(request, timeout=60).snapshots)


def test_a_pin_is_answered_with_what_it_is_of(own: Wire) -> None:
    before = time.time()
    answer = own.pin(NAME, lease_id="mine", ttl_millis=5_000)
    snapshot = answer.snapshot
    assert 0 < answer.write_pause_micros < 5_000_000
    assert (snapshot.snapshot_id, snapshot.table, snapshot.rows, snapshot.schema_id) == ("mine", NAME, 50, 1)
    assert pa.ipc.read_schema(pa.py_buffer(snapshot.arrow_schema)) == SCORES
    assert dict(snapshot.log_offsets) == {bucket.bucket: bucket.log_offset for bucket in own.statistics(NAME)}
    assert snapshot.ttl_millis == 5_000
    assert 4_000 < snapshot.remaining_millis <= 5_000
    assert before - 1 < snapshot.view_micros / 1e6 < time.time() + 1
    again = own.pin(NAME)
    assert again.write_pause_micros == 0
    assert again.snapshot.view_id == snapshot.view_id
    assert again.snapshot.ttl_millis == 600_000
    assert {each.snapshot_id for each in listed(own)} == {"mine", again.snapshot.snapshot_id}
    assert len(listed(own, NAME)) == 2


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"table": "game.none"}, "NOT_FOUND", "TABLE_NOT_FOUND"),
        ({"lease_id": "../x"}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"ttl_millis": 999}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"ttl_millis": 7 * 24 * 3600 * 1000 + 1}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"ttl_millis": 2**64 - 1}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"same_view_as": "never"}, "FAILED_PRECONDITION", "SNAPSHOT_LOST"),
    ],
)
def test_a_pin_that_makes_no_sense_is_refused(
    wire: Wire, name: str, fields: dict[str, Any], code: str, reason: str
) -> None:
    wire.create(name, SCORES)
    found = refusal(wire.snapshots.PinSnapshot, snapshot_pb2.PinSnapshotRequest(**{"table": name, **fields}))
    assert (found.code, found.reason) == (code, reason)
    assert listed(wire, name) == []


def test_snapshots_of_a_table_that_does_not_exist_cannot_be_listed(wire: Wire) -> None:
    found = refusal(wire.snapshots.ListSnapshots, snapshot_pb2.ListSnapshotsRequest(table="game.none"))
    assert found.reason == "TABLE_NOT_FOUND"


def test_a_snapshot_is_split_into_ranges_whose_outer_ends_are_absent(own: Wire) -> None:
    own.pin(NAME, lease_id="mine")
    split = own.snapshots.SplitSnapshot
    ranges = list(split(snapshot_pb2.SplitSnapshotRequest(snapshot_id="mine", splits=4), timeout=60).ranges)
    assert [(each.HasField("start"), each.HasField("end")) for each in ranges] == [
        (False, True),
        (True, True),
        (True, True),
        (True, False),
    ]
    part = scan_pb2.KeyRange(start=ranges[1].start, end=ranges[2].end)
    request = snapshot_pb2.SplitSnapshotRequest(snapshot_id="mine", splits=2, key_range=part, buckets=[0, 1, 2])
    halves = list(split(request, timeout=60).ranges)
    assert (halves[0].start, halves[1].end) == (part.start, part.end)
    assert halves[0].end == halves[1].start
    for request in (
        snapshot_pb2.SplitSnapshotRequest(snapshot_id="mine"),
        snapshot_pb2.SplitSnapshotRequest(snapshot_id="mine", splits=1025),
        snapshot_pb2.SplitSnapshotRequest(snapshot_id="mine", splits=2, buckets=[3]),
    ):
        assert refusal(split, request).reason == "INVALID_REQUEST"
    assert refusal(split, snapshot_pb2.SplitSnapshotRequest(snapshot_id="no", splits=2)).reason == "SNAPSHOT_LOST"


def test_a_lease_of_one_second_expires(own: Wire, server: ServerProcess) -> None:
    own.pin(NAME, lease_id="mine", ttl_millis=1_000)
    wait_until(lambda: not listed(own), "expired")
    wait_until(lambda: not views_on_disk(server.data_dir), "gone from disk")
    lost = refusal(own.snapshots.RenewSnapshot, snapshot_pb2.RenewSnapshotRequest(snapshot_id="mine"))
    assert lost.reason == "SNAPSHOT_LOST"


BIG = pa.schema([("k", pa.int64()), ("text", pa.string())])
BIG_ROWS = 4_000


def begun_scan(wire: Wire, snapshot_id: str) -> Any:
    """Starts a scan of a large table's snapshot whose reader takes the first message, and at most its window."""
    batch = pa.record_batch({"k": range(BIG_ROWS), "text": ["x" * 4_000] * BIG_ROWS}, schema=BIG)
    wire.create("game.big", BIG)
    wire.writes.Upsert(write_pb2.UpsertRequest(table="game.big", rows=ipc_stream(BIG, batch)), timeout=60)
    wire.pin("game.big", lease_id=snapshot_id, ttl_millis=3_000)
    source = scan_pb2.PinnedSnapshot(snapshot_id=snapshot_id)
    stream = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="game.big", snapshot=source), timeout=60)
    assert next(stream).HasField("header")
    return stream


@pytest.mark.breadth
@pytest.mark.whole_tables  # It counts scans and views, of which each tablet has one.
def test_a_scan_over_a_view_whose_lease_expires_reads_on_to_its_end(own: Wire, server: ServerProcess) -> None:
    stream = begun_scan(own, "mine")
    wait_until(lambda: not listed(own), "expired")
    assert own.server().live_scans == 1
    assert len(views_on_disk(server.data_dir)) == 1
    messages = list(stream)
    assert messages[-1].trailer.rows_returned == BIG_ROWS
    assert sum(message.chunk.row_count for message in messages) == BIG_ROWS
    wait_until(lambda: not views_on_disk(server.data_dir), "gone from disk")
    assert own.server().open_cursors == 0


@pytest.mark.breadth
def test_a_scan_over_a_snapshot_of_a_table_that_is_dropped_ends(own: Wire, server: ServerProcess) -> None:
    stream = begun_scan(own, "mine")
    own.tables.DropTable(table_pb2.DropTableRequest(name="game.big"), timeout=60)
    assert own.server().open_cursors == 0
    with pytest.raises(grpc.RpcError) as ended:
        list(stream)
    assert refusal_of(ended.value).reason == "TABLE_NOT_FOUND"
    assert listed(own) == []
    assert views_on_disk(server.data_dir) == []
    assert list((server.data_dir / "trash").iterdir()) == []
