"""Measures deletes by predicate, tracked and of a key range at once, against upserts of the same rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import create_filled_table, updates, wait_for_base

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client.sync import Client
    from benchmarks.bench import Bench

_REQUEST_ROWS: Final = 100_000
_SHARE: Final = 10
"""One row in so many is deleted."""
_UPSERT = "upsert"
_BY_KEY, _BY_TIME, _AT_ONCE = "delete by key", "delete by another column", "delete a key range, untracked"
_FROM_BASE = "delete by another column, from a columnar base"
_SCAN, _SCAN_AFTER = "scan", "scan right after a delete by key"


def run(bench: Bench) -> Result:
    """Upserts and deletes a tenth of the rows of a table in turn."""
    # Deleting a tenth of the rows leaves enough of them for a base.
    base_rows = bench.rows // 2
    with (
        BenchmarkServer(bench.directory / "deletes", base_min_rows=base_rows) as server,
        connect(server.url) as client,
    ):
        contenders = {
            _UPSERT: _upserts(client, bench.rows),
            _BY_KEY: _deletes(client, bench.rows, _BY_KEY),
            _BY_TIME: _deletes(client, bench.rows, _BY_TIME),
            _FROM_BASE: _deletes(client, bench.rows, _FROM_BASE),
            _AT_ONCE: _deletes(client, bench.rows, _AT_ONCE),
            _SCAN: _scans(client, bench.rows, _SCAN),
            _SCAN_AFTER: _scans(client, bench.rows, _SCAN_AFTER),
        }
        rates = run_interleaved(bench.runs, contenders)
    return Result(
        figures=[
            Figure(
                name=name,
                work=f"{what}, a tenth of the rows, rows/s",
                against="upserts of as many rows",
                unit="ratio",
                spread=paired_ratios(rates[what], rates[_UPSERT]),
                at_least=at_least,
            )
            for name, what, at_least in (
                ("delete_where_key", _BY_KEY, 1.0),
                ("delete_where_column", _BY_TIME, 1.0),
                ("delete_where_column_base", _FROM_BASE, 1.0),
                ("delete_range", _AT_ONCE, 4.0),
            )
        ]
        + [
            Figure(
                name="scan_after_delete",
                work="scan right after a tracked delete of a tenth of the rows, which lie side by side, rows/s",
                against="the same scan of all rows",
                unit="ratio",
                spread=paired_ratios(rates[_SCAN_AFTER], rates[_SCAN]),
                at_least=0.9,
            )
        ],
        tables=[rates_table("Deletes", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Deletes: T4 in one bucket. The other column is `ts`. All rows are read for it, unless a base has its zone "
            "maps.",
        ],
    )


def _upserts(client: Client, rows: int) -> Callable[[], Timing]:
    """Returns a function that updates a tenth of the rows of a table."""
    table, seed = create_filled_table(client, rows, "bench.upserted", "off"), 0

    def update() -> Timing:
        nonlocal seed
        seed += 1
        batches = list(updates(rows, rows // _SHARE, seed, _REQUEST_ROWS))
        started = time.perf_counter()
        for batch in batches:
            table.upsert(batch)
        return Timing(sum(batch.num_rows for batch in batches), time.perf_counter() - started)

    return update


def _deletes(client: Client, rows: int, what: str) -> Callable[[], Timing]:
    """Returns a function that deletes a tenth of the rows of a table. It puts them back outside of its time."""
    name = f"bench.{what.replace(' ', '_').replace(',', '')}"
    table = create_filled_table(client, rows, name, "auto" if what == _FROM_BASE else "off")
    first, end = rows // 2, rows // 2 + rows // _SHARE
    kept = t4.rows(first, end - first)
    where = f"id >= {first} AND id < {end}"
    if what in (_BY_TIME, _FROM_BASE):
        where = f"ts >= {t4.ts_literal(first)} AND ts < {t4.ts_literal(end)}"

    def delete() -> Timing:
        if what == _FROM_BASE:
            wait_for_base(table)
        started = time.perf_counter()
        deleted = table.delete(where=where, track_changes=what != _AT_ONCE).rows
        timing = Timing(deleted, time.perf_counter() - started).check_rows(end - first)
        table.upsert(kept)
        return timing

    return delete


def _scans(client: Client, rows: int, what: str) -> Callable[[], Timing]:
    """Returns a function that scans a table for rows that it does not have, with or without a delete before."""
    table, seed = create_filled_table(client, rows, f"bench.{what.replace(' ', '_')}", "off"), 0
    first, end = rows // 2, rows // 2 + rows // _SHARE
    kept = t4.rows(first, end - first)

    def scan() -> Timing:
        nonlocal seed
        seed += 1
        if what == _SCAN_AFTER:
            table.delete(where=f"id >= {first} AND id < {end}")
        left = table.count()
        started = time.perf_counter()
        # Another number each time, because the server keeps the results of queries.
        table.count(f"amount < {-seed}")
        timing = Timing(left, time.perf_counter() - started)
        table.upsert(kept)
        return timing

    return scan
