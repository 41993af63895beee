"""Uses everything that all released versions have. Runs as a program, too: `common_calls.py URL`, with any version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import scankv
from scankv import StartFrom, StopAt, sync

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.int64())])


def use_everything(url: str) -> None:
    """Creates a table, calls what there is, and compares the answers."""
    with sync.connect(url) as client:
        table = client.create_table("compat.players", SCHEMA, primary_key=["id"], buckets=2)
        table.upsert([{"id": n, "name": f"player {n}", "score": n} for n in range(300)])
        write_single_rows(table)
        read(table)
        resume(table)
        assert table.changes(start=StartFrom.EARLIEST, stop=StopAt.LATEST).to_arrow().num_rows >= 303
        with table.snapshot(ttl=60) as snapshot:
            table.upsert([{"id": 1, "name": "after the snapshot", "score": 1}])
            (row,) = (each for each in scan_as_of(table, snapshot).to_arrow().to_pylist() if each["id"] == 1)
            assert row["name"] == "player 1"
        with client.transaction() as transaction:
            transaction.upsert(table, [{"id": 1000, "name": "of a transaction", "score": 1}])
        row = table.get({"id": 1000})
        assert row is not None
        assert row["name"] == "of a transaction"
        with table.writer("loader") as writer:
            writer.upsert([{"id": 1001, "name": "of a writer", "score": 1}])
        assert all(bucket.is_consistent for bucket in client.check_table("compat.players"))
        assert table.count() == 302
        client.drop_table("compat.players")


def scan_as_of(table: sync.Table, snapshot: sync.Snapshot) -> Any:
    """Returns a scan of a snapshot. Version 0.1.0 calls the method `at`."""
    scan: Any = table.scan()
    return scan.as_of(snapshot) if hasattr(scan, "as_of") else scan.at(snapshot)


def write_single_rows(table: sync.Table) -> None:
    """Writes and deletes single rows, and several at once."""
    table.upsert([{"id": 300, "name": "alone", "score": 7}])
    table.upsert([{"id": 301, "name": "first", "score": 1}, {"id": 302, "name": "second", "score": 2}])
    assert table.get({"id": 300}) == {"id": 300, "name": "alone", "score": 7}
    for key in (300, 301, 302):
        table.delete({"id": key})
    assert table.get({"id": 300}) is None
    try:
        table.upsert([{"id": None, "name": "no key", "score": 1}])
    except scankv.InvalidRequest:
        pass
    else:
        raise AssertionError("a row without a key was written")


def read(table: sync.Table) -> None:
    """Reads rows by key, by predicate and by order."""
    assert table.lookup([{"id": 5}, {"id": 999}]).to_pylist() == [{"id": 5, "name": "player 5", "score": 5}]
    assert table.lookup([{"id": n} for n in range(200)]).num_rows == 200
    assert table.scan(columns=["id"], where="score >= 290").to_arrow().num_rows == 10
    assert table.scan().to_arrow().num_rows == 300
    assert table.top_n(3, "score").column("id").to_pylist() == [299, 298, 297]
    assert table.count(where="score < 10") == 10


def resume(table: sync.Table) -> None:
    """Resumes a scan after its first chunk."""
    scan = table.scan().with_chunk(rows=50)
    with scan.stream() as stream:
        first = next(stream)
        token = stream.resume_token
    assert token is not None
    rest = scan.resume_from(token).to_arrow()
    ids = first.column("id").to_pylist() + rest.column("id").to_pylist()
    assert sorted(ids) == list(range(300))


if __name__ == "__main__":
    use_everything(sys.argv[1])
    print(Path(scankv.__file__).parent)  # noqa: T201
