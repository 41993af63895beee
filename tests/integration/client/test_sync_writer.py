"""Writers, column locks and conditional writes of the blocking client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import ColumnLocked, SchemaMismatch, WriteConflict

if TYPE_CHECKING:
    from aio_client import sync

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def rows(keys: range | list[int], value: int) -> pa.Table:
    return pa.table({"k": list(keys), "v": [value] * len(keys)}, schema=SCHEMA)


def test_a_blocking_writer_does_the_same(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)
    with table.writer(id="job-1", columns=["v"], lock=True) as writer:
        assert (writer.id, writer.epoch, writer.next_sequence) == ("job-1", 1, 0)
        writer.upsert(rows(range(10), 1))
        writer.delete([3, 4])
        result = writer.flush()
        assert (result.rows, writer.buffered_bytes) == (12, 0)
        with pytest.raises(ColumnLocked):
            table.upsert(rows([1], 2))
        with pytest.raises(SchemaMismatch):
            writer.upsert([{"x": 1}])
        writer.upsert(rows([3], 5))
    assert table.count() == 9
    with table.lock_columns(["v"], owner="me") as lock:
        assert [(each.id, each.owner, each.columns) for each in sync_client.column_locks(name)] == [
            (lock.id, "me", ["v"])
        ]
        table.upsert(rows([1], 2), locks=[lock])
        lock.renew(120)
        assert (lock.ttl, lock.table) == (120, name)
        assert lock.remaining > 0
    assert sync_client.column_locks(name) == []
    read = table.lookup([1], with_version=True)
    table.upsert(rows([1], 3), if_version=read.log_offsets)
    assert table.get(1) == {"k": 1, "v": 3}
    with pytest.raises(WriteConflict):
        table.delete([1], if_version=read.log_offsets)
