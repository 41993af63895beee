"""Every worker process of a server reads pinned snapshots by itself, also of tables that another worker owns."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.v1 import admin_pb2, scan_pb2, snapshot_pb2
from tests.support.bases import SOON, is_of_bases
from tests.support.pinned_table import ROWS, SECONDS, WIDE, WORKERS, batches_of, pinned, wide_rows
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal, refusal_of
from tests.support.workers import names_of_workers, rows_of, sample_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)  # several processes start again and again


def players_in(batches: list[bytes]) -> list[str]:
    """Returns the players of some rows, in their order."""
    read = [pa.ipc.read_record_batch(pa.py_buffer(each), SCORES) for each in batches]
    return [player for rows in read for player in rows.column("player").to_pylist()]


def state_of(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Returns what a change of a file in a directory would change."""
    found = {}
    for path in [directory, *directory.rglob("*")]:
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def scanned(client: sync.Client, number: int) -> float:
    return sample_of(client, "scankv_scan_rows_total", number)


@pytest.mark.breadth
def test_each_worker_reads_a_snapshot_by_itself(divided: ServerProcess) -> None:
    with pinned(divided, "own") as (client, there):
        before = there.table.scan().to_arrow()
        there.table.upsert(rows_of(500, "later"))
        there.table.delete(["v 1"])
        answers = []
        for number in range(WORKERS):
            counts = [scanned(client, each) for each in range(WORKERS)]
            answers.append(batches_of(there.scan(number)))
            after = [scanned(client, each) for each in range(WORKERS)]
            assert [new - old for new, old in zip(after, counts, strict=True)] == [
                ROWS if each == number else 0 for each in range(WORKERS)
            ]
        assert answers[0] == answers[1]
        with sync.connect(f"127.0.0.1:{there.table.owner_port + 1}") as other:
            rows = other.scan(there.table.scan().as_of(there.snapshot).spec).to_arrow()
        assert rows.sort_by("player") == before.sort_by("player")


def test_each_worker_explains_a_scan_of_a_snapshot(divided: ServerProcess) -> None:
    with pinned(divided, "explained") as (_, there):
        explained = [wire.scans.ExplainScan(there.request(), timeout=SECONDS) for wire in there.wires]
        assert explained[0] == explained[1]
        assert explained[0].snapshot_id == there.snapshot.id
        assert list(explained[0].buckets) == [0, 1, 2]


def test_a_worker_that_reads_a_snapshot_of_another_changes_nothing_in_the_directory_of_the_table(
    divided: ServerProcess,
) -> None:
    """Not even RocksDB's log, which is written wherever a store is opened."""
    with pinned(divided, "untouched") as (_, there):
        database, table = there.table.name.split(".")
        directory = divided.data_dir / "tables" / database / table / "snapshots"
        before = state_of(directory)
        assert batches_of(there.scan(1))
        assert state_of(directory) == before


def test_a_scan_continues_at_another_worker(divided: ServerProcess) -> None:
    with pinned(divided, "resumed") as (_, there):
        chunk = scan_pb2.ChunkBounds(max_rows=500)
        expected = sorted(f"v {number}" for number in range(ROWS))
        for first, second in [(0, 1), (1, 0)]:
            found: list[bytes] = []
            messages = there.scan(first, chunk=chunk, ordered=True)
            while len(found) < 3:
                message = next(messages)
                if message.HasField("chunk"):
                    found.append(message.chunk.record_batch)
                    token = message.chunk.resume_token
            messages.cancel()
            found += batches_of(there.scan(second, chunk=chunk, ordered=True, resume_token=token))
            assert players_in(found) == expected


def test_the_worker_that_reads_a_snapshot_lists_the_scan_and_ends_it(divided: ServerProcess) -> None:
    with pinned(divided, "listed", WIDE) as (client, there):
        messages = there.scan(1)
        assert next(messages).HasField("header")
        (scan,) = [each for each in client.live_scans() if each.table == there.table.name]
        assert (scan.snapshot_id, scan.peer.partition(":")[0]) == (there.snapshot.id, "ipv4")
        assert [sample_of(client, "scankv_scans_live", number) for number in range(WORKERS)] == [0, 1]
        client.cancel_scan(scan.scan_id)
        with pytest.raises(grpc.RpcError) as cancelled:
            list(messages)
        assert refusal_of(cancelled.value).reason == "SCAN_CANCELLED"
        running = 'method="SnapshotService/UseSnapshot"'
        wait_until(lambda: sample_of(client, "scankv_calls_running", 0, running) == 0, "the loan ended")


