"""A transaction that was committed before a crash is not open after it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import TransactionCommitted
from aio_client.sync import connect
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess


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
