"""Column locks of tables with tablets, for writes of many rows, which clients send to the owners of the tablets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ColumnLocked, LockLost, sync
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 20_000
SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])


@pytest.fixture(params=[pytest.param(1, id="one worker", marks=pytest.mark.breadth), pytest.param(2, id="two workers")])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sync.Table]:
    with (
        ServerProcess(tmp_path / "data", "--workers", str(request.param)) as server,
        sync.connect(server.url) as client,
    ):
        yield client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=6, tablets=3)


def rows(value: int) -> pa.Table:
    return pa.table({"k": range(ROWS), "a": [value] * ROWS, "b": [value] * ROWS}, SCHEMA)


@pytest.mark.breadth
def test_writes_of_many_rows_keep_column_locks(table: sync.Table) -> None:
    table.upsert(rows(1))
    lock = table.lock_columns(["a"], owner="job", ttl=600)
    before = table.stats()
    with pytest.raises(ColumnLocked):
        table.upsert(rows(2))
    with pytest.raises(ColumnLocked):
        table.delete(rows(2).select(["k"]))
    assert [each.log_offset for each in table.stats()] == [each.log_offset for each in before]
    table.upsert(rows(3), locks=[lock])
    assert table.count(where="a = 3") == ROWS
    lock.release()
    with pytest.raises(LockLost):
        table.upsert(rows(4), locks=[lock])
    assert table.count(where="a = 3") == ROWS
    table.upsert(rows(5))
    assert table.count(where="a = 5") == ROWS
