"""Tables with tablets are created, altered, dropped and described, even if workers end in between."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.errors import InvalidRequest, ScanKvError, TableExists, TableNotFound, Unavailable
from streaming_server.storage.tables.placement import Placement
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.workers import freeze, names_of_workers, processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client import BucketCheck

pytestmark = pytest.mark.timeout(240)  # several processes start again and again

ROWS = 300


def rows(number: int = ROWS) -> pa.Table:
    return pa.table({"player": [f"p{each}" for each in range(number)], "score": list(range(number))}, schema=SCORES)


def create(client: sync.Client, name: str, tablets: int = 3) -> sync.Table:
    table = client.create_table(name, SCORES, primary_key=["player"], buckets=7, tablets=tablets)
    table.upsert(rows())
    return table


def assert_complete(table: sync.Table) -> None:
    assert table.count() == ROWS
    found = table.scan().to_arrow().sort_by("score")
    assert found["score"].to_pylist() == list(range(ROWS))
    found = table.get("p17")
    assert found is not None
    assert found["score"] == 17


def test_a_table_with_tablets_looks_like_any_other(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        table = create(client, "looks.scores")
        assert_complete(table)
        assert [each.name for each in client.tables() if each.name.startswith("looks.")] == ["looks.scores"]
        with pytest.raises(TableExists):
            create(client, "looks.scores")
        statistics = table.stats()
        assert [each.bucket for each in statistics] == list(range(7))
        assert sum(each.rows or 0 for each in statistics) == ROWS
        checked: list[BucketCheck] = []
        assert client.check_table("looks.scores", on_bucket=checked.append)
        assert [each.bucket for each in checked] == list(range(7))
        assert client.stats().tables >= 1


def test_tablets_cannot_be_used_by_their_names(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        create(client, "names.scores")
        for use in (client.table, client.drop_table):
            with pytest.raises(InvalidRequest, match="not a table name"):
                use("names.scores#1")
        with pytest.raises(InvalidRequest, match="not a table name"):
            client.create_table("names.other#1", SCORES, primary_key=["player"])
        assert_complete(client.table("names.scores"))


def test_a_bootstrap_does_not_replace_a_table_with_tablets(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:

        def batches() -> Iterator[pa.RecordBatch]:
            yield from rows().to_batches()
            create(client, "boot.scores")

        reader = pa.RecordBatchReader.from_batches(SCORES, batches())
        with sync.connect(server.url) as other, pytest.raises(TableExists):
            other.bootstrap("boot.scores", reader, primary_key=["player"])
        with pytest.raises(TableExists):
            client.bootstrap("boot.scores", rows(1), primary_key=["player"])
        assert_complete(client.table("boot.scores"))


@pytest.mark.parametrize("tablets", [0, 8, -1, True, "2"])
def test_a_wrong_number_of_tablets_is_refused(server: ServerProcess, tablets: int) -> None:
    with sync.connect(server.url) as client:
        with pytest.raises(ScanKvError, match="tablet"):
            client.create_table("wrong.scores", SCORES, primary_key=["player"], buckets=7, tablets=tablets)
        with pytest.raises(TableNotFound):
            client.table("wrong.scores")


def test_features_that_tablets_lack_are_refused_before_anything_is_created(server: ServerProcess) -> None:
    two = pa.schema([("day", pa.int32()), ("player", pa.string())])
    with sync.connect(server.url) as client:
        with pytest.raises(InvalidRequest, match="cannot be partitioned"):
            client.create_table("less.days", two, primary_key=["day", "player"], partition_by=["day"], tablets=2)
        with pytest.raises(InvalidRequest, match="needs a primary key"):
            client.create_table("less.log", SCORES, primary_key=[], tablets=2)
        assert not [each for each in client.tables() if each.name.startswith("less.")]


def test_columns_and_indexes_change_in_all_tablets(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        create(client, "changed.scores")
        client.alter_table("changed.scores", add_columns=pa.schema([("level", pa.int32())]), add_indexes=["score"])
        table = client.table("changed.scores")
        table.upsert([{"player": "p5", "score": 5, "level": 9}])
        assert sorted(table.scan().to_arrow()["level"].drop_null().to_pylist()) == [9]
        wait_until(lambda: all(index.ready for index in client.table("changed.scores").index_status()), "indexes")
        assert client.check_table("changed.scores")


@pytest.mark.breadth
def test_tables_of_different_owners_are_altered_at_once(server: ServerProcess) -> None:
    """Each owner notifies the other one, which is altering a table of its own."""
    names = [name for (name,) in names_of_workers(2, "owners")]

    def alter(name: str) -> None:
        with sync.connect(server.url) as client:
            for number in range(20):
                client.alter_table(name, add_columns=pa.schema([(f"c{number}", pa.int64())]))

    with sync.connect(server.url) as client:
        for name in names:
            create(client, name)
        with ThreadPoolExecutor() as threads:
            for _ in threads.map(alter, names):
                pass
        for name in names:
            assert client.table(name).schema.names[-1] == "c19"


def test_a_dropped_table_is_gone_and_can_be_created_again(server: ServerProcess) -> None:
    with sync.connect(server.url) as client:
        for tablets in (3, 7, 2):
            table = create(client, "again.scores", tablets)
            assert_complete(table)
            client.drop_table("again.scores")
            with pytest.raises(TableNotFound):
                table.count()
            assert not [each for each in client.tables() if each.name.startswith("again.")]


@pytest.mark.breadth
def test_the_number_of_workers_may_change(tmp_path: Path) -> None:
    for workers in (2, 1, 3, 2):
        with ServerProcess(tmp_path / "data", "--workers", str(workers)) as server, sync.connect(server.url) as client:
            if workers == 2 and not client.tables():
                create(client, "moved.scores")
            table = client.table("moved.scores")
            assert_complete(table)
            table.upsert(rows())
            assert_complete(table)


@pytest.mark.breadth
def test_a_killed_worker_loses_nothing_of_its_tablets(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, sync.connect(server.url) as client:
        table = create(client, "killed.scores", 4)
        for pid in processes_of(server).values():
            os.kill(pid, signal.SIGKILL)
            assert_complete_soon(table)
            table.upsert(rows())
        client.alter_table("killed.scores", add_columns=pa.schema([("level", pa.int32())]))
        for pid in processes_of(server).values():
            os.kill(pid, signal.SIGKILL)
        assert_complete_soon(table)
        client.drop_table("killed.scores")
        assert not client.tables()


def assert_complete_soon(table: sync.Table) -> None:
    """Waits until all workers serve again. Every answer until then is complete."""

    def is_served() -> bool:
        try:
            assert_complete(table)
        except ScanKvError:
            return False
        return True

    wait_until(is_served, "all tablets are served", timeout=60)


@pytest.mark.breadth
def test_a_frozen_worker_delays_changes_of_definitions_and_misses_none(tmp_path: Path) -> None:
    settings = ("--workers", "2", "--set", "worker_timeout_seconds=3600")
    with ServerProcess(tmp_path / "data", *settings) as server:
        placement = Placement(0, 2)
        owner = placement.owner_of("frozen.scores")
        with sync.connect(server.url) as any_worker:
            port = create(any_worker, "frozen.scores").owner_port
        # At the port of the server, the frozen worker may get the connection.
        with sync.connect(f"127.0.0.1:{port}", attempt_timeout=20, operation_timeout=20) as client:
            with freeze(processes_of(server)[1 - owner]):
                with pytest.raises(Unavailable):
                    client.alter_table("frozen.scores", add_columns=pa.schema([("level", pa.int32())]))
                assert client.table("frozen.scores").schema.names == ["player", "score"]
                with pytest.raises(Unavailable):
                    client.drop_table("frozen.scores")
                # Only tables of a worker that runs: the name decides.
                name = next(n for n in (f"frozen.t{i}" for i in range(9)) if placement.owner_of(n) == owner)
                client.create_table(name, SCORES, primary_key=["player"], buckets=4, tablets=2)
            wait_until(lambda: _is_complete(client.table("frozen.scores")), "the table is served again")
            table = client.table(name)
            table.upsert(rows())
            assert_complete(table)
            client.alter_table("frozen.scores", add_columns=pa.schema([("level", pa.int32())]))
            assert_complete(client.table("frozen.scores"))


def _is_complete(table: sync.Table) -> bool:
    try:
        return bool(table.scan().to_arrow().num_rows == ROWS)
    except ScanKvError:
        return False
