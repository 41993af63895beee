"""Snapshots of tables with tablets: every answer is as for a table without tablets, and all rows are of one instant."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import SnapshotLost, col, sync
from scankv.model.expressions.wire import to_proto
from scankv.v1 import lookup_pb2, scan_pb2, snapshot_pb2, table_pb2
from streaming_server.storage.tables.placement import Placement
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.wire import Refusal, Wire, refusal
from tests.support.workers import names_of_workers, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from google.protobuf.message import Message

pytestmark = pytest.mark.timeout(120)

ROWS, BUCKETS, TABLETS, SECONDS = 3000, 8, 3, 60.0


@pytest.fixture(scope="module")
def wires(client: sync.Client, wire: Wire) -> Iterator[list[Wire]]:
    """A connection to each worker."""
    client.create_table("test.ports", SCORES, primary_key=["player"])
    ports = wire.tables.GetTable(table_pb2.GetTableRequest(name="test.ports"), timeout=SECONDS).table.worker_ports
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(f"127.0.0.1:{port}")) for port in ports] or [wire]


class Twin:
    """A table with the answers of calls about it, without its name and without values that depend on chance.

    Args:
        client: Creates the table.
        wire: Makes the calls.
        name: The name of the table.
        tablets: Its tablets.
    """

    def __init__(self, client: sync.Client, wire: Wire, name: str, tablets: int) -> None:
        self.name, self.wire = name, wire
        self.table = client.create_table(name, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=tablets)
        self.table.upsert(rows_of(ROWS))
        self.answers: list[object] = []
        self.incarnation = wire.tables.GetTable(table_pb2.GetTableRequest(name=name)).table.incarnation
        self._views: dict[str, int] = {}

    def id(self, short: str) -> str:
        """Returns an id of a snapshot that only this table has."""
        return f"{short}-{self.name.replace('.', '-')}"

    def call(self, method: Callable[..., Message], request: Message) -> Any:
        """Makes a call, and records what it answers."""
        answer = method(request, timeout=SECONDS)
        self.answers.append(self._comparable(answer))
        return answer

    def refused(self, method: Callable[..., Message], request: Message) -> None:
        """Makes a call that must fail, and records how."""
        found = refusal(method, request)
        details = {key: self._plain(value) for key, value in found.details.items()}
        self.answers.append(Refusal(found.code, self._plain(found.message), found.reason, details, found.retry_after))

    def pin(self, short: str, **fields: Any) -> Any:
        request = snapshot_pb2.PinSnapshotRequest(table=self.name, lease_id=self.id(short), **fields)
        return self.call(self.wire.snapshots.PinSnapshot, request)

    def refused_pin(self, lease_id: str, **fields: Any) -> None:
        request = snapshot_pb2.PinSnapshotRequest(table=self.name, lease_id=lease_id, **fields)
        self.refused(self.wire.snapshots.PinSnapshot, request)

    def list(self) -> None:
        answer = self.wire.snapshots.ListSnapshots(snapshot_pb2.ListSnapshotsRequest(table=self.name), timeout=SECONDS)
        self.answers.append([self._comparable(each) for each in answer.snapshots])
        everything = self.wire.snapshots.ListSnapshots(snapshot_pb2.ListSnapshotsRequest(), timeout=SECONDS)
        here = [each for each in everything.snapshots if each.table == self.name]
        assert [each.snapshot_id for each in here] == [each.snapshot_id for each in answer.snapshots]

    def scan(self, short: str, **fields: Any) -> None:
        """Scans a snapshot. Records its rows, its offsets, and what its trailer counts."""
        messages = list(self.wire.scans.ScanKv(self._scan(short, **fields), timeout=SECONDS))
        header = messages[0].header
        schema = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema))
        chunks = [each.chunk for each in messages if each.HasField("chunk")]
        batches = [pa.ipc.read_record_batch(pa.py_buffer(each.record_batch), schema) for each in chunks]
        rows = sorted(pa.Table.from_batches(batches, schema).to_pylist(), key=repr)
        trailer = messages[-1].trailer
        assert header.table_incarnation == self.incarnation
        counts = trailer.rows_returned, list(trailer.buckets), trailer.chunks == len(chunks)
        self.answers.append((rows if "limit" not in fields else len(rows), dict(header.log_offsets), counts))

    def _scan(self, short: str, **fields: Any) -> scan_pb2.ScanKvRequest:
        pinned = scan_pb2.PinnedSnapshot(snapshot_id=self.id(short))
        return scan_pb2.ScanKvRequest(table=self.name, snapshot=pinned, **fields)

    def refused_scan(self, short: str) -> None:
        self.refused(self.wire.scans.ScanKv, self._scan(short))

    def count(self, short: str, **fields: Any) -> None:
        pinned = scan_pb2.PinnedSnapshot(snapshot_id=self.id(short))
        request = lookup_pb2.CountRequest(table=self.name, snapshot=pinned, **fields)
        answer = self.wire.lookups.Count(request, timeout=SECONDS)
        self.answers.append((answer.rows, dict(answer.log_offsets)))

    def _comparable(self, answer: Any) -> Any:
        snapshot = answer.snapshot if hasattr(answer, "snapshot") else answer
        if not isinstance(snapshot, snapshot_pb2.Snapshot):
            return answer
        assert snapshot.table_incarnation == self.incarnation
        assert snapshot.view_micros > 1_600_000_000_000_000
        assert 0 < snapshot.remaining_millis <= snapshot.ttl_millis
        # Which of them have the same view.
        view = self._views.setdefault(snapshot.view_id, len(self._views))
        return (
            self._plain(snapshot.snapshot_id),
            view,
            dict(snapshot.log_offsets),
            (snapshot.arrow_schema, snapshot.schema_id, snapshot.name, snapshot.ttl_millis),
            (snapshot.HasField("rows"), snapshot.rows),
            bool(getattr(answer, "write_pause_micros", 0)),
        )

    def _plain(self, text: str) -> str:
        return text.replace(self.name, "TABLE").replace(self.name.replace(".", "-"), "TABLE")


@pytest.fixture
def twins(client: sync.Client, wires: list[Wire], request: pytest.FixtureRequest) -> list[Twin]:
    """A table without tablets and one with them, which one worker owns. Each is called at all workers in turns."""
    database = request.node.originalname.removeprefix("test_")[:40]
    names = names_of_workers(len(wires), database, each=2)[-1]
    return [Twin(client, wires[0], name, tablets) for name, tablets in zip(names, (1, TABLETS), strict=True)]


def assert_equal(twins: list[Twin], work: Callable[[Twin], None]) -> None:
    for twin in twins:
        work(twin)
    one, other = (twin.answers for twin in twins)
    assert len(one) == len(other) > 0
    for number, (expected, found) in enumerate(zip(one, other, strict=True)):
        assert expected == found, number


@pytest.mark.breadth
def test_pins_answer_as_those_of_other_tables(twins: list[Twin]) -> None:
    def work(twin: Twin) -> None:
        twin.pin("one", ttl_millis=90_000)
        twin.pin("one", ttl_millis=60_000)
        twin.pin("named", name="nightly")
        twin.pin("named", name="nightly")
        twin.refused_pin(twin.id("named"), name="daily")
        twin.refused_pin(twin.id("another"), name="nightly")
        twin.refused_pin(twin.id("another"), name="a b")
        twin.refused_pin("a.b")
        twin.refused_pin(65 * "a")
        twin.refused_pin(twin.id("another"), ttl_millis=10)
        twin.refused_pin(twin.id("another"), shared=True, name="shared")
        twin.refused_pin(twin.id("another"), same_view_as="no-such-snapshot")
        twin.table.upsert(rows_of(10, "later"))
        twin.pin("two")
        twin.pin("again", same_view_as=twin.id("one"))
        twin.list()

    assert_equal(twins, work)


def test_a_pin_without_an_id_gets_one(twins: list[Twin]) -> None:
    for twin in twins:
        answers = [twin.wire.pin(twin.name).snapshot for _ in range(2)]
        assert answers[0].snapshot_id != answers[1].snapshot_id
        assert answers[0].view_id == answers[1].view_id
        assert all(each.snapshot_id.isalnum() for each in answers)


def test_renewals_and_releases_answer_as_those_of_other_tables(twins: list[Twin], wires: list[Wire]) -> None:
    def work(twin: Twin) -> None:
        twin.pin("one", ttl_millis=90_000)
        for wire in wires:
            renew = snapshot_pb2.RenewSnapshotRequest
            twin.call(wire.snapshots.RenewSnapshot, renew(snapshot_id=twin.id("one"), ttl_millis=50_000))
            twin.call(wire.snapshots.RenewSnapshot, renew(snapshot_id=twin.id("one")))
            twin.refused(wire.snapshots.RenewSnapshot, renew(snapshot_id=twin.id("one"), ttl_millis=1))
            twin.refused(wire.snapshots.RenewSnapshot, renew(snapshot_id="no-such-snapshot"))
        release = snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=twin.id("one"))
        twin.call(wires[-1].snapshots.ReleaseSnapshot, release)
        twin.list()
        for wire in wires:
            twin.refused(wire.snapshots.ReleaseSnapshot, release)
            twin.refused(wire.snapshots.RenewSnapshot, renew(snapshot_id=twin.id("one")))
        twin.refused_scan("one")
        twin.pin("one")

    assert_equal(twins, work)


def test_shared_snapshots_are_never_taken_twice(twins: list[Twin]) -> None:
    def work(twin: Twin) -> None:
        twin.pin("job", shared=True, ttl_millis=90_000)
        twin.table.upsert(rows_of(10, "later"))
        twin.pin("job", shared=True, ttl_millis=5_000)
        twin.scan("job")
        release = snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=twin.id("job"))
        twin.call(twin.wire.snapshots.ReleaseSnapshot, release)
        twin.refused_pin(twin.id("job"), shared=True)
        twin.refused_pin(twin.id("job"))

    assert_equal(twins, work)


@pytest.mark.breadth
def test_scans_and_counts_of_a_snapshot_answer_as_those_of_other_tables(twins: list[Twin], wires: list[Wire]) -> None:
    predicate = to_proto(col("score") > 1000)

    def work(twin: Twin) -> None:
        twin.pin("one")
        twin.table.upsert(rows_of(500, "later"))
        twin.table.delete(["v 1", "v 2"])
        for twin.wire in wires:
            twin.scan("one")
            twin.scan("one", where=predicate, columns=scan_pb2.ColumnNames(names=["score"]))
            twin.scan("one", buckets=[0, 4, 7])
            twin.scan("one", limit=1234)
            twin.scan("one", key_range=scan_pb2.KeyRange(start=b"v 1", end=b"v 2"))
            twin.count("one")
            twin.count("one", where=predicate)
            twin.refused_scan("no-such-snapshot")
        twin.wire = wires[0]
        twin.refused(twin.wire.scans.ScanKv, twin._scan("one", buckets=[BUCKETS]))

    assert_equal(twins, work)


@pytest.mark.breadth
def test_aggregates_and_top_rows_of_a_snapshot_answer_as_those_of_other_tables(
    twins: list[Twin], wires: list[Wire]
) -> None:
    functions = [lookup_pb2.AGGREGATE_FUNCTION_SUM, lookup_pb2.AGGREGATE_FUNCTION_MAX]
    aggregates = [lookup_pb2.ColumnAggregates(column="score", functions=functions)]

    def work(twin: Twin) -> None:
        twin.pin("one")
        pinned = scan_pb2.PinnedSnapshot(snapshot_id=twin.id("one"))
        total = lookup_pb2.AggregateRequest(table=twin.name, snapshot=pinned, aggregates=aggregates)
        top = lookup_pb2.TopNRequest(table=twin.name, snapshot=pinned, by="score", n=7)
        for change in (list[str](), ["v 2999", "v 2998"]):
            twin.table.delete(change)
            for wire in wires:
                for answer in (
                    wire.lookups.Aggregate(total, timeout=SECONDS),
                    wire.lookups.TopN(top, timeout=SECONDS),
                ):
                    twin.answers.append((answer.rows, dict(answer.log_offsets)))
        pinned.snapshot_id = "no-such-snapshot"
        twin.refused(twin.wire.lookups.Aggregate, lookup_pb2.AggregateRequest(table=twin.name, snapshot=pinned))
        twin.refused(twin.wire.lookups.TopN, lookup_pb2.TopNRequest(table=twin.name, snapshot=pinned, by="score", n=7))

    assert_equal(twins, work)


def test_a_snapshot_of_another_table_is_not_read(twins: list[Twin]) -> None:
    one, other = twins
    one.pin("one")
    other.pin("other")
    for twin, id_ in ((one, other.id("other")), (other, one.id("one"))):
        pinned = scan_pb2.PinnedSnapshot(snapshot_id=id_)
        found = refusal(twin.wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=twin.name, snapshot=pinned))
        assert (found.code, found.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        request = snapshot_pb2.PinSnapshotRequest(table=twin.name, lease_id=id_)
        found = refusal(twin.wire.snapshots.PinSnapshot, request)
        assert found.reason == "INVALID_REQUEST"
        assert f"not of {twin.name}" in found.message
        assert "#" not in found.message


def test_a_broken_scan_of_a_snapshot_resumes_at_every_chunk(twins: list[Twin], wires: list[Wire]) -> None:
    twin = twins[1]
    twin.pin("one")
    twin.table.delete([f"v {number}" for number in range(ROWS)])
    request = twin._scan("one", chunk=scan_pb2.ChunkBounds(max_rows=200))
    messages = list(twin.wire.scans.ScanKv(request, timeout=SECONDS))
    chunks = [each.chunk for each in messages if each.HasField("chunk")]
    assert sum(each.row_count for each in chunks) == ROWS
    done = 0
    for number, chunk in enumerate(chunks):
        done += chunk.row_count
        request.resume_token = chunk.resume_token
        wire = wires[number % len(wires)]
        rest = [each.chunk for each in wire.scans.ScanKv(request, timeout=SECONDS) if each.HasField("chunk")]
        assert sum(each.row_count for each in rest) == ROWS - done


@pytest.mark.breadth
def test_splits_cover_every_key_once_and_have_about_equally_many_rows(twins: list[Twin], wires: list[Wire]) -> None:
    ranges: dict[int, list[Any]] = {}
    for twin in twins:
        twin.pin("one")
        for splits in (1, 7, 50):
            request = snapshot_pb2.SplitSnapshotRequest(snapshot_id=twin.id("one"), splits=splits)
            found = [list(wire.snapshots.SplitSnapshot(request, timeout=SECONDS).ranges) for wire in wires]
            assert all(each == found[0] for each in found)
            assert ranges.setdefault(splits, found[0]) == found[0]
            counts = []
            for each in found[0]:
                scanned = twin.wire.scans.ScanKv(twin._scan("one", key_range=each), timeout=SECONDS)
                counts.append(sum(message.chunk.row_count for message in scanned))
            assert sum(counts) == ROWS
            assert max(counts) <= ROWS / splits * 1.2 + 5


@pytest.mark.breadth
def test_splits_answer_as_those_of_other_tables(twins: list[Twin]) -> None:
    def work(twin: Twin) -> None:
        twin.pin("one")
        split = twin.wire.snapshots.SplitSnapshot

        def request(**fields: Any) -> snapshot_pb2.SplitSnapshotRequest:
            return snapshot_pb2.SplitSnapshotRequest(snapshot_id=twin.id("one"), **fields)

        twin.call(split, request(splits=9))
        twin.call(split, request(splits=9, buckets=[1, 5]))
        twin.call(split, request(splits=9, key_range=scan_pb2.KeyRange(start=b"v 1", end=b"v 3")))
        twin.call(split, request(splits=9, where=to_proto(col("player") > "v 2")))
        twin.call(split, request(splits=9, rows_per_split=700))
        twin.call(split, request(splits=9, rows_per_split=7000))
        twin.refused(split, request(splits=0))
        twin.refused(split, request(splits=2000))
        twin.refused(split, request(splits=2, buckets=[BUCKETS]))
        twin.refused(split, request(splits=2, buckets=[1, 1]))
        twin.refused(split, request(splits=2, where=to_proto(col("nothing") > 2)))
        twin.refused(split, snapshot_pb2.SplitSnapshotRequest(snapshot_id="no-such-snapshot", splits=2))

    assert_equal(twins, work)


@pytest.mark.breadth
def test_a_snapshot_shows_all_tablets_at_one_instant(twins: list[Twin]) -> None:
    """A writer sets one key after another to the same number, so later keys have never a greater one."""
    table = twins[1].table
    keys = [f"v {number}" for number in range(24)]
    stopped = threading.Event()

    def write() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            for key in keys:
                table.upsert([{"player": key, "score": -number}])

    table.upsert([{"player": key, "score": 0} for key in keys])
    writer = threading.Thread(target=write)
    writer.start()
    try:
        numbers = set()
        for _ in range(25):
            with table.snapshot(ttl=60) as snapshot:
                found = {row["player"]: row["score"] for row in table.scan().as_of(snapshot).to_arrow().to_pylist()}
            at = [found[key] for key in keys]
            assert at == sorted(at)
            assert at[-1] - at[0] <= 1
            numbers.add(at[0])
    finally:
        stopped.set()
        writer.join()
    assert len(numbers) > 1


@pytest.mark.breadth
def test_a_snapshot_is_lost_if_one_of_its_tablets_has_lost_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server:
        with sync.connect(server.url) as client:
            table = client.create_table("game.scores", SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
            table.upsert(rows_of(ROWS))
            with Wire(server.url) as wire:
                for short in ("kept", "shared", "lost"):
                    wire.pin(table.name, lease_id=short, shared=short == "shared")
            table.upsert(rows_of(10, "later"))
        server.stop()
        tablet = tmp_path / "data" / "tables" / "game" / "scores" / "tablets" / "1" / "snapshots"
        for short in ("shared", "lost"):
            (file,) = tablet.glob(f"*/leases/{short}.*.json")
            file.unlink()
        server.restart()
        with sync.connect(server.url) as client, Wire(server.url) as wire:
            table = client.table("game.scores")
            assert [each.id for each in client.snapshots()] == ["kept"]
            assert table.scan().as_of("kept").to_arrow().num_rows == ROWS
            with pytest.raises(SnapshotLost):
                table.scan().as_of("lost").to_arrow()
            with pytest.raises(SnapshotLost):
                client.adopt_snapshot("lost")
            request = snapshot_pb2.PinSnapshotRequest(table=table.name, lease_id="shared", shared=True)
            assert refusal(wire.snapshots.PinSnapshot, request).reason == "SNAPSHOT_LOST"
            # An id that is not shared is free again, and names another instant.
            assert wire.pin(table.name, lease_id="lost").snapshot.rows == ROWS + 10
            assert table.scan().as_of("lost").to_arrow().num_rows == ROWS + 10
            assert refusal(wire.snapshots.PinSnapshot, request).reason == "SNAPSHOT_LOST"


def test_an_id_grants_nothing(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    reader, stranger = issuer.create("read:game.scores"), issuer.create("admin:other.*")
    # The same worker owns both, because workers do not know the ids of each other.
    (other,) = names_of_workers(2, "other")[Placement(0, 2).owner_of("game.scores")]
    with ServerProcess(tmp_path / "data", "--tokens", str(issuer.path), "--workers", "2") as server:
        with sync.connect(server.url, token=issuer.root) as client:
            table = client.create_table("game.scores", SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
            table.upsert(rows_of(ROWS))
            client.create_table(other, SCORES, primary_key=["player"], buckets=BUCKETS, tablets=TABLETS)
        with Wire(server.url, reader) as wire:
            wire.pin("game.scores", lease_id="mine")
            listed = wire.snapshots.ListSnapshots(snapshot_pb2.ListSnapshotsRequest(), timeout=SECONDS)
            assert [each.snapshot_id for each in listed.snapshots] == ["mine"]
            split = snapshot_pb2.SplitSnapshotRequest(snapshot_id="mine", splits=2)
            assert len(wire.snapshots.SplitSnapshot(split, timeout=SECONDS).ranges) == 2
        with Wire(server.url, stranger) as wire:
            pinned = scan_pb2.PinnedSnapshot(snapshot_id="mine")
            refused = [
                refusal(wire.snapshots.RenewSnapshot, snapshot_pb2.RenewSnapshotRequest(snapshot_id="mine")),
                refusal(wire.snapshots.ReleaseSnapshot, snapshot_pb2.ReleaseSnapshotRequest(snapshot_id="mine")),
                refusal(wire.snapshots.SplitSnapshot, split),
                refusal(wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=other, snapshot=pinned)),
                refusal(wire.scans.ScanKv, scan_pb2.ScanKvRequest(table="game.scores", snapshot=pinned)),
                refusal(
                    wire.snapshots.PinSnapshot,
                    snapshot_pb2.PinSnapshotRequest(table=other, lease_id="mine"),
                ),
            ]
            assert {each.code for each in refused} == {"PERMISSION_DENIED"}
            assert not any("game.scores" in each.message for each in refused[:4])
            listed = wire.snapshots.ListSnapshots(snapshot_pb2.ListSnapshotsRequest(), timeout=SECONDS)
            assert not listed.snapshots
