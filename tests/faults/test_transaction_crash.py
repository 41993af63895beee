"""After a kill at any step of a transaction, all of it is applied exactly once, or nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import TransactionCommitted
from aio_client.sync import connect
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]

every_fifth_step = pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
"""Has `make test` kill at every fifth step, and `make soak` at every step."""


def deaths_of(module: str, directory: Path, *arguments: str) -> int:
    """Runs a module of the tests that is killed at every step. Returns the number of kills."""
    command = [sys.executable, "-m", f"tests.support.{module}", str(directory), *arguments]
    done = subprocess.run(command, check=False, timeout=900, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.breadth
@pytest.mark.timeout(300)  # up to 60 kills, each with a recovery
@every_fifth_step
def test_a_transaction_is_applied_completely_or_not_at_all_wherever_the_server_dies(
    tmp_path: Path, stride: int
) -> None:
    # The transaction has seven requests, one of several parts, and a dozen batches in three buckets of two tables.
    assert deaths_of("dying_transaction", tmp_path, str(stride)) > 40 // stride


@pytest.mark.timeout(300)  # up to 40 kills, each with a recovery
@every_fifth_step
@pytest.mark.soak
def test_key_ranges_are_deleted_completely_or_not_at_all_wherever_the_server_dies(tmp_path: Path, stride: int) -> None:
    assert deaths_of("dying_deletion", tmp_path, str(stride)) > 15 // stride


def test_a_committed_transaction_whose_staged_rows_survive_a_crash_is_not_open_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    staged = server.data_dir / "transactions"
    with connect(server.url) as client:
        table = client.create_table("crash.left", pa.schema([("k", pa.int64())]), primary_key=["k"], buckets=1)
        tx = client.transaction()
        tx.upsert(table, [{"k": 1}])
        shutil.copytree(staged / tx.token, tmp_path / tx.token)
        result = tx.commit()
        wait_until(lambda: not (staged / tx.token).exists(), "removed")
        server.kill()
        shutil.copytree(tmp_path / tx.token, staged / tx.token)
        server.restart()
        assert client.transactions() == []
        assert not (staged / tx.token).exists()
        with pytest.raises(TransactionCommitted):
            client.transaction_part(tx.token, "late").upsert(table, [{"k": 2}])
        assert result.rows == 1
        assert table.scan().to_pylist() == [{"k": 1}]
