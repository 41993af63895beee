"""A worker that ends takes nothing of a transaction on tables with tablets with it, and leaves nothing half applied."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from aio_client import sync
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


@pytest.mark.parametrize("worker", [0, 1])
def test_a_transaction_survives_the_end_of_a_worker(tmp_path_factory: pytest.TempPathFactory, worker: int) -> None:
    with ServerProcess(tmp_path_factory.mktemp("killed") / "data", "--workers", "2") as server:
        with sync.connect(server.url, operation_timeout=60) as client:
            table = create(client, "killed.t", 4)
            tx = client.transaction(conflict="abort")
            for round_ in range(3):
                tx.upsert(table, [row(k, round_) for k in KEYS])
                if round_ == 1:
                    kill_worker(server, worker)
                    wait_for_worker(server, worker)
            assert tx.get(table, 7) == row(7, 2)
            kill_worker(server, worker)
            tx.commit()
            assert rows_in(table) == dict.fromkeys(KEYS, 2)
            assert set(processes_of(server)) == {0, 1}
