"""Spark as it is deployed: executors that die in processes of their own, and a session that is a client of a server."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.spark import java, program
from tests.spark.large_table import LARGE_ROWS

if TYPE_CHECKING:
    from aio_client import sync
    from tests.support.server_process import ServerProcess

WHOLE = f"({LARGE_ROWS}, {LARGE_ROWS}, {LARGE_ROWS * (LARGE_ROWS - 1) // 2})"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        pytest.param("cluster", [WHOLE, "True"], marks=pytest.mark.soak),
        ("connect", [WHOLE, WHOLE, WHOLE, "True", "True"]),
    ],
)
def test_every_row_is_read_and_written_once(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table, how: str, expected: list[str]
) -> None:
    java.check()
    done = subprocess.run(
        [sys.executable, "-m", program.__name__, how, shared_server.url, large.name],
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
        cwd=java.ROOT,
        env={**os.environ, **java.environment()},
    )
    assert done.stdout.splitlines() == expected, done.stderr[-5000:]
    for name in (f"{large.name}_{how}_job", f"{large.name}_{how}_query"):
        assert client.table(name).scan(["n"]).to_arrow()["n"].to_pylist() == [1] * LARGE_ROWS
    assert client.transactions() == []
