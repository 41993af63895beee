"""Snapshots of tables with tablets whose buckets have columnar bases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client import sync
from tests.support.bases import SOON, bases_on_disk
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES
from tests.support.waiting import wait_until
from tests.support.workers import rows_of

if TYPE_CHECKING:
    from pathlib import Path

BUCKETS, ROWS = 7, 700


def test_a_snapshot_has_the_bases_of_all_tablets(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with ServerProcess(data_dir, *SOON) as server, sync.connect(server.url) as client:
        table = client.create_table(
            "test.t", SCORES, primary_key=["player"], buckets=BUCKETS, tablets=3, columnar_base="eager"
        )
        table.upsert(rows_of(ROWS))
        wait_until(lambda: len(bases_on_disk(data_dir, "test.t")) == BUCKETS, "every bucket has a base")
        with table.snapshot() as snapshot:
            in_views = data_dir.glob("tables/test/t/tablets/*/snapshots/*/bases/*/*/")
            assert sorted(path.parent.name for path in in_views) == [f"{number:04}" for number in range(BUCKETS)]
            table.upsert([{"player": "new", "score": 1}])
            assert table.scan().as_of(snapshot).to_arrow().num_rows == ROWS