@pytest.mark.breadth
def test_a_snapshot_that_is_released_while_another_worker_reads_it_stays_for_this_reader_only(
    divided: ServerProcess,
) -> None:
    with pinned(divided, "released", WIDE) as (_, there):
        database, table = there.table.name.split(".")
        view = divided.data_dir / "tables" / database / table / "snapshots" / there.snapshot.view_id
        chunk = scan_pb2.ChunkBounds(max_rows=100)
        messages = there.scan(1, chunk=chunk)
        assert next(messages).HasField("header")
        there.snapshot.release()
        for wire in there.wires:
            assert refusal(wire.scans.ScanKv, there.request()).reason == "SNAPSHOT_LOST"
        assert view.exists()
        assert len(batches_of(messages)) >= ROWS // 100
        wait_until(lambda: not view.exists(), "the view was removed")
        for wire in there.wires:
            assert refusal(wire.scans.ScanKv, there.request()).reason == "SNAPSHOT_LOST"
            assert refusal(wire.scans.ExplainScan, there.request()).reason == "SNAPSHOT_LOST"


def test_a_table_that_is_dropped_ends_the_scans_of_its_snapshots_at_every_worker(divided: ServerProcess) -> None:
    with pinned(divided, "dropped", WIDE) as (client, there):
        streams = [there.scan(number) for number in range(WORKERS)]
        for messages in streams:
            assert next(messages).HasField("header")
        client.drop_table(there.table.name)
        for messages in streams:
            with pytest.raises(grpc.RpcError) as ended:
                list(messages)
            assert refusal_of(ended.value).reason == "TABLE_NOT_FOUND"
        assert [refusal(wire.scans.ScanKv, there.request()).reason for wire in there.wires] == ["TABLE_NOT_FOUND"] * 2
        # A snapshot of the table that was there before is no snapshot of this one.
        client.create_table(there.table.name, WIDE, primary_key=["k"])
        assert [refusal(wire.scans.ScanKv, there.request()).reason for wire in there.wires] == ["SNAPSHOT_LOST"] * 2


def test_errors_of_a_scan_are_the_same_at_every_worker(divided: ServerProcess) -> None:
    with pinned(divided, "wrong") as (client, there):
        (other,) = names_of_workers(WORKERS, "wrong_too")[0]
        client.create_table(other, SCORES, primary_key=["player"])
        requests = [
            there.request(buckets=[7]),
            there.request(columns=scan_pb2.ColumnNames(names=["missing"])),
            there.request(resume_token=b"x" * 100),
            scan_pb2.ScanKvRequest(table=other, snapshot=there.request().snapshot),
            scan_pb2.ScanKvRequest(table="wrong.missing", snapshot=there.request().snapshot),
            scan_pb2.ScanKvRequest(table="no name", snapshot=there.request().snapshot),
        ]
        for request in requests:
            first, second = (refusal(wire.scans.ScanKv, request) for wire in there.wires)
            assert first == second


def test_only_workers_borrow_views(divided: ServerProcess) -> None:
    with pinned(divided, "clients") as (_, there):
        request = snapshot_pb2.UseSnapshotRequest(table=there.table.name, snapshot_id=there.snapshot.id)
        for wire in there.wires:
            assert refusal(wire.snapshots.UseSnapshot, request).reason == "INVALID_REQUEST"


