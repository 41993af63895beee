"""Measures writes without tracking of changes against the same writes with it, on new keys and on existing rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import create_filled_table, updates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aio_client.sync import Client
    from benchmarks.bench import Bench

_REQUEST_ROWS: Final = 100_000
_WRITTEN: Final = 0.2
_ASCENDING, _SHUFFLED, _OLD = "ascending new keys", "shuffled new keys", "existing rows"


def run(bench: Bench) -> Result:
    """Writes the same rows in turn with and without tracking of changes."""
    with BenchmarkServer(bench.directory / "untracked") as server, connect(server.url) as client:
        rates: dict[str, list[float]] = {}
        for what, make in ((_ASCENDING, _load), (_SHUFFLED, _load_shuffled), (_OLD, _update)):
            contenders = {_name(what, tracked): make(client, bench.rows, tracked) for tracked in (True, False)}
            rates |= run_interleaved(bench.runs, contenders)
    return Result(
        figures=[
            Figure(
                name=f"untracked_{what.partition(' ')[0]}",
                work=f"upserts with track_changes=False, {what}, rows/s",
                against="the same upserts with tracked changes",
                unit="ratio",
                spread=paired_ratios(rates[_name(what, False)], rates[_name(what, True)]),
                at_least=at_least,
            )
            for what, at_least in ((_ASCENDING, 1.1), (_SHUFFLED, 1.4), (_OLD, 1.8))
        ],
        tables=[rates_table("Untracked writes", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[f"Untracked writes: one client sends requests of {_REQUEST_ROWS:,} rows of T4 into one bucket."],
    )


def _name(what: str, tracked: bool) -> str:
    return f"{what}, {'tracked' if tracked else 'untracked'}"


def _load(client: Client, rows: int, tracked: bool) -> Callable[[], Timing]:
    """Returns a function that loads T4 in key order into a new table."""
    return lambda: _load_batches(client, list(t4.batches(rows, _REQUEST_ROWS)), tracked)


def _load_shuffled(client: Client, rows: int, tracked: bool) -> Callable[[], Timing]:
    """Returns a function that loads T4 in random order into a new table."""
    order = np.random.default_rng(1).permutation(rows)
    all_rows = t4.rows(0, rows)
    parts = [pa.array(order[start : start + _REQUEST_ROWS]) for start in range(0, rows, _REQUEST_ROWS)]
    return lambda: _load_batches(client, [all_rows.take(part) for part in parts], tracked)


def _load_batches(client: Client, batches: Sequence[pa.RecordBatch], tracked: bool) -> Timing:
    name = f"bench.{'tracked' if tracked else 'untracked'}"
    table = client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)
    started = time.perf_counter()
    for batch in batches:
        table.upsert(batch, track_changes=tracked)
    seconds = time.perf_counter() - started
    timing = Timing(table.count(), seconds).check_rows(sum(batch.num_rows for batch in batches))
    client.drop_table(name)
    return timing


def _update(client: Client, rows: int, tracked: bool) -> Callable[[], Timing]:
    """Returns a function that updates a part of the rows of a table."""
    table = create_filled_table(client, rows, f"bench.old_{'tracked' if tracked else 'untracked'}", "off")
    seed = 0

    def update() -> Timing:
        nonlocal seed
        seed += 1
        batches = list(updates(rows, int(rows * _WRITTEN), seed, _REQUEST_ROWS))
        started = time.perf_counter()
        for batch in batches:
            table.upsert(batch, track_changes=tracked)
        return Timing(sum(batch.num_rows for batch in batches), time.perf_counter() - started)

    return update
