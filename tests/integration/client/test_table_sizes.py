"""The sizes of many tables in one call, which opens no bucket."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, TableSize, sync
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import names_of_workers, processes_of

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def fill(client: sync.Client, name: str, rows: int, **given: object) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"], **given)  # type: ignore[arg-type]
    table.upsert(pa.table({"k": range(rows), "v": range(rows)}, SCHEMA))
    return table


@pytest.mark.represented_by("2")
@pytest.mark.parametrize("workers", [1, 2])
def test_sizes_are_those_of_the_statistics(tmp_path: Path, workers: int) -> None:
    with ServerProcess(tmp_path / "data", "--workers", str(workers)) as server, sync.connect(server.url) as client:
        counted = fill(client, "a.counted", 500)
        fill(client, "a.uncounted", 500, changelog="upsert")
        fill(client, "a.tablets", 700, buckets=4, tablets=2)
        names = ["a.counted", "a.uncounted", "a.tablets", "a.missing"]
        sizes = client.table_sizes(names)
        assert list(sizes) == ["a.counted", "a.tablets", "a.uncounted"]
        assert {name: each.rows for name, each in sizes.items()} == {
            "a.counted": 500,
            "a.tablets": 700,
            "a.uncounted": None,
        }
        # Much of the disk use of a small table is the last blocks of its files.
        assert 5_000 < sizes["a.counted"].disk_bytes < counted.disk_use().total
        assert all(each.unopened_buckets == 0 for each in sizes.values())
        with pytest.raises(InvalidRequest, match="at most 100"):
            client.table_sizes([f"a.t{number}" for number in range(101)])


@pytest.mark.breadth
def test_no_bucket_is_opened_to_know_a_size(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as client:
        fill(client, "a.t", 500, buckets=2)
        assert server.stop() == 0
        server.restart()
        before = client.table_sizes(["a.t"])["a.t"]
        assert (before.rows, before.unopened_buckets) == (None, 2)
        assert before.disk_bytes > 0
        client.table("a.t").get({"k": 1})
        assert client.table_sizes(["a.t"])["a.t"].unopened_buckets == 1
        client.table("a.t").stats()
        after = client.table_sizes(["a.t"])["a.t"]
        assert (after.rows, after.unopened_buckets) == (500, 0)
        assert 0 < after.disk_bytes <= before.disk_bytes


def test_a_table_that_is_created_again_under_its_name_has_its_own_size(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as client:
        fill(client, "a.t", 500, buckets=2)
        assert server.stop() == 0
        server.restart()
        assert client.table_sizes(["a.t"])["a.t"].unopened_buckets == 2
        client.drop_table("a.t")
        assert client.table_sizes(["a.t"]) == {}
        client.create_table("a.t", SCHEMA, primary_key=["k"], buckets=2)
        assert client.table_sizes(["a.t"])["a.t"] == TableSize(rows=0, disk_bytes=0, unopened_buckets=0)


@pytest.mark.breadth
def test_a_table_of_which_a_worker_has_a_tablet_and_does_not_answer_is_left_out(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, sync.connect(server.url) as client:
        name = names_of_workers(2)[0][0]
        alone = fill(client, name, 10)
        fill(client, "a.tablets", 1000, buckets=4, tablets=2)
        with sync.connect(f"127.0.0.1:{alone.owner_port}") as other:
            assert {each: size.rows for each, size in other.table_sizes([name, "a.tablets"]).items()} == {
                name: 10,
                "a.tablets": 1000,
            }
            frozen = processes_of(server)[1]
            os.kill(frozen, signal.SIGSTOP)
            try:
                assert list(other.table_sizes([name, "a.tablets"])) == [name]
            finally:
                os.kill(frozen, signal.SIGCONT)
            wait_until(lambda: "a.tablets" in other.table_sizes(["a.tablets"]), "the table with tablets")
