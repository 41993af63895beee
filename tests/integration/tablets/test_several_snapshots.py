"""Snapshots of several tables are of one instant: no transaction is in one of them and missing in another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, PermissionDenied, SnapshotLost, TableNotFound, UsageError, sync
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.timeout(120)

SCHEMA: Final = pa.schema([("k", pa.int64()), ("n", pa.int64())])
ROUNDS, KEYS = 8, 4


def _create(client: sync.Client, layout: str, tablets: tuple[int, ...]) -> list[sync.Table]:
    """Creates tables of so many tablets each, in which all keys have the number 0."""
    zeros = pa.table({"k": range(KEYS), "n": [0] * KEYS}, schema=SCHEMA)
    tables = [
        client.create_table(f"{layout}.t{number}", SCHEMA, primary_key=["k"], buckets=4, tablets=each)
        for number, each in enumerate(tablets)
    ]
    for table in tables:
        table.upsert(zeros)
    return tables


@contextmanager
def writing(url: str, tables: list[sync.Table]) -> Iterator[None]:
    """Counts up in a thread, in all tables by one transaction each time, so all of them always have the same number."""
    done, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        number = 0
        try:
            with sync.connect(url) as client:
                mine = [client.table(each.name) for each in tables]
                while not done.is_set():
                    number += 1
                    rows = pa.table({"k": range(KEYS), "n": [number] * KEYS}, schema=SCHEMA)
                    with client.transaction() as transaction:
                        for table in mine:
                            transaction.upsert(table, rows)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()
    assert not failures, failures


LAYOUTS: Final[list[Any]] = [
    pytest.param((1, 1, 1), id="undivided"),
    pytest.param((2, 4), id="divided"),
    pytest.param((1, 3, 2), id="mixed"),
]


@pytest.mark.parametrize("tablets", LAYOUTS)
def test_no_transaction_is_torn_by_snapshots_of_its_tables(
    server: ServerProcess, client: sync.Client, request: pytest.FixtureRequest, tablets: tuple[int, ...]
) -> None:
    tables = _create(client, request.node.callspec.id.replace("-", "_"), tablets)
    seen = set()
    with writing(server.url, tables):
        for _ in range(ROUNDS):
            with client.snapshot([each.name for each in reversed(tables)]) as snapshots:
                found = [each.scan().as_of(snapshots.table(each.name)).to_arrow()["n"].to_pylist() for each in tables]
            assert len({number for numbers in found for number in numbers}) == 1, found
            seen.add(found[0][0])
    assert len(seen) > ROUNDS / 2  # The writer was at work.
    assert not client.snapshots()


def test_snapshots_of_the_same_tables_do_not_block_each_other(server: ServerProcess, client: sync.Client) -> None:
    """Each caller names other tables, in another order, while all of them are written, and one is pinned alone."""
    names = [each.name for each in _create(client, "crossed", (1, 3, 2))]

    def pin(*mine: str) -> list[set[int]]:
        with sync.connect(server.url) as other:
            tables, found = [other.table(name) for name in mine], []
            for _ in range(ROUNDS // 2):
                with other.snapshot(mine) as snapshots:
                    rows = [
                        each.scan().as_of(snapshots.table(each.name)).to_arrow()["n"].to_pylist() for each in tables
                    ]
                found.append({number for numbers in rows for number in numbers})
            return found

    callers = [names, names[::-1], names[1:], names[1:2]]
    with writing(server.url, [client.table(name) for name in names]), ThreadPoolExecutor(len(callers)) as threads:
        found = [each for numbers in threads.map(lambda each: pin(*each), callers) for each in numbers]
    assert {len(each) for each in found} == {1}
    assert not client.snapshots()


@pytest.mark.parametrize("tablets", [pytest.param((1, 1), id="two"), pytest.param((1, 3, 2), id="three")])
def test_a_join_of_live_tables_shows_no_half_of_a_transaction(
    server: ServerProcess, client: sync.Client, request: pytest.FixtureRequest, tablets: tuple[int, ...]
) -> None:
    tables = _create(client, f"join_{request.node.callspec.id.rpartition('-')[2]}", tablets)
    names = [each.name for each in tables]
    joins = " ".join(f"join {name} using (k)" for name in names[1:])
    text = f"select {', '.join(f'{name}.n' for name in names)} from {names[0]} {joins}"
    seen = set()
    with writing(server.url, tables):
        for _ in range(ROUNDS):
            found = client.sql(text).to_arrow()
            numbers = {number for column in found.columns for number in column.to_pylist()}
            assert (found.num_rows, len(numbers)) == (KEYS, 1), found
            seen |= numbers
    assert len(seen) > ROUNDS / 2
    explained = client.sql(text).explain()
    assert len(explained.scans) == len(names)
    assert "as of one instant" in str(explained)
    assert not client.snapshots()


def test_snapshots_are_those_of_their_tables_and_live_by_themselves(client: sync.Client) -> None:
    tables = _create(client, "alone", (1, 2))
    with client.snapshot([each.name for each in tables], ttl=120) as snapshots:
        assert snapshots.tables == ["alone.t0", "alone.t1"]
        assert snapshots.ttl == 120
        for table in tables:
            table.upsert([{"k": 99, "n": 99}])
            snapshot = client.adopt_snapshot(snapshots.table(table.name).id)
            assert (snapshot.table, snapshot.rows, snapshot.ttl) == (table.name, KEYS, 120)
            assert table.count(as_of=snapshot) == KEYS
        snapshots.table("alone.t1").release()
        with pytest.raises(SnapshotLost):
            snapshots.renew()
        with pytest.raises(UsageError, match=r"no snapshot of 'alone.t2'"):
            snapshots.table("alone.t2")
    assert not client.snapshots("alone.t0")


def test_snapshots_are_refused_together(client: sync.Client) -> None:
    (table,) = _create(client, "refused", (2,))
    with pytest.raises(TableNotFound, match=r"refused\.none"):
        client.snapshot([table.name, "refused.none"])
    for name in ("none", f"{table.name}#0"):
        with pytest.raises(InvalidRequest, match="is not a table name"):
            client.snapshot([table.name, name])
    with pytest.raises(UsageError, match="each once"):
        client.snapshot([table.name, table.name])
    with pytest.raises(UsageError, match="one or more tables"):
        client.snapshot([])
    with pytest.raises(InvalidRequest, match="1 to 100 tables"):
        client.snapshot([f"refused.t{number}" for number in range(101)])
    assert not client.snapshots(table.name)


def test_a_snapshot_of_a_table_that_the_token_does_not_grant_is_refused(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    reader = issuer.create("read:game.scores")
    with ServerProcess(tmp_path / "data", "--tokens", str(issuer.path)) as server:
        with sync.connect(server.url, token=issuer.root) as client:
            for name in ("game.scores", "game.hidden"):
                client.create_table(name, SCORES, primary_key=["player"])
        with sync.connect(server.url, token=reader) as client:
            with pytest.raises(PermissionDenied, match=r"game\.hidden"):
                client.snapshot(["game.scores", "game.hidden"])
            assert not client.snapshots()
            with client.snapshot(["game.scores"]) as snapshots:
                assert snapshots.table("game.scores").rows == 0
