"""Spark as it is deployed: executors in their own processes, which may die, and a session of Spark Connect."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.spark import java, program
from tests.spark.large_table import LARGE_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import sync
    from tests.support.server_process import ServerProcess


def said(how: str, url: str, table: str, *paths: str, **variables: str) -> list[str]:
    """Runs a program that can also import packages in `paths`, and returns its output."""
    java.check()
    importable = os.pathsep.join([java.environment()["PYTHONPATH"], *paths])
    done = java.run(program.__name__, how, url, table, PYTHONPATH=importable, **variables)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


WHOLE = f"({LARGE_ROWS}, {LARGE_ROWS}, {LARGE_ROWS * (LARGE_ROWS - 1) // 2})"


@pytest.mark.soak
def test_every_row_is_read_once_by_a_client_of_spark_connect(
    shared_server: ServerProcess, large: sync.Table, spark_remote: str
) -> None:
    assert said("connect", shared_server.url, large.name, SPARK_REMOTE=spark_remote) == [
        WHOLE,
        WHOLE,
        WHOLE,
        "True",
        "[20, 24]",
        "1000",
    ]


@pytest.mark.soak
@pytest.mark.parametrize(("how", "expected"), [("cluster", [WHOLE, "True", "3"]), ("connect_writing", ["True"])])
def test_every_row_is_read_and_written_once(
    shared_server: ServerProcess, client: sync.Client, large: sync.Table, how: str, expected: list[str]
) -> None:
    assert said(how, shared_server.url, large.name) == expected
    for name in (f"{large.name}_{how}_job", f"{large.name}_{how}_query"):
        assert client.table(name).scan(["n"]).to_arrow()["n"].to_pylist() == [1] * LARGE_ROWS
    assert client.transactions() == []


@pytest.mark.soak
def test_the_source_can_be_registered_where_another_package_breaks_discovery(
    shared_server: ServerProcess, large: sync.Table, tmp_path: Path
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('not today')")
    assert said("discovery", shared_server.url, large.name, str(tmp_path)) == ["True", WHOLE]
