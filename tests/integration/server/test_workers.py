"""A server of several worker processes behaves like one process, whichever worker a call reaches."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest

from aio_client import StartFrom, StopAt, connect, sync
from aio_client.testing import FaultProxy
from scankv.model.errors import DeadlineExceeded, ScanNotFound, TableExists, TableNotFound
from scankv.v1 import lookup_pb2, scan_pb2, table_pb2
from streaming_server.services.forwarding import FORWARDED, OF_SERVER
from tests.support.monitoring import free_port
from tests.support.secured import METHODS_OF_WORKERS, TokenIssuer, code_before_message
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.wire import Wire
from tests.support.workers import freeze, is_running, names_of_workers, processes_of, rows_of

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

WORKERS = 2
# Its sitecustomize has worker 0 stop itself when it begins.
STOPPED_FORK = Path(__file__).parents[2] / "support" / "stopped_fork"


def ports_of(server: ServerProcess) -> list[int]:
    """Returns the ports of all workers, by their numbers."""
    with sync.connect(server.url) as client:
        ports = []
        for (name,) in names_of_workers(WORKERS, "ports"):
            try:
                table = client.create_table(name, SCORES, primary_key=["player"])
            except TableExists:
                table = client.table(name)
            ports.append(table.owner_port)
    return ports


def test_every_worker_owns_tables_and_all_of_them_are_listed(divided: ServerProcess) -> None:
    names = [name for names in names_of_workers(WORKERS, "listed", each=2) for name in names]
    with sync.connect(divided.url) as client:
        tables = [client.create_table(name, SCORES, primary_key=["player"], buckets=2) for name in names]
        for table in tables:
            table.upsert(rows_of(20, table.name))
        assert len({table.owner_port for table in tables}) == WORKERS
        listed = [table.name for table in client.tables() if table.name.startswith("listed.")]
        assert listed == sorted(names)
        for name in names:
            table = client.table(name)
            assert table.count() == 20
            assert table.get(f"{name} 7") == {"player": f"{name} 7", "score": 7}
            assert [row["score"] for row in table.top_n(2, "score").to_pylist()] == [19, 18]
        with pytest.raises(TableExists):
            client.create_table(names[0], SCORES, primary_key=["player"])
        client.drop_table(names[0])
        # The name that was meant may be that of a table of another worker, so none is suggested.
        for missing in (names[0], *(f"{name}x" for name in names)):
            with pytest.raises(TableNotFound, match=r"does not exist$"):
                client.table(missing)


def test_any_worker_answers_every_call_about_a_table_of_another(divided: ServerProcess) -> None:
    """A client that knows nothing of workers gets what the owner would answer, and its errors."""
    (mine,), (other,) = names_of_workers(WORKERS, "through")
    ports = ports_of(divided)
    with sync.connect(divided.url) as client:
        for name in (mine, other):
            client.create_table(name, SCORES, primary_key=["player"]).upsert(rows_of(5000))
    answers = []
    for port in ports:
        wire = Wire(f"127.0.0.1:{port}")
        try:
            request = scan_pb2.ScanKvRequest(table=other, chunk=scan_pb2.ChunkBounds(max_rows=100))
            messages = list(wire.scans.ScanKv(request, timeout=60))
            assert messages[-1].HasField("trailer")
            assert messages[-1].trailer.rows_returned == 5000
            chunks = [each.chunk.record_batch for each in messages if each.HasField("chunk")]
            counted = wire.lookups.Count(lookup_pb2.CountRequest(table=other), timeout=60)
            answers.append((chunks, counted.rows))
            with pytest.raises(grpc.RpcError) as refused:
                wire.tables.GetTable(table_pb2.GetTableRequest(name="through.missing"), timeout=60)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.RpcError) as wrong:
                list(wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=other, buckets=[99]), timeout=60))
            assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            wire.channel.close()
    assert answers[0] == answers[1]


def has_no_scan(client: sync.Client, table: str) -> bool:
    return table not in {each.table for each in client.live_scans()}


def test_calls_that_are_passed_on_are_those_of_their_client(divided: ServerProcess) -> None:
    """Live scans and the audit log name the client, and not the worker that has passed its call on."""
    with sync.connect(divided.url) as client:
        for (name,) in names_of_workers(WORKERS, "peers"):
            client.create_table(name, SCORES, primary_key=["player"]).upsert(rows_of(3000))
            for port in ports_of(divided):
                wire = Wire(f"127.0.0.1:{port}")
                try:
                    request = scan_pb2.ScanKvRequest(table=name, chunk=scan_pb2.ChunkBounds(max_rows=1))
                    messages = wire.scans.ScanKv(request, timeout=60)
                    assert next(messages).HasField("header")
                    (scan,) = [each for each in client.live_scans() if each.table == name]
                    assert scan.peer.startswith("ipv4:127.0.0.1:"), scan
                    messages.cancel()
                    wait_until(partial(has_no_scan, client, name), "the scan ended")
                finally:
                    wire.channel.close()


def test_a_client_connects_to_the_owner_of_a_table(divided: ServerProcess) -> None:
    with sync.connect(divided.url) as client:
        for port, (name,) in zip(ports_of(divided), names_of_workers(WORKERS, "direct"), strict=True):
            table = client.create_table(name, SCORES, primary_key=["player"])
            assert table.owner_port == port
            assert str(port) in repr(table)


@pytest.mark.asyncio
async def test_a_client_uses_the_port_of_the_server_where_those_of_the_workers_are_closed(
    divided: ServerProcess,
) -> None:
    """A proxy that only forwards the port of the server, as a firewall would leave it."""
    names = [name for (name,) in names_of_workers(WORKERS, "closed")]
    async with FaultProxy(divided.url) as proxy, connect(proxy.address) as client:
        for name in names:
            table = await client.create_table(name, SCORES, primary_key=["player"])
            await table.upsert(rows_of(100))
            assert (await table.scan().to_arrow()).num_rows == 100


def test_what_is_named_by_an_id_is_found_at_every_worker(divided: ServerProcess) -> None:
    names = [name for (name,) in names_of_workers(WORKERS, "ids")]
    # With more read ahead, the scans would have ended at the server.
    with sync.connect(divided.url, read_ahead_bytes=64 << 10) as client, ExitStack() as stack:
        tables = [client.create_table(name, SCORES, primary_key=["player"]) for name in names]
        for table in tables:
            table.upsert(rows_of(3000))
        held = stack.enter_context
        snapshots = [held(table.snapshot()) for table in tables]
        locks = [held(table.lock_columns(["score"], owner="me")) for table in tables]
        streams = [table.scan().with_chunk(rows=1).stream() for table in tables]
        for stream in streams:
            next(stream)
        assert {each.table for each in client.snapshots() if each.table.startswith("ids.")} == set(names)
        assert {each.table for each in client.column_locks() if each.table.startswith("ids.")} == set(names)
        scans = [each for each in client.live_scans() if each.table.startswith("ids.")]
        assert {each.table for each in scans} == set(names)
        for scan in scans:
            client.cancel_scan(scan.scan_id)
        wait_until(lambda: not [s for s in client.live_scans() if s.table.startswith("ids.")], "the scans ended")
        with pytest.raises(ScanNotFound):
            client.cancel_scan(scans[0].scan_id)
        assert {each.id for each in client.snapshots()} >= {each.id for each in snapshots}
        assert {each.id for each in client.column_locks()} >= {each.id for each in locks}
        stack.close()
        assert not [each for each in client.snapshots() if each.table.startswith("ids.")]
        assert not [each for each in client.column_locks() if each.table.startswith("ids.")]


def test_a_transaction_of_one_worker_is_found_by_all(divided: ServerProcess) -> None:
    (first, second), (other, _) = names_of_workers(WORKERS, "transactions", each=2)
    with sync.connect(divided.url) as client:
        tables = {n: client.create_table(n, SCORES, primary_key=["player"]) for n in (first, second, other)}
        for name in (first, other):
            with client.transaction(id=f"job:{name}") as tx:
                tx.upsert(tables[name], rows_of(10))
                if name == first:
                    tx.upsert(tables[second], rows_of(20))
                result = tx.commit()
            assert result.rows == (30 if name == first else 10)
            # The same id again, which another worker may be asked for, is the same commit.
            with client.transaction(id=f"job:{name}") as again:
                assert again.result == result
        assert [tables[name].count() for name in (first, second, other)] == [10, 20, 10]
        transaction = client.transaction()
        transaction.upsert(tables[first], rows_of(1, "new"))
        assert [each.tables for each in client.transactions() if each.tables] == [(first,)]
        transaction.abort()
        assert client.transactions() == []
        assert tables[first].count() == 10


def test_statistics_and_metrics_are_those_of_all_workers(divided: ServerProcess) -> None:
    names = [name for (name,) in names_of_workers(WORKERS, "stats")]
    with sync.connect(divided.url) as client:
        before = client.stats().rows_written
        for number, name in enumerate(names):
            client.create_table(name, SCORES, primary_key=["player"]).upsert(rows_of(100 + number))
        stats = client.stats()
        assert stats.rows_written - before == 201
        assert stats.tables >= WORKERS
        text = client.metrics()
    samples = re.findall(r'^scankv_rows_written_total\{worker="(\d)"\} (\S+)$', text, re.MULTILINE)
    assert [worker for worker, _ in samples] == ["0", "1"]
    assert all(float(value) >= 100 for _, value in samples)
    # Each family has its help once, so that Prometheus can read it.
    helps = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
    assert len(helps) == len(set(helps))


def test_a_client_cannot_claim_to_be_a_worker(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("forged")
    issuer = TokenIssuer(root / "tokens")
    with ServerProcess(root / "data", "--workers", "2", "--tokens", str(issuer.path)) as server:
        wire = Wire(server.url)
        try:
            for metadata in [((OF_SERVER, ""),), ((OF_SERVER, "x" * 64),), ((FORWARDED, "x" * 64),)]:
                with pytest.raises(grpc.RpcError) as refused:
                    wire.tables.ListTables(table_pb2.ListTablesRequest(), metadata=metadata, timeout=60)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                for method in METHODS_OF_WORKERS:
                    assert code_before_message(wire.channel, method, metadata) == "UNAUTHENTICATED", method
        finally:
            wire.channel.close()
        reader = issuer.create("read:mine.*")
        with sync.connect(server.url, token=issuer.root) as client:
            for names in names_of_workers(WORKERS, "mine") + names_of_workers(WORKERS, "others"):
                client.create_table(names[0], SCORES, primary_key=["player"])
        with sync.connect(server.url, token=reader) as client:
            assert [table.name for table in client.tables()] == sorted(n for (n,) in names_of_workers(WORKERS, "mine"))
            for (name,) in names_of_workers(WORKERS, "mine"):
                assert client.table(name).count() == 0


def test_a_server_drains_all_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    names = [name for (name,) in names_of_workers(WORKERS, "drained")]
    with ServerProcess(tmp_path_factory.mktemp("drained") / "data", "--workers", "2") as server:
        with sync.connect(server.url) as client:
            for name in names:
                client.create_table(name, SCORES, primary_key=["player"]).upsert(rows_of(10))
        pids = processes_of(server)
        assert sorted(pids) == [0, 1]
        assert server.stop() == 0
        assert not any(is_running(pid) for pid in pids.values())
        server.restart()
        with sync.connect(server.url) as client:
            assert [client.table(name).count() for name in names] == [10, 10]
            # Nothing was lost, so the epochs have not changed.
            assert {each.epoch for name in names for each in client.table(name).stats()} == {0}


def test_a_directory_is_served_by_any_number_of_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rows, changes, snapshots, consumers and the commits of transactions are there, whichever worker owns a table."""
    data = tmp_path_factory.mktemp("numbers") / "data"
    names = [f"numbers.t{number}" for number in range(6)]
    results = {}
    with ServerProcess(data, "--workers", "1") as server, sync.connect(server.url) as client:
        for number, name in enumerate(names):
            table = client.create_table(name, SCORES, primary_key=["player"], buckets=2)
            with client.transaction(id=f"load:{number}") as tx:
                tx.upsert(table, rows_of(50 + number))
                results[number] = tx.commit()
        assert server.stop() == 0
    for workers in (2, 3, 2, 1):
        with ServerProcess(data, "--workers", str(workers)) as server, sync.connect(server.url) as client:
            if workers > 1:
                # The workers, which are forks, would lack any other thread, such as those of RocksDB.
                assert len(os.listdir(f"/proc/{server.process.pid}/task")) == 1
            for number, name in enumerate(names):
                table = client.table(name)
                assert table.count() == 50 + number
                assert table.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow().num_rows == 50 + number
                with client.transaction(id=f"load:{number}") as again:
                    assert again.result == results[number]
            assert server.stop() == 0


