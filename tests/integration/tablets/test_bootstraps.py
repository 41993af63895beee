"""Bootstraps that make tables with tablets: the table appears at once, at all owners of its tablets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import DuplicateKeys, InvalidRequest, StartFrom, StopAt, TableExists, col, sync
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

ROWS = pa.table({"k": pa.array(range(5000)), "v": pa.array(number % 50 for number in range(5000))})
BUCKETS, TABLETS = 8, 3
# One table for each of two workers.
NAMES = [name for (name,) in names_of_workers(2, "bootstrapped")]


def answers(table: sync.Table) -> list[Any]:
    """Returns what a new table answers."""
    with table.changes(StartFrom.FULL, StopAt.LATEST).stream() as stream:
        changes = [(row["k"], row["v"], row["_change_type"]) for batch in stream for row in batch.to_pylist()]
    return [
        table.count(),
        sorted(table.scan().to_pylist(), key=lambda row: row["k"]),
        sorted(changes),
        sorted(row["k"] for row in table.scan().where(col("v") == 7).to_pylist()),
        table.get(4999),
    ]


def wait_for_indexes(table: sync.Table) -> None:
    wait_until(lambda: all(index.ready for index in table.index_status()), "the indexes are built")


@pytest.mark.breadth
@pytest.mark.parametrize("name", NAMES)
def test_a_table_with_tablets_is_made_as_any_other(server: ServerProcess, name: str) -> None:
    with sync.connect(server.url) as client:
        with pytest.raises(DuplicateKeys):
            client.bootstrap(name, pa.concat_tables([ROWS, ROWS]), primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)
        with pytest.raises(InvalidRequest, match="between 1 and 2 tablets, not 3"):
            client.bootstrap(name, ROWS, primary_key=["k"], buckets=2, tablets=TABLETS)
        made = [
            client.bootstrap(twin, ROWS, primary_key=["k"], buckets=BUCKETS, tablets=tablets, indexes=[["v"]])
            for twin, tablets in ((name, TABLETS), (f"{name}_twin", 1))
        ]
        assert [table.tablets for table in made] == [TABLETS, 1]
        assert answers(made[0]) == answers(made[1])
        for table in made:
            wait_for_indexes(table)
            assert all(check.is_consistent for check in client.check_table(table.name))
            table.upsert(pa.table({"k": range(4000, 6000), "v": [1] * 2000}))
        assert answers(made[0]) == answers(made[1])
        with pytest.raises(TableExists):
            client.bootstrap(name, ROWS, primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)


@pytest.mark.breadth
@pytest.mark.parametrize("killed", [0, 1])
def test_an_owner_of_tablets_that_was_killed_has_them(tmp_path: Path, killed: int) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server:
        with sync.connect(server.url, operation_timeout=60) as client:
            table = client.bootstrap(NAMES[0], ROWS, primary_key=["k"], buckets=BUCKETS, tablets=TABLETS)
            kill_worker(server, killed)
            wait_for_worker(server, killed)
            assert table.count() == len(ROWS)
            assert sorted(row["k"] for row in table.scan().to_pylist()) == [*range(len(ROWS))]
