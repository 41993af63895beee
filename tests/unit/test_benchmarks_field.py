"""The comparison with other systems runs with those that need nothing but the tests' packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.field.competitors import COMPETITORS
from benchmarks.field.operations import OPERATIONS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(300)  # starts servers
@pytest.mark.soak
def test_systems_are_compared_on_the_same_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.field", "--rows=2000", "--calls=8", "--callers=4,2", "--runs=1"]
    command += ["--only=scankv", "--only=redis", "--only=duckdb", "--only=flight"]
    command += [f"--json={tmp_path / 'report.json'}", f"--plots={tmp_path / 'plots'}"]
    # Without programs, Redis counts as not installed on every machine.
    environment = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    tables = json.loads((tmp_path / "report.json").read_text())["results"]["field"]["tables"]
    by_title = {table["title"]: {row[0]: row[1:] for row in table["rows"]} for table in tables}
    for operation in OPERATIONS:
        rows = by_title[operation.title]
        assert rows.keys() == {"ScanKV", "Redis", "DuckDB over Parquet", "Arrow Flight"}
        assert rows["Redis"][0] == "not installed"
        assert rows["ScanKV"][0] > 0
    assert by_title["Full scan"]["Arrow Flight"][0] > 0
    assert by_title["Point read, sequential"]["Arrow Flight"][0] == "none: serves a file, not a table"
    assert by_title["Memory and disk"]["ScanKV"][1] > 0
    assert by_title["Systems"]["Redis"][0].startswith("not installed: redis-server is not in $PATH")
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {"bulk.svg", "points.svg", "callers.svg"}
    assert "## Full scan" in done.stdout


def test_a_system_has_a_reason_for_every_operation_that_it_lacks() -> None:
    methods = {operation.method for operation in OPERATIONS}
    for system in COMPETITORS.values():
        assert system.CLIENT.CANNOT.keys() <= methods
