"""A scan out of a columnar base against pypaimon, which reads local files in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, interleaved, progress
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from benchmarks.workloads.base_tables import filled_table, updates, wait_for_base

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.bench import Bench

PYTHON: Final = "SCANKV_BENCH_PAIMON_PYTHON"
"""The environment variable that names an interpreter with pypaimon, which wants an older pyarrow than this project."""

_MOST_ROWS: Final = 1_000_000
_CHANGED: Final = 0.1
_LOAD_ROWS: Final = 100_000
_SCRIPT: Final = Path(__file__).parents[1] / "readers" / "paimon.py"


def run(bench: Bench) -> Result:
    """Reads the same rows with both, as they were loaded and with 10 % written since; skipped without pypaimon."""
    python = os.environ.get(PYTHON, sys.executable)
    missing = subprocess.run([python, "-c", "import pypaimon"], capture_output=True, check=False).returncode
    if missing:
        return Result(
            notes=[f"pypaimon: skipped, because {python} does not have it; ${PYTHON} names an interpreter that has."]
        )
    rows = min(bench.rows, _MOST_ROWS)
    theirs = _paimon(bench, python, rows)
    ours = _ours(bench, rows)
    figures = []
    for (name, measured), (their_name, rates) in zip(ours.items(), theirs.items(), strict=True):
        figures.append(
            Figure(
                name=f"base_vs_paimon_{name}",
                work=f"scan of {rows:,} rows out of a base over TCP, {name}, rows/s",
                against=f"pypaimon over local files, {their_name}, median",
                unit="ratio",
                spread=Spread.of(rate / Spread.of(rates).median for rate in measured),
                at_least=1,
            )
        )
    found = {f"base, {name}": values for name, values in ours.items()}
    found |= {f"pypaimon, {name}": values for name, values in theirs.items()}
    return Result(
        figures=figures,
        tables=[
            rates_table("Out of a base, and pypaimon", {name: Spread.of(values) for name, values in found.items()})
        ],
        notes=[
            f"pypaimon: {rows:,} rows in one bucket, Parquet as it is by default; merged: {_CHANGED:.0%} written again."
        ],
    )


def _ours(bench: Bench, rows: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    data = bench.directory / "base-rivals"
    with (
        BenchmarkServer(data, base_min_rows=rows, base_changed_share=10, base_cpu_share=1) as server,
        connect(server.url) as client,
    ):
        table = filled_table(client, rows)
        wait_for_base(table)
        with Worker(ClientReader, server.url) as reader:
            for name in ("unmerged", "merged"):
                found |= interleaved(bench.runs, {name: lambda: reader.call(ClientReader.read).checked(rows)})
                for batch in updates(rows, int(rows * _CHANGED), seed=1):
                    table.upsert(batch)
    return found


def _paimon(bench: Bench, python: str, rows: int) -> dict[str, list[float]]:
    """The rows per second of each run by what was read."""
    directory = bench.directory / "paimon"
    directory.mkdir()
    _write(directory / "rows.arrow", t4.batches(rows, _LOAD_ROWS))
    _write(directory / "changed.arrow", updates(rows, int(rows * _CHANGED), seed=1))
    progress("measuring pypaimon")
    files = [str(directory / name) for name in ("warehouse", "rows.arrow", "changed.arrow")]
    done = subprocess.run([python, str(_SCRIPT), *files, str(bench.runs)], check=True, stdout=subprocess.PIPE)
    measured = json.loads(done.stdout)
    if any(found != rows for runs in measured.values() for found, _ in runs):
        raise RuntimeError("pypaimon gave another number of rows")
    return {name: [found / seconds for found, seconds in runs] for name, runs in measured.items()}


def _write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, t4.SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
