"""Scans out of a columnar base with more and more of the rows written since, against the same scans of RocksDB."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios, progress
from benchmarks.readers.scankv import ScanKvReader
from benchmarks.server import ServerProcess
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from aio_client.sync import Table
    from benchmarks.bench import Bench

_LOAD_ROWS: Final = 100_000
_BUILT_WITHIN: Final = 300.0
_POLL_SECONDS: Final = 0.1
_WRITTEN_ROWS: Final = 10_000
_CHANGED: Final = {0.0: 8, 0.01: 5, 0.1: 3}
"""Shares of the rows written since the base, and how many times as fast as the iterator a scan must be."""

_FULL, _BASE = "all columns, RocksDB", "all columns, base"
_ONE, _CLUSTERED, _CLUSTERED_BASE = "one of four columns, base", "1 % by ts, RocksDB", "1 % by ts, base"


class BaseReader(ScanKvReader):
    """Reads the table in both ways."""

    def __enter__(self) -> Self:
        return self

    def open(self) -> None:
        """Connects, once there is a table."""
        self._runner.run(self._connect())

    def read_via(self, via: str, columns: tuple[str, ...] | None = None, where: str | None = None) -> Timing:
        """Reads some columns of the rows for which something is true, out of bases or not."""
        scan = self._table.scan(columns, where=where).via(via)  # type: ignore[arg-type]  # one of the two
        return self._runner.run(self._timed(scan))


def run(bench: Bench) -> Result:
    """Loads the table, and reads it in both ways, with none of its rows written since the base, then more of them."""
    rows, data = bench.rows, bench.directory / "bases"
    found: dict[str, list[float]] = {}
    figures = []
    # The base is built when all rows are there, and stays as it is, whatever is written.
    with ServerProcess(data, base_min_rows=rows, base_changed_share=10, base_cpu_share=1) as server:
        with connect(server.url) as client, Worker(BaseReader, server.url) as reader:
            table = client.create_table(
                t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS, columnar_base="auto"
            )
            progress(f"loading {rows:,} rows of T4 through the client")
            for batch in t4.batches(rows, _LOAD_ROWS):
                table.upsert(batch)
            reader.call(BaseReader.open)
            _wait_for_base(table)
            for share, at_least in _CHANGED.items():
                _write(table, int(rows * share), rows)
                rates = interleaved(
                    bench.runs,
                    {
                        _FULL: lambda: reader.call(BaseReader.read_via, "iterator").checked(rows),
                        _BASE: lambda: reader.call(BaseReader.read_via, "base").checked(rows),
                    },
                )
                found |= {f"{name}, {share:.0%} written since": values for name, values in rates.items()}
                figures.append(
                    Figure(
                        name=f"base_vs_scan_{100 * share:.0f}",
                        work=f"scan of {rows:,} rows out of a base, {share:.0%} of them written since, rows/s",
                        against="the same scan of RocksDB",
                        unit="ratio",
                        spread=paired_ratios(rates[_BASE], rates[_FULL]),
                        at_least=at_least,
                    )
                )
                if not share:
                    figures += _parts(bench, reader, found)
    return Result(
        figures=figures,
        tables=[rates_table("Out of a base", {name: Spread.of(values) for name, values in found.items()})],
        notes=["Bases: rows written since are updates of rows chosen at random, in requests of 10,000 rows."],
    )


def _parts(bench: Bench, reader: Worker[BaseReader], found: dict[str, list[float]]) -> list[Figure]:
    """One column, and a predicate that a zone map answers, with nothing written since the base."""
    rows = bench.rows
    kept = rows // 100
    where = f"ts < {t4.ts_of(kept)}"

    def some(via: str) -> Timing:
        return Timing(rows, reader.call(BaseReader.read_via, via, None, where).checked(kept).seconds)

    rates = interleaved(
        bench.runs,
        {
            _BASE: lambda: reader.call(BaseReader.read_via, "base").checked(rows),
            _ONE: lambda: reader.call(BaseReader.read_via, "base", ("amount",)).checked(rows),
            _CLUSTERED: lambda: some("iterator"),
            _CLUSTERED_BASE: lambda: some("base"),
        },
    )
    found |= rates
    return [
        Figure(
            name="base_projection",
            work="scan of one of four columns out of a base, rows/s",
            against="all columns out of the base",
            unit="ratio",
            spread=paired_ratios(rates[_ONE], rates[_BASE]),
            at_least=2,
        ),
        Figure(
            name="base_clustered",
            work=f"predicate that keeps {kept:,} of {rows:,} rows by a zone map, rows/s",
            against="the same of RocksDB",
            unit="ratio",
            spread=paired_ratios(rates[_CLUSTERED_BASE], rates[_CLUSTERED]),
            at_least=20,
        ),
    ]


def _write(table: Table, count: int, rows: int) -> None:
    """Updates so many rows, chosen at random."""
    all_rows = t4.rows(0, rows)
    chosen = np.sort(np.random.default_rng(count).choice(rows, count, replace=False))
    for start in range(0, count, _WRITTEN_ROWS):
        part = pa.array(chosen[start : start + _WRITTEN_ROWS])
        updated = all_rows.take(part)
        amounts = pa.array(-np.arange(len(part), dtype=np.float64))
        table.upsert(updated.set_column(2, t4.SCHEMA.field(2), amounts))


def _wait_for_base(table: Table) -> None:
    progress("waiting for the base")
    deadline = time.monotonic() + _BUILT_WITHIN
    while table.scan().explain().via != "base":
        if time.monotonic() > deadline:
            raise RuntimeError("the server does not build a base")
        time.sleep(_POLL_SECONDS)
