"""Measures aggregate upserts, which the server merges into existing rows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from aio_client import agg, connect
from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, Timing, run_interleaved
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("total", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("most", pa.float64()),
        pa.field("last", pa.string()),
    ]
)
_AGGREGATES: Final = {"total": agg.sum(), "rows": agg.count(), "most": agg.max(), "last": agg.last_value()}
_MOST_ROWS: Final = 1_000_000
_KEYS_SHARE, _HOT_ROWS, _HOT_KEYS, _HOT_TIMES = 10, 100_000, 1000, 10
_SPREAD, _HOT = "onto a tenth as many keys", "100,000 rows onto 1,000 keys, repeatedly"


def run(bench: Bench) -> Result:
    """Writes rows with many scattered keys, and rows with few hot keys, in turn."""
    rows = min(bench.rows, _MOST_ROWS)
    with BenchmarkServer(bench.directory / "merges") as server, Worker(AggregateWriter, server.url, rows) as merger:
        rates = run_interleaved(
            bench.runs,
            {
                _SPREAD: lambda: merger.call(AggregateWriter.write_scattered).check_rows(rows),
                _HOT: lambda: merger.call(AggregateWriter.write_hot).check_rows(min(rows, _HOT_ROWS) * _HOT_TIMES),
            },
        )
    return Result(
        figures=[
            Figure(
                name="aggregate_upsert",
                work=f"aggregate upsert of {rows:,} rows {_SPREAD} (sum, count, max, last), over gRPC, durable",
                against="wall clock of the client",
                unit="rows/s",
                spread=Spread.of(rates[_SPREAD]),
                at_least=150_000,
            ),
            Figure(
                name="aggregate_upsert_hot",
                work=f"the same, {_HOT}",
                against="wall clock of the client",
                unit="rows/s",
                spread=Spread.of(rates[_HOT]),
                at_least=1_000_000,
            ),
        ],
        tables=[rates_table("Aggregate upsert", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "Aggregate upsert: one bucket, full changelog. The scattered rows are one call, the hot rows one call for "
            "each 100,000. The benchmark compares the count column of the table with the number of rows written.",
        ],
    )


class AggregateWriter:
    """Writes into a new aggregate table each time."""

    def __init__(self, url: str, rows: int) -> None:
        self._url = url
        random = np.random.default_rng(7)
        self._scattered = _rows(random, rows, max(rows // _KEYS_SHARE, 1))
        self._hot = _rows(random, min(rows, _HOT_ROWS), _HOT_KEYS)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def write_scattered(self) -> Timing:
        """Writes rows with scattered keys in one call."""
        return self._runner.run(self._write([self._scattered]))

    def write_hot(self) -> Timing:
        """Writes rows with hot keys in several calls."""
        return self._runner.run(self._write([self._hot] * _HOT_TIMES))

    async def _write(self, batches: list[pa.RecordBatch]) -> Timing:
        async with connect(self._url) as client:
            table = await client.create_table(
                "bench.merges",
                _SCHEMA,
                primary_key=["id"],
                buckets=1,
                merge_engine="aggregate",
                aggregators=_AGGREGATES,
            )
            started = time.perf_counter()
            for batch in batches:
                await table.upsert(batch)
            seconds = time.perf_counter() - started
            counted = await table.aggregate({"rows": "sum"})
            timing = Timing(counted.column("rows_sum")[0].as_py(), seconds)
            await client.drop_table("bench.merges")
        return timing


def _rows(random: np.random.Generator, rows: int, keys: int) -> pa.RecordBatch:
    names = pa.array([f"name-{number}" for number in range(1000)])
    columns = [
        pa.array(random.integers(0, keys, rows)),
        pa.array(random.integers(0, 1000, rows)),
        pa.array(np.ones(rows, np.int64)),
        pa.array(random.random(rows)),
        names.take(pa.array(random.integers(0, 1000, rows))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
