"""The sizes of many tables in one call, which opens no bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, TableSize, sync
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def fill(client: sync.Client, name: str, rows: int, **given: object) -> sync.Table:
    table = client.create_table(name, SCHEMA, primary_key=["k"], **given)  # type: ignore[arg-type]
    table.upsert(pa.table({"k": range(rows), "v": range(rows)}, SCHEMA))
    return table


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
        assert sizes["a.counted"] == TableSize(rows=500, disk_bytes=counted.disk_use().total, unopened_buckets=0)
        assert all(each.unopened_buckets == 0 for each in sizes.values())
        with pytest.raises(InvalidRequest, match="at most 100"):
            client.table_sizes([f"a.t{number}" for number in range(101)])


def test_no_bucket_is_opened_to_know_a_size(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as client:
        fill(client, "a.t", 500, buckets=2)
        assert server.stop() == 0
        server.restart()
        before = client.table_sizes(["a.t"])["a.t"]
        assert (before.rows, before.unopened_buckets) == (None, 2)
        assert before.disk_bytes > 0
        assert client.table_sizes(["a.t"])["a.t"].unopened_buckets == 2
        client.table("a.t").stats()
        assert client.table_sizes(["a.t"])["a.t"].rows == 500
