"""Compares scans of a columnar base with scans of RocksDB, for growing shares of rows updated since the build."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, paired_ratios, progress, run_interleaved
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from benchmarks.workloads import base_costs, base_restarts, base_rivals
from benchmarks.workloads.base_tables import TEXT_TABLE, create_filled_table, updates, wait_for_base

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_N: Final = 10
_WRITERS: Final = 64
_CHANGED: Final = {0.0: 8, 0.01: 5, 0.1: 3}
"""By share of rows updated since the base was built: how many times as fast as RocksDB a scan must be."""

_FULL, _BASE = "all columns, RocksDB", "all columns, base"
_TEXT, _TEXT_BASE = "key (string, int64), RocksDB", "key (string, int64), base"
_ONE, _CLUSTERED, _CLUSTERED_BASE = "one of four columns, base", "1 % by ts, RocksDB", "1 % by ts, base"


class BaseReader(ClientReader):
    """Reads the table by a given read path."""

    def __enter__(self) -> Self:
        return self

    def open(self) -> None:
        """Connects. Call it after the table was created."""
        self._runner.run(self._connect())

    def read_by(self, read_path: str, columns: tuple[str, ...] | None = None, where: str | None = None) -> Timing:
        """Reads some columns of the rows that match a predicate, by a read path."""
        scan = self._table.scan(columns, where=where).read_path(read_path)  # type: ignore[arg-type]  # one of the two
        return self._runner.run(self._time_scan(scan))

    def top_n(self, n: int) -> float:
        """Returns the seconds that a top-N by a column without an index takes."""
        started = time.perf_counter()
        self._runner.run(self._table.top_n(n, order_by="amount"))
        return time.perf_counter() - started

    def count(self, where: str) -> Timing:
        """Counts the rows that match a predicate. The timing has the number of matching rows."""
        started = time.perf_counter()
        found = self._runner.run(self._table.count(where))
        return Timing(found, time.perf_counter() - started)

    def commit_one_by_one(self, rows: int, count: int) -> None:
        """Updates `count` rows in as many commits."""
        self._runner.run(self._commit(rows, count))

    async def _commit(self, rows: int, count: int) -> None:
        waiting = updates(rows, count, seed=count, batch_rows=1)

        async def write() -> None:
            for row in waiting:
                await self._table.upsert(row)

        await asyncio.gather(*(write() for _ in range(_WRITERS)))


def run(bench: Bench) -> Result:
    """Loads the table, and reads it by both read paths, first unchanged and then with more and more rows updated."""
    rows, data = bench.rows, bench.directory / "bases"
    found: dict[str, list[float]] = {}
    figures = []
    # With these settings, the base is built once all rows are loaded and is never rebuilt.
    with BenchmarkServer(data, base_min_rows=rows, base_changed_share=10, base_cpu_share=1) as server:
        with connect(server.url) as client, Worker(BaseReader, server.url) as reader:
            table = create_filled_table(client, rows)
            reader.call(BaseReader.open)
            wait_for_base(table)
            for share, at_least in _CHANGED.items():
                for batch in updates(rows, int(rows * share), seed=int(rows * share)):
                    table.upsert(batch)
                rates = run_interleaved(
                    bench.runs,
                    {
                        _FULL: lambda: reader.call(BaseReader.read_by, "rocksdb").check_rows(rows),
                        _BASE: lambda: reader.call(BaseReader.read_by, "columnar").check_rows(rows),
                    },
                )
                found |= {f"{name}, {share:.0%} updated since": values for name, values in rates.items()}
                figures.append(
                    Figure(
                        name=f"base_vs_scan_{100 * share:.0f}",
                        work=f"scan of {rows:,} rows from a base, {share:.0%} of them updated since, rows/s",
                        against="the same scan of RocksDB",
                        unit="ratio",
                        spread=paired_ratios(rates[_BASE], rates[_FULL]),
                        at_least=at_least,
                    )
                )
                if not share:
                    figures += _measure_projection_and_zone_map(bench, reader, found)
    figures.append(_measure_text_keys(bench, found))
    others = [base_costs.run(bench), base_restarts.run(bench), base_rivals.run(bench)]
    return Result(
        figures=[*figures, *(figure for other in others for figure in other.figures)],
        tables=[
            rates_table("From a base", {name: Spread.of(values) for name, values in found.items()}),
            *(table for other in others for table in other.tables),
        ],
        notes=[
            "Bases: the updated rows are chosen at random and sent in requests of 10,000 rows, or of one row where the "
            "key is (string, int64).",
            *(note for other in others for note in other.notes),
        ],
    )


def _measure_projection_and_zone_map(
    bench: Bench, reader: Worker[BaseReader], found: dict[str, list[float]]
) -> list[Figure]:
    """Measures one column, and a predicate that a zone map evaluates, before any update."""
    rows = bench.rows
    kept = rows // 100
    where = f"ts < {t4.ts_literal(kept)}"

    def some(read_path: str) -> Timing:
        return Timing(rows, reader.call(BaseReader.read_by, read_path, None, where).check_rows(kept).seconds)

    rates = run_interleaved(
        bench.runs,
        {
            _BASE: lambda: reader.call(BaseReader.read_by, "columnar").check_rows(rows),
            _ONE: lambda: reader.call(BaseReader.read_by, "columnar", ("amount",)).check_rows(rows),
            _CLUSTERED: lambda: some("rocksdb"),
            _CLUSTERED_BASE: lambda: some("columnar"),
        },
    )
    found |= rates
    queries = _measure_queries(bench, reader, where, kept)
    return [
        *queries,
        Figure(
            name="base_projection",
            work="scan of one of four columns from a base, rows/s",
            against="all columns from the base",
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


def _measure_queries(bench: Bench, reader: Worker[BaseReader], where: str, kept: int) -> list[Figure]:
    """Measures queries that the server computes from a base, before any update."""
    top_n, count = [], []
    progress("measuring top-N and counts")
    for number in range(-1, bench.runs):
        # The numbers differ in each run, so that the result cache never answers.
        seconds = reader.call(BaseReader.count, f"{where} AND id > {-9 - number}").check_rows(kept).seconds
        first = reader.call(BaseReader.top_n, _N + 1 + number)
        if number >= 0:
            top_n.append(1000 * first)
            count.append(bench.rows / seconds)
    return [
        Figure(
            name="base_top_n",
            work=f"top-10 of {bench.rows:,} rows by a column without an index, from a base",
            against="wall clock of the call",
            unit="ms",
            spread=Spread.of(top_n),
            at_most=40,
        ),
        Figure(
            name="base_count",
            work=f"count of {kept:,} of {bench.rows:,} rows by a predicate, from a base",
            against="wall clock of the call",
            unit="rows/s",
            spread=Spread.of(count),
            at_least=100e6,
        ),
    ]


def _measure_text_keys(bench: Bench, found: dict[str, list[float]]) -> Figure:
    """Measures scans of a table whose key is a string and a number, with 1 % of the rows updated in single commits."""
    rows, share = bench.rows, 0.01
    data = bench.directory / "bases-text"
    with (
        BenchmarkServer(data, base_min_rows=rows, base_changed_share=10, base_cpu_share=1) as server,
        connect(server.url) as client,
        Worker(BaseReader, server.url, TEXT_TABLE) as reader,
    ):
        table = create_filled_table(client, rows, TEXT_TABLE)
        reader.call(BaseReader.open)
        wait_for_base(table)
        progress(f"updating {int(rows * share):,} rows one by one")
        reader.call(BaseReader.commit_one_by_one, rows, int(rows * share))
        rates = run_interleaved(
            bench.runs,
            {
                _TEXT: lambda: reader.call(BaseReader.read_by, "rocksdb").check_rows(rows),
                _TEXT_BASE: lambda: reader.call(BaseReader.read_by, "columnar").check_rows(rows),
            },
        )
    found |= rates
    return Figure(
        name="base_text_key",
        work=f"scan of {rows:,} rows with the key (string, int64) from a base, {share:.0%} updated since, one by one",
        against="the same scan of RocksDB",
        unit="ratio",
        spread=paired_ratios(rates[_TEXT_BASE], rates[_TEXT]),
        at_least=5,
    )
