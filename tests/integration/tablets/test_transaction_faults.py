"""When workers end, transactions on tables with tablets lose nothing, and are never applied in part."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, TransactionLost, sync
from tests.support.server_process import ServerProcess
from tests.support.workers import kill_worker, processes_of, wait_for_worker

pytestmark = pytest.mark.timeout(240)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
KEYS = range(40)


def create(client: sync.Client, name: str, tablets: int) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=6, tablets=tablets)


def rows_in(table: sync.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.scan().to_pylist()}


def row(k: int, v: int) -> dict[str, Any]:
    return {"k": k, "v": v, "w": f"w{k}"}


@pytest.mark.breadth
def test_a_transaction_survives_the_ends_of_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerProcess(tmp_path_factory.mktemp("killed") / "data", "--workers", "2") as server:
        with sync.connect(server.url, operation_timeout=60) as client:
            table = create(client, "killed.t", 4)
            tx = client.transaction(conflict="abort")
            for round_ in range(3):
                tx.upsert(table, [row(k, round_) for k in KEYS])
                if round_ == 1:
                    kill_worker(server, 0)
                    wait_for_worker(server, 0)
            assert tx.get(table, 7) == row(7, 2)
            kill_worker(server, 1)
            tx.commit()
            assert rows_in(table) == dict.fromkeys(KEYS, 2)
            assert set(processes_of(server)) == {0, 1}


@pytest.mark.breadth
def test_kills_at_any_moment_leave_all_of_a_transaction_or_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    random = Random(7)
    with (
        ServerProcess(tmp_path_factory.mktemp("killed") / "data", "--workers", "2") as server,
        sync.connect(server.url, operation_timeout=60) as client,
    ):
        table, over = create(client, "kills.t", 4), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(commit_until, over, client, table)
            for worker in (0, 1):
                for _ in range(random.randrange(1, 6)):
                    assert len(set(rows_in(table).values())) <= 1
                kill_worker(server, worker)
                wait_for_worker(server, worker)
                assert len(set(rows_in(table).values())) <= 1
            over.set()
            last = committing.result()
        assert rows_in(table) == dict.fromkeys(KEYS, last)
        assert client.transactions() == []


def commit_until(over: threading.Event, client: sync.Client, table: sync.Table) -> int:
    """Commits transactions that give all rows a new value. Returns the last one that is committed."""
    number = value = 0
    while not over.is_set() or not value:
        number += 1
        try:
            with client.transaction(id=f"number {number}") as tx:
                tx.upsert(table, [row(k, number) for k in KEYS if k % 2])
                tx.upsert(table, [row(k, number) for k in KEYS if not k % 2])
        except (TransactionLost, InvalidRequest):
            # A worker that was killed before it had the metadata of the transaction has lost it.
            continue
        value = number
    return value
