"""`scankv load` of the flights, as a user types it."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from io import TextIOWrapper
from itertools import islice
from typing import TYPE_CHECKING

from aio_client.sync import connect
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, Timing, interleaved
from benchmarks.server import BenchmarkServer
from scankv.demo.flights import KEY, find_flights

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

_FLIGHTS = 336_776


def run(bench: Bench) -> Result:
    """Loads the flights into a new table each time."""
    rows = min(bench.rows, _FLIGHTS)
    file = find_flights() if rows == _FLIGHTS else _first_flights(bench.directory / "flights.csv", rows)
    with BenchmarkServer(bench.directory / "load") as server:
        rates = interleaved(bench.runs, {"scankv load": lambda: _load(server.url, file, rows)}, warm_up=False)
    return Result(
        figures=[
            Figure(
                name="load_flights",
                work=f"`scankv load --create` of {rows:,} flights, 19 columns",
                against="wall clock of the command",
                unit="rows/s",
                spread=Spread.of(rates["scankv load"]),
                at_least=100_000,
            )
        ],
        notes=[
            "Load: the whole command counts, from the start of its interpreter: unpacking, inferring the schema over "
            "the whole file, creating the table, reading the file again, and the sync before the last acknowledgement.",
        ],
    )


def _load(url: str, file: Path, rows: int) -> Timing:
    command = [sys.executable, "-m", "scankv", "load", "bench.flights", str(file), "--url", url]
    started = time.perf_counter()
    subprocess.run([*command, "--create", "--key", ",".join(KEY)], check=True, capture_output=True)
    seconds = time.perf_counter() - started
    with connect(url) as client:
        timing = Timing(client.table("bench.flights").count(), seconds).checked(rows)
        client.drop_table("bench.flights")
    return timing


def _first_flights(path: Path, rows: int) -> Path:
    with zipfile.ZipFile(find_flights()) as archive, archive.open("flights.csv") as source, path.open("w") as target:
        target.writelines(islice(TextIOWrapper(source), rows + 1))
    return path
