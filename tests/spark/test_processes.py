"""Spark as it is deployed: executors that die in processes of their own, and a session that is a client of a server."""

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
    """Runs a program, for which packages in `paths` can be imported, too; what it prints."""
    java.check()
    importable = os.pathsep.join([java.environment()["PYTHONPATH"], *paths])
    done = java.run(program.__name__, how, url, table, PYTHONPATH=importable, **variables)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


WHOLE = f"({LARGE_ROWS}, {LARGE_ROWS}, {LARGE_ROWS * (LARGE_ROWS - 1) // 2})"


def test_every_row_is_read_once_by_a_client_of_spark_connect(
    shared_server: ServerProcess, large: sync.Table, spark_remote: str
) -> None:
    assert said("connect", shared_server.url, large.name, SPARK_REMOTE=spark_remote) == [
        WHOLE,
        WHOLE,
        WHOLE,
        "True",
        "[20, 24]",
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
def test_where_another_package_ends_the_search_for_data_sources_this_one_can_be_registered(
    shared_server: ServerProcess, large: sync.Table, tmp_path: Path
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('not today')")
    assert said("discovery", shared_server.url, large.name, str(tmp_path)) == ["True", WHOLE]