@pytest.mark.breadth
def test_a_server_is_ready_once_every_worker_has_been(tmp_path: Path) -> None:
    port = free_port()
    data, log = tmp_path / "data", tmp_path / "log"
    command = [sys.executable, "-m", "scankv", "serve", "--workers", "2", "--data", str(data), "--port", str(port)]
    stopped_worker = os.environ | {"PYTHONPATH": str(STOPPED_FORK)}
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=stopped_worker) as server,
    ):
        try:
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
            workers = wait_until(
                lambda: [*map(int, pids)] if len(pids := children.read_text().split()) == 2 else [], "2"
            )
            wait_until(lambda: "is ready, with process id" in log.read_text(), "the other worker starts")
            with sync.connect(f"127.0.0.1:{port}") as client:
                with pytest.raises(DeadlineExceeded, match="NOT_SERVING"):
                    client.wait_ready(0.3)
                os.kill(workers[0], signal.SIGCONT)
                client.wait_ready(60)
                # From now on, the other worker serves its tables also without this one.
                os.kill(workers[0], signal.SIGKILL)
                client.wait_ready(60)
        finally:
            server.terminate()


@pytest.mark.breadth
def test_a_taken_port_and_a_locked_directory_are_named(divided: ServerProcess) -> None:
    def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scankv", "serve", "--workers", "2", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    port = divided.url.rpartition(":")[2]
    taken = serve("--data", str(divided.data_dir.with_name("other")), "--port", port)
    assert (taken.returncode, taken.stdout) == (4, "")
    assert f"127.0.0.1:{port}" in taken.stderr
    locked = serve("--data", str(divided.data_dir), "--port", "0")
    assert (locked.returncode, locked.stdout) == (3, "")
    assert "in use" in locked.stderr
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        busy = listener.getsockname()[1]
        between = serve("--data", str(divided.data_dir.with_name("third")), "--port", str(busy - 1))
    assert between.returncode == 4
    assert f"127.0.0.1:{busy}" in between.stderr


def test_a_frozen_worker_does_not_keep_the_tables_of_others_from_being_served(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    (frozen,), (served,) = names_of_workers(WORKERS, "frozen")
    with (
        ServerProcess(tmp_path_factory.mktemp("frozen") / "data", "--workers", "2") as server,
        sync.connect(server.url) as client,
    ):
        tables = {name: client.create_table(name, SCORES, primary_key=["player"]) for name in (frozen, served)}
        tables[frozen].upsert(rows_of(10))
        with freeze(processes_of(server)[0]):
            tables[served].upsert(rows_of(100))
            assert tables[served].count() == 100
        assert tables[frozen].count() == 10