@pytest.mark.breadth
def test_the_slow_calls_have_the_plan_of_a_scan_at_another_worker(tmp_path: Path) -> None:
    settings = ("--workers", str(WORKERS), "--set", "slow_request_seconds=0.000001")
    with ServerProcess(tmp_path / "data", *settings) as server, pinned(server, "slow") as (client, there):
        assert batches_of(there.scan(1))

        def plans() -> list[str]:
            calls = there.wires[1].admin.ListSlowCalls(admin_pb2.ListSlowCallsRequest(), timeout=SECONDS).calls
            return [call.plan for call in calls if call.method == "ScanService/ScanKv"]

        (plan,) = wait_until(plans, "the scan was logged")
        assert "bucket" in plan
        assert "unknown" not in plan
        assert not [each for each in client.slow_calls() if each.method == "SnapshotService/UseSnapshot"]


def test_a_worker_reads_the_columnar_base_in_a_snapshot_of_another(tmp_path: Path) -> None:
    settings = ("--workers", str(WORKERS), *SOON, "--set", "base_min_rows=1")
    with (
        ServerProcess(tmp_path / "data", *settings) as server,
        sync.connect(server.url) as client,
        ExitStack() as stack,
    ):
        (name,), _ = names_of_workers(WORKERS, "based")
        table = client.create_table(name, SCORES, primary_key=["player"], columnar_base="eager")
        table.upsert(rows_of(ROWS))
        wait_until(lambda: is_of_bases(table.scan().explain()), "every bucket has a base")
        table.upsert([{"player": "v 7", "score": -7}])
        snapshot = table.snapshot(ttl=300)
        table.delete(["v 8"])
        request = scan_pb2.ScanKvRequest(
            table=name,
            snapshot=scan_pb2.PinnedSnapshot(snapshot_id=snapshot.id),
            read_path=scan_pb2.READ_PATH_COLUMNAR,
        )
        directory = server.data_dir / "tables" / "based" / name.split(".")[1] / "snapshots"
        before = state_of(directory)
        wires = [stack.enter_context(Wire(f"127.0.0.1:{table.owner_port + number}")) for number in range(WORKERS)]
        borrowed = batches_of(wires[1].scans.ScanKv(request, timeout=SECONDS))
        assert state_of(directory) == before
        assert batches_of(wires[0].scans.ScanKv(request, timeout=SECONDS)) == borrowed
        assert sorted(players_in(borrowed)) == sorted(f"v {number}" for number in range(ROWS))


@pytest.mark.breadth
def test_a_drain_lets_scans_at_every_worker_return_all_rows(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--workers", str(WORKERS)) as server,
        pinned(server, "drained", WIDE) as (
            _,
            there,
        ),
    ):
        streams = [there.scan(number) for number in range(WORKERS)]
        for messages in streams:
            assert next(messages).HasField("header")
        os.kill(server.process.pid, signal.SIGTERM)

        def drains() -> bool:
            try:
                return next(there.scan(1, limit=0)) is None
            except grpc.RpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE

        wait_until(drains, "the server drains")
        for messages in streams:
            assert batches_of(messages)
        assert server.process.wait(60) == 0


class SecuredPins:
    """A server with two workers that asks for tokens, and a table of worker 0 with a snapshot."""

    def __init__(self, root: Path, *settings: str) -> None:
        self.issuer, self.audit = TokenIssuer(root / "tokens"), root / "audit.log"
        arguments = ("--workers", str(WORKERS), "--tokens", str(self.issuer.path), "--audit-log", str(self.audit))
        self.server = ServerProcess(root / "data", *arguments, *settings)
        (self.name,), _ = names_of_workers(WORKERS, "mine")
        with sync.connect(self.server.url, token=self.issuer.root) as client:
            table = client.create_table(self.name, WIDE, primary_key=["k"])
            table.upsert(wide_rows())
            self.ports = [table.owner_port + number for number in range(WORKERS)]
            self.snapshot_id = table.snapshot(ttl=300).id

    def request(self, table: str = "") -> scan_pb2.ScanKvRequest:
        pinned = scan_pb2.PinnedSnapshot(snapshot_id=self.snapshot_id)
        return scan_pb2.ScanKvRequest(table=table or self.name, snapshot=pinned)

    def wire(self, number: int, token: str) -> Wire:
        return Wire(f"127.0.0.1:{self.ports[number]}", token)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPins]:
    pins = SecuredPins(tmp_path_factory.mktemp("secured"), "--set", "max_caller_scans=1")
    with pins.server:
        yield pins


