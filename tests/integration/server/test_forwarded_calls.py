"""A call that one worker process passes on to another: its record, its limits, and clients that stop reading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.v1 import scan_pb2, snapshot_pb2, table_pb2, transaction_pb2
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.wire import Wire, refusal_of
from tests.support.workers import names_of_workers, rows_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

WORKERS = 2
SECONDS = 60.0
STALLED = 8
WIDE = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.breadth
def test_the_audit_log_has_one_line_for_each_call_whichever_workers_answer_it(tmp_path: Path) -> None:
    """The worker that the client has called writes it, with the principal and the address of the client."""
    issuer, audit = TokenIssuer(tmp_path / "tokens"), tmp_path / "audit.log"
    arguments = ("--workers", str(WORKERS), "--tokens", str(issuer.path), "--audit-log", str(audit))
    with ServerProcess(tmp_path / "data", *arguments) as server:
        with sync.connect(server.url, token=issuer.root) as client:
            tables = [
                client.create_table(name, SCORES, primary_key=["player"]) for (name,) in names_of_workers(WORKERS)
            ]
            tables[1].upsert(rows_of(10))
        etl = issuer.create("write:test.*", principal="etl")
        with sync.connect(server.url, token=etl) as client:
            snapshot = client.table(tables[1].name).snapshot(ttl=300)
        wire = Wire(f"127.0.0.1:{tables[0].owner_port}", etl)
        transactions = wire.transactions
        try:
            token = transactions.BeginTransaction(
                transaction_pb2.BeginTransactionRequest(attempt="1"), timeout=SECONDS
            ).token
            transactions.CommitTransaction(transaction_pb2.CommitTransactionRequest(token=token), timeout=SECONDS)
            transactions.AbortTransaction(transaction_pb2.AbortTransactionRequest(token="0" * 32), timeout=SECONDS)
            release = snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=snapshot.id)
            wire.snapshots.ReleaseSnapshot(release, timeout=SECONDS)
            with pytest.raises(grpc.RpcError) as denied:
                wire.tables.DropTable(table_pb2.DropTableRequest(name=tables[1].name), timeout=SECONDS)
            assert refusal_of(denied.value).code == "PERMISSION_DENIED"
            wire.tables.ListTables(table_pb2.ListTablesRequest(), timeout=SECONDS)
        finally:
            wire.channel.close()
        assert server.stop() == 0
    # The other process may have written lines of another principal in between.
    lines = [line for line in lines_of(audit) if line["principal"] == "etl"]
    # The other client may have called the other worker, whose line may come later.
    lines = [line for line in lines if line["method"] != "SnapshotService/PinSnapshot"]
    assert [line["method"].rpartition("/")[2] for line in lines] == [
        "BeginTransaction",
        "CommitTransaction",
        "AbortTransaction",
        "ReleaseSnapshot",
        "DropTable",
    ]
    assert [line["code"] for line in lines] == ["OK", "OK", "OK", "OK", "PERMISSION_DENIED"]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)
    assert (lines[1]["rows"], lines[3]["resources"]) == (0, {"snapshot_id": snapshot.id})
    assert (lines[4]["tables"], lines[4]["error"]) == ([tables[1].name], "PERMISSION_DENIED")


@pytest.mark.breadth
def test_clients_that_stop_reading_leave_nothing_at_the_worker_that_their_calls_are_passed_on_to(
    tmp_path: Path,
) -> None:
    """Its only client is the other worker. What that left unread would be held against all calls that it passes on."""
    settings = ("--set", "stall_timeout_seconds=1", "--set", "slow_request_seconds=0.5")
    (first,), (second,) = names_of_workers(WORKERS)
    with (
        ServerProcess(tmp_path / "data", "--workers", str(WORKERS), *settings) as server,
        sync.connect(server.url) as client,
    ):
        port = client.create_table(first, WIDE, primary_key=["k"]).owner_port
        table = client.create_table(second, WIDE, primary_key=["k"], buckets=1)
        table.upsert([{"k": number, "v": f"{number:x}" * 500} for number in range(4000)])
        wires = [Wire(f"127.0.0.1:{port}") for _ in range(STALLED)]
        try:
            request = scan_pb2.ScanKvRequest(table=second, chunk=scan_pb2.ChunkBounds(max_rows=500))
            scans = [wire.scans.ScanKv(request, timeout=SECONDS) for wire in wires]
            for scan in scans:
                assert next(scan).HasField("header")
            running = 'scankv_calls_running{worker="1",method="ScanService/ScanKv"}'
            wait_until(lambda: value_of(client, running) == 0, "the calls at the owner ended")
            assert client.live_scans() == []
            # A reader that continues gets what was on its way, and then the reason.
            with pytest.raises(grpc.RpcError) as stalled:
                list(scans[0])
            assert refusal_of(stalled.value).reason == "SCAN_STALLED"
            for scan in scans[1:]:
                scan.cancel()
        finally:
            for wire in wires:
                wire.channel.close()
        passed_on = 'scankv_calls_running{worker="0",method="ScanService/ScanKv"}'
        wait_until(lambda: value_of(client, passed_on) == 0, "the calls that were passed on ended")
        wait_until(lambda: client.stats().unread_answer_bytes == 0, "nothing is unread")
        assert table.count() == 4000
        # The time of its client is no time of the server.
        assert "slow call of ScanService" not in server.log
    assert "Traceback" not in server.log


def value_of(client: sync.Client, sample: str) -> float:
    """Returns the value of a sample of the metrics; 0 if it has none."""
    found = [line for line in client.metrics().splitlines() if line.startswith(f"{sample} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
