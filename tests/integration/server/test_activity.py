"""`AdminService.Activity`: everything counts once, callers see their tables, and a missing worker hides no others."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.errors import TableNotFound, Unauthenticated
from scankv.v1 import admin_pb2, write_pb2, write_pb2_grpc
from tests.support.activity import Counted, ask_activity, count_server, count_table
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.waiting import wait_until
from tests.support.workers import freeze, names_of_workers, processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64())])
ROWS = [{"player": f"p{number:03}", "score": number} for number in range(100)]

pytestmark = [pytest.mark.one_process, pytest.mark.whole_tables]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    workers = () if request.param == 1 else ("--workers", str(request.param))
    with ServerProcess(tmp_path_factory.mktemp("activity") / "data", *workers) as server:
        yield server.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[sync.Client]:
    with sync.connect(url) as client:
        yield client


def make_table(client: sync.Client, name: str, tablets: int = 1) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["player"], buckets=4, tablets=tablets)


@pytest.mark.breadth
@pytest.mark.parametrize("tablets", [1, 2])
def test_rows_and_calls_count_once(url: str, client: sync.Client, tablets: int) -> None:
    table = make_table(client, f"once.t{tablets}", tablets)
    before = count_server(ask_activity(url))
    table.upsert(pa.Table.from_pylist(ROWS, SCHEMA))
    table.delete([{"player": "p099"}])
    assert table.count("score > 3") == 95
    assert table.get({"player": "p001"}) is not None
    assert table.scan().to_arrow().num_rows == 99
    answer = ask_activity(url)
    found = count_table(answer, table.name)
    assert (found.rows_written, found.reads, found.live_scans) == (101, 2, 0)
    # Two, unless the client has sent the parts of a write to the owners of their tablets.
    assert 2 <= found.writes <= 1 + tablets
    # The count with a predicate and the scan read all rows; the lookup is no scan.
    assert found.rows_read == 2 * 99
    assert found.latencies == found.writes + found.reads
    after = count_server(answer)
    assert (after.rows_written - before.rows_written, after.rows_read - before.rows_read) == (101, 198)


@pytest.mark.parametrize("tablets", [1, 2])
def test_rows_of_a_transaction_count_when_it_commits(url: str, client: sync.Client, tablets: int) -> None:
    table, other = make_table(client, f"tx.a{tablets}", tablets), make_table(client, f"tx.b{tablets}")
    transaction = client.transaction(id=f"job-{tablets}")
    transaction.upsert(table, ROWS)
    transaction.upsert(other, ROWS[:7])
    assert count_table(ask_activity(url), table.name).rows_written == 0
    transaction.commit()
    answer = ask_activity(url)
    assert count_table(answer, table.name).rows_written == 100
    assert count_table(answer, other.name).rows_written == 7


def test_an_aborted_transaction_counts_no_rows(url: str, client: sync.Client) -> None:
    table = make_table(client, "tx.aborted")
    transaction = client.transaction(id="aborted")
    transaction.upsert(table, ROWS)
    transaction.abort()
    assert count_table(ask_activity(url), table.name).rows_written == 0


def test_rows_of_a_bootstrap_count_once(url: str, client: sync.Client) -> None:
    client.bootstrap("boot.scores", pa.Table.from_pylist(ROWS, SCHEMA), primary_key=["player"])
    assert count_table(ask_activity(url), "boot.scores").rows_written == 100


@pytest.mark.parametrize("tablets", [1, 2])
def test_a_check_counts_nothing(url: str, client: sync.Client, tablets: int) -> None:
    table = make_table(client, f"checked.t{tablets}", tablets)
    table.upsert(ROWS)
    assert sum(each.rows for each in client.check_table(table.name)) == 100
    found = count_table(ask_activity(url), table.name)
    assert (found.rows_read, found.reads) == (0, 0)


def test_a_refused_write_counts_nothing(url: str, client: sync.Client) -> None:
    table = make_table(client, "refused.t")
    with pytest.raises(TableNotFound):
        client.table("refused.missing").upsert(ROWS)
    assert count_table(ask_activity(url), table.name) == Counted(0, 0, 0, 0, 0, 0)
    assert count_table(ask_activity(url), "refused.missing") == Counted(0, 0, 0, 0, 0, 0)


@pytest.mark.breadth
@pytest.mark.parametrize("tablets", [1, 2])
def test_a_scan_is_one_live_stream_of_its_table(url: str, client: sync.Client, tablets: int) -> None:
    table = make_table(client, f"live.t{tablets}", tablets)
    table.upsert([{"player": f"{number:0600}", "score": number} for number in range(20_000)])
    with table.scan().with_chunk(rows=100).stream() as stream:
        next(stream)
        answer = ask_activity(url)
        assert count_table(answer, table.name).live_scans == count_server(answer).live_scans == 1
        assert all("/" not in each.table and "#" not in each.table for each in answer.processes[0].tables)
    wait_until(lambda: count_table(ask_activity(url), table.name).live_scans == 0, "the end of the scan")


def test_only_what_has_changed_is_sent_if_that_is_asked(url: str, client: sync.Client) -> None:
    table = make_table(client, "changed.t")
    table.upsert(ROWS)
    before = ask_activity(url)
    make_table(client, "changed.other").upsert(ROWS)
    answer = ask_activity(url, since=before)
    assert count_table(answer, "changed.other").rows_written == 100
    # A size that was measured is a change, too. That happens at most once a minute.
    wait_until(
        lambda: count_table(ask_activity(url, since=ask_activity(url)), table.name).rows_written == 0,
        "an answer without a table that has not changed",
    )


@pytest.mark.parametrize("tablets", [1, 2])
def test_a_repeated_write_counts_its_rows_once(url: str, client: sync.Client, tablets: int) -> None:
    table = make_table(client, f"repeated.t{tablets}", tablets)
    with grpc.insecure_channel(url) as channel:
        stub = write_pb2_grpc.WriteServiceStub(channel)
        identity = write_pb2.WriterIdentity(id=uuid.uuid4().hex, sequence=1)
        request = write_pb2.UpsertRequest(
            table=table.name, rows=ipc_stream(SCHEMA, pa.RecordBatch.from_pylist(ROWS, SCHEMA)), writer=identity
        )
        for _ in range(3):
            assert stub.Upsert(request).rows == 100
    found = count_table(ask_activity(url), table.name)
    assert (found.rows_written, found.writes) == (100, 3)


def test_a_table_that_is_created_again_has_done_nothing(url: str, client: sync.Client) -> None:
    def of_owner() -> admin_pb2.TableActivity:
        answers = [each for process in ask_activity(url).processes for each in process.tables if each.incarnation]
        return next(each for each in answers if each.table == "again.t")

    def exists() -> bool:
        answer = ask_activity(url, names=["again.t"])
        return all(process.tables for process in answer.processes)

    make_table(client, "again.t").upsert(ROWS)
    before = of_owner()
    assert exists()
    client.drop_table("again.t")
    assert not exists()
    make_table(client, "again.t")
    now = of_owner()
    assert now.counters.rows_written == 0
    assert now.incarnation != before.incarnation
    assert now.counters.began_at_micros > before.counters.began_at_micros


@pytest.mark.breadth
def test_a_restart_takes_nothing_from_the_size_of_a_table(tmp_path: Path) -> None:
    rows = [{"player": f"{number:0600}", "score": number} for number in range(4000)]
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as client:
        make_table(client, "sized.t").upsert(rows)
        make_table(client, "sized.idle").upsert(rows)
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as client:
        client.table("sized.t").upsert(rows[:1])

        def sizes() -> list[int]:
            (process,) = ask_activity(server.url).processes
            found = [each.counters for each in process.tables if each.table == "sized.t"]
            return [each.disk_bytes for each in (*found, process.server) if each.HasField("disk_bytes")]

        wait_until(lambda: len(sizes()) == 2, "a measurement", timeout=10)
        of_table, of_server = sizes()
        # Each bucket has some of the rows, and only one was opened. Some bytes of the keys are compressed.
        assert of_server > 1.5 * of_table > 0


def test_a_caller_sees_the_tables_that_he_may_read(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    with (
        ServerProcess(tmp_path / "data", "--tokens", str(issuer.path)) as server,
        sync.connect(server.url, token=issuer.root) as client,
    ):
        for name in ("game.scores", "other.scores"):
            make_table(client, name).upsert(ROWS)
        answer = ask_activity(server.url, issuer.create("read:game.*"))
        assert [each.table for each in answer.processes[0].tables] == ["game.scores"]
        assert not answer.processes[0].HasField("server")
        answer = ask_activity(server.url, issuer.create("read:game.*"), names=["game.scores", "other.scores"])
        assert [each.table for each in answer.processes[0].tables] == ["game.scores"]
        assert not answer.processes[0].HasField("server")
        answer = ask_activity(server.url, issuer.create("read:*"))
        assert {each.table for each in answer.processes[0].tables} == {"game.scores", "other.scores"}
        assert count_server(answer).rows_written == 200
        with pytest.raises(Unauthenticated):
            ask_activity(server.url)


@pytest.mark.breadth
def test_a_worker_that_does_not_answer_hides_no_others(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, sync.connect(server.url) as client:
        (first,), (second,) = names_of_workers(2, "part")
        for name in (first, second):
            make_table(client, name).upsert(ROWS)
        host, _, port = server.url.rpartition(":")
        with freeze(processes_of(server)[1]):
            answer = ask_activity(f"{host}:{int(port) + 1}")
        assert [*answer.missing_workers] == [1]
        assert [process.worker for process in answer.processes] == [0]