@pytest.mark.breadth
def test_a_snapshot_needs_the_same_rights_at_every_worker(secured: SecuredPins) -> None:
    (theirs,), _ = names_of_workers(WORKERS, "theirs")
    with sync.connect(secured.server.url, token=secured.issuer.root) as client:
        client.create_table(theirs, WIDE, primary_key=["k"])
    reader, stranger = secured.issuer.create("read:mine.*"), secured.issuer.create("read:theirs.*")
    for number in range(WORKERS):
        with secured.wire(number, reader) as wire, secured.wire(number, stranger) as other:
            assert batches_of(wire.scans.ScanKv(secured.request(), timeout=SECONDS))
            missing = refusal(wire.scans.ScanKv, secured.request("mine.missing"))
            assert missing.reason == "TABLE_NOT_FOUND"
            assert refusal(other.scans.ScanKv, secured.request()).reason == "PERMISSION_DENIED"
            # An id grants nothing, and the error does not name the table.
            stolen = refusal(other.scans.ScanKv, secured.request(theirs))
            assert stolen.reason == "PERMISSION_DENIED"
            assert secured.name not in stolen.message
            assert refusal(wire.scans.ScanKv, secured.request(theirs)).reason == "PERMISSION_DENIED"
        with secured.wire(number, "no token") as nobody:
            assert refusal(nobody.scans.ScanKv, secured.request()).reason == "UNAUTHENTICATED"


def test_a_loan_is_no_scan_of_the_caller_at_the_owner(secured: SecuredPins) -> None:
    """Each worker counts the scans that it serves: one at each, with the limit of one."""
    token = secured.issuer.create("read:mine.*", principal="counted")
    with secured.wire(0, token) as owner, secured.wire(1, token) as other:
        streams = [wire.scans.ScanKv(secured.request(), timeout=SECONDS) for wire in (owner, other)]
        for messages in streams:
            assert next(messages).HasField("header")
        assert refusal(other.scans.ScanKv, secured.request()).reason == "TOO_MANY_SCANS"
        for messages in streams:
            assert batches_of(messages)


def test_a_token_that_is_revoked_ends_the_scan_at_the_worker_that_serves_it(secured: SecuredPins) -> None:
    token = secured.issuer.create("read:mine.*")
    with secured.wire(1, token) as wire:
        messages = wire.scans.ScanKv(secured.request(), timeout=SECONDS)
        assert next(messages).HasField("header")
        secured.issuer.revoke(token)
        with sync.connect(secured.server.url, token=secured.issuer.root) as client:
            wait_until(lambda: not client.live_scans(), "the scan was ended")
        with pytest.raises(grpc.RpcError) as revoked:
            list(messages)
        assert refusal_of(revoked.value).reason == "UNAUTHENTICATED"


def test_the_audit_log_has_one_line_for_each_refused_scan_of_a_snapshot(secured: SecuredPins) -> None:
    """The worker that the client has called writes it, also if the owner has refused the loan."""
    (theirs,), _ = names_of_workers(WORKERS, "audited")
    with sync.connect(secured.server.url, token=secured.issuer.root) as client:
        client.create_table(theirs, WIDE, primary_key=["k"])
    token = secured.issuer.create("read:audited.*", principal="audited")
    for number in range(WORKERS):
        with secured.wire(number, token) as wire:
            for table in (secured.name, theirs):
                assert refusal(wire.scans.ScanKv, secured.request(table)).reason == "PERMISSION_DENIED"

    def lines() -> list[dict[str, Any]]:
        found = map(json.loads, secured.audit.read_text().splitlines())
        return [line for line in found if line["principal"] == "audited"]

    wait_until(lambda: len(lines()) >= 2 * WORKERS, "all lines were written")
    found = lines()
    assert [line["error"] for line in found] == ["PERMISSION_DENIED"] * 2 * WORKERS
    assert {line["method"] for line in found} == {"ScanService/ScanKv"}
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in found)
