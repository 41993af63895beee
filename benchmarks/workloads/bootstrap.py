"""Measures bootstraps of a table from a Parquet file against upserts of the same rows from the same file."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.proc import tree_cpu_seconds
from benchmarks.server import BenchmarkServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aio_client.sync import Client
    from benchmarks.bench import Bench

_BUCKETS: Final = 4
_NAME: Final = "bench.bootstrap"
_ORDERS: Final = {"shuffled": 3.0, "ascending": 1.0}
"""The orders of the rows, and by how much a bootstrap should be faster."""


def run(bench: Bench) -> Result:
    """Loads the same files in turn by bootstraps and by upserts."""
    with BenchmarkServer(bench.directory / "bootstrap") as server, connect(server.url) as client:
        all_costs: dict[str, list[float]] = defaultdict(list)

        def measured(name: str, load: Callable[[Path], None], file: Path) -> Callable[[], Timing]:
            def run_once() -> Timing:
                began, cpu = time.perf_counter(), tree_cpu_seconds(server.pid)
                load(file)
                seconds = time.perf_counter() - began
                all_costs[name].append(tree_cpu_seconds(server.pid) - cpu)
                timing = Timing(client.table(_NAME).count(), seconds).check_rows(bench.rows)
                client.drop_table(_NAME)
                return timing

            return run_once

        rates: dict[str, list[float]] = {}
        for order in _ORDERS:
            file = _write(bench.directory / f"{order}.parquet", bench.rows, shuffled=order == "shuffled")
            contenders = {
                f"bootstrap, {order}": measured(f"bootstrap, {order}", lambda path: _bootstrap(client, path), file),
                f"upserts, {order}": measured(f"upserts, {order}", lambda path: _upsert(client, path), file),
            }
            rates |= run_interleaved(bench.runs, contenders)
            file.unlink()
    costs = {name: values[-bench.runs :] for name, values in all_costs.items()}  # without the warm-up
    return Result(
        figures=[
            *_figures("rows/s", "rate", rates, lambda fast, slow: paired_ratios(fast, slow)),
            *_figures(
                "processor time of the server and its merge process",
                "cpu",
                costs,
                lambda fast, slow: paired_ratios(slow, fast),
            ),
        ],
        tables=[rates_table("Bootstraps", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[f"Bootstraps: one Parquet file with T4, {_BUCKETS} buckets. Upserts read the same file in batches."],
    )


def _figures(
    what: str, kind: str, values: dict[str, list[float]], ratio: Callable[[list[float], list[float]], Spread]
) -> Iterable[Figure]:
    for order, at_least in _ORDERS.items():
        yield Figure(
            name=f"bootstrap_{kind}_{order}",
            work=f"bootstrap of T4, rows in {order} key order, {what}",
            against="upserts of the same file",
            unit="ratio",
            spread=ratio(values[f"bootstrap, {order}"], values[f"upserts, {order}"]),
            at_least=at_least,
        )


def _write(path: Path, rows: int, *, shuffled: bool) -> Path:
    table = pa.Table.from_batches([t4.rows(0, rows)])
    if shuffled:
        table = table.take(pa.array(np.random.default_rng(1).permutation(rows)))
    parquet.write_table(table, path, row_group_size=200_000)
    return path


def _bootstrap(client: Client, path: Path) -> None:
    client.bootstrap(_NAME, path, schema=t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=_BUCKETS)


def _upsert(client: Client, path: Path) -> None:
    table = client.create_table(_NAME, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=_BUCKETS)
    with parquet.ParquetFile(path) as file:
        table.upsert(pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches()))
