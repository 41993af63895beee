"""Scans out of a columnar base with more and more of the rows written since, against the same scans of RocksDB."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios, progress
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from benchmarks.workloads import base_costs, base_rivals
from benchmarks.workloads.base_tables import TEXT_TABLE, filled_table, updates, wait_for_base

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_N: Final = 10
_WRITERS: Final = 64
_CHANGED: Final = {0.0: 8, 0.01: 5, 0.1: 3}
"""Shares of the rows written since the base, and how many times as fast as the iterator a scan must be."""

_FULL, _BASE = "all columns, RocksDB", "all columns, base"
_TEXT, _TEXT_BASE = "key (string, int64), RocksDB", "key (string, int64), base"
_ONE, _CLUSTERED, _CLUSTERED_BASE = "one of four columns, base", "1 % by ts, RocksDB", "1 % by ts, base"


class BaseReader(ClientReader):
    """Reads the table in both ways."""

    def __enter__(self) -> Self:
        return self

    def open(self) -> None:
        """Connects, once there is a table."""
        self._runner.run(self._connect())

    def read_by(self, read_path: str, columns: tuple[str, ...] | None = None, where: str | None = None) -> Timing:
        """Reads some columns of the rows for which something is true, out of bases or not."""
        scan = self._table.scan(columns, where=where).read_path(read_path)  # type: ignore[arg-type]  # one of the two
        return self._runner.run(self._timed(scan))

    def top_n(self, n: int) -> float:
        """The seconds that the first rows by a column without an index take."""
        started = time.perf_counter()
        self._runner.run(self._table.top_n(n, by="amount"))
        return time.perf_counter() - started

    def count(self, where: str) -> Timing:
        """Counts the rows for which something is true; the rows are those that are kept."""
        started = time.perf_counter()
        found = self._runner.run(self._table.count(where))
        return Timing(found, time.perf_counter() - started)

    def commit_one_by_one(self, rows: int, count: int) -> None:
        """Updates so many rows in as many commits."""
        self._runner.run(self._commit(rows, count))

    async def _commit(self, rows: int, count: int) -> None:
        waiting = updates(rows, count, seed=count, batch_rows=1)

        async def write() -> None:
            for row in waiting:
                await self._table.upsert(row)

        await asyncio.gather(*(write() for _ in range(_WRITERS)))


def run(bench: Bench) -> Result:
    """Loads the table, and reads it in both ways, with none of its rows written since the base, then more of them."""
    rows, data = bench.rows, bench.directory / "bases"
    found: dict[str, list[float]] = {}
    figures = []
    # The base is built when all rows are there, and stays as it is, whatever is written.
    with BenchmarkServer(data, base_min_rows=rows, base_changed_share=10, base_cpu_share=1) as server:
        with connect(server.url) as client, Worker(BaseReader, server.url) as reader:
            table = filled_table(client, rows)
            reader.call(BaseReader.open)
            wait_for_base(table)
            for share, at_least in _CHANGED.items():
                for batch in updates(rows, int(rows * share), seed=int(rows * share)):
                    table.upsert(batch)
                rates = interleaved(
                    bench.runs,
                    {
                        _FULL: lambda: reader.call(BaseReader.read_by, "rocksdb").checked(rows),
                        _BASE: lambda: reader.call(BaseReader.read_by, "columnar").checked(rows),
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
    figures.append(_text_keys(bench, found))
    others = [base_costs.run(bench), base_rivals.run(bench)]
    return Result(
        figures=[*figures, *(figure for other in others for figure in other.figures)],
        tables=[
            rates_table("Out of a base", {name: Spread.of(values) for name, values in found.items()}),
            *(table for other in others for table in other.tables),
        ],
        notes=[
            "Bases: rows written since are updates of rows chosen at random, in requests of 10,000 rows, or of one "
            "where the key is (string, int64).",
            *(note for other in others for note in other.notes),
        ],
    )


def _parts(bench: Bench, reader: Worker[BaseReader], found: dict[str, list[float]]) -> list[Figure]:
    """One column, and a predicate that a zone map answers, with nothing written since the base."""
    rows = bench.rows
    kept = rows // 100
    where = f"ts < {t4.ts_of(kept)}"

    def some(read_path: str) -> Timing:
        return Timing(rows, reader.call(BaseReader.read_by, read_path, None, where).checked(kept).seconds)

    rates = interleaved(
        bench.runs,
        {
            _BASE: lambda: reader.call(BaseReader.read_by, "columnar").checked(rows),
            _ONE: lambda: reader.call(BaseReader.read_by, "columnar", ("amount",)).checked(rows),
            _CLUSTERED: lambda: some("rocksdb"),
            _CLUSTERED_BASE: lambda: some("columnar"),
        },
    )
    found |= rates
    answers = _answers(bench, reader, where, kept)
    return [
        *answers,
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


def _answers(bench: Bench, reader: Worker[BaseReader], where: str, kept: int) -> list[Figure]:
    """What the server computes out of a base, with nothing written since."""
    top_n, count = [], []
    progress("asking for the first rows and counting")
    for number in range(-1, bench.runs):
        # With another number each time, which no answer is kept for.
        seconds = reader.call(BaseReader.count, f"{where} AND id > {-9 - number}").checked(kept).seconds
        first = reader.call(BaseReader.top_n, _N + 1 + number)
        if number >= 0:
            top_n.append(1000 * first)
            count.append(bench.rows / seconds)
    return [
        Figure(
            name="base_top_n",
            work=f"top-10 of {bench.rows:,} rows by a column without an index, out of a base",
            against="wall clock of the call",
            unit="ms",
            spread=Spread.of(top_n),
            at_most=40,
        ),
        Figure(
            name="base_count",
            work=f"count of {kept:,} of {bench.rows:,} rows by a predicate, out of a base",
            against="wall clock of the call",
            unit="rows/s",
            spread=Spread.of(count),
            at_least=100e6,
        ),
    ]


def _text_keys(bench: Bench, found: dict[str, list[float]]) -> Figure:
    """The same with a key of a string and a number, and 1 % written since, each row by a commit of its own."""
    rows, share = bench.rows, 0.01
    data = bench.directory / "bases-text"
    with (
        BenchmarkServer(data, base_min_rows=rows, base_changed_share=10, base_cpu_share=1) as server,
        connect(server.url) as client,
        Worker(BaseReader, server.url, TEXT_TABLE) as reader,
    ):
        table = filled_table(client, rows, TEXT_TABLE)
        reader.call(BaseReader.open)
        wait_for_base(table)
        progress(f"updating {int(rows * share):,} rows one by one")
        reader.call(BaseReader.commit_one_by_one, rows, int(rows * share))
        rates = interleaved(
            bench.runs,
            {
                _TEXT: lambda: reader.call(BaseReader.read_by, "rocksdb").checked(rows),
                _TEXT_BASE: lambda: reader.call(BaseReader.read_by, "columnar").checked(rows),
            },
        )
    found |= rates
    return Figure(
        name="base_text_key",
        work=f"scan of {rows:,} rows with the key (string, int64) out of a base, {share:.0%} written since one by one",
        against="the same scan of RocksDB",
        unit="ratio",
        spread=paired_ratios(rates[_TEXT_BASE], rates[_TEXT]),
        at_least=5,
    )
