"""Compares the plan that a scan chooses with both plans forced: `python -m benchmarks.growth.index_lookups`.

Columns: the share of rows that match, processor time of the scan without the index, through it, and with the plan that
the server chooses, and the chosen one against the better of the two.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread
from benchmarks.workers import run_alone
from scankv.model.expressions import col
from scankv.model.keys.key_range import KeyRange
from streaming_server.config import ServerConfig
from streaming_server.engine.tables.tables import Tables
from streaming_server.scan.read_plan import ReadPath, ReadPlan
from streaming_server.scan.rows import index_lookup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.bench import Bench
    from streaming_server.engine.table.live_table import LiveTable

SHARES: Final = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3)
_AMOUNTS: Final = 1_000_000
_LOADED_BYTES: Final = 16 << 20
_WIDTH: Final = 48
_SCHEMA: Final = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("amount", pa.int64()), ("price", pa.float64()), ("note", pa.string())]
)
_FORCED: Final[dict[str, dict[str, Any]]] = {
    "scan": {"MAX_ENTRY_BYTES": -1, "LEAST_ENTRIES": 0},
    "index": {"MAX_ENTRY_BYTES": 1 << 40, "LEAST_ENTRIES": 1 << 40},
    "chosen": {},
}
_DEFAULTS: Final = {name: getattr(index_lookup, name) for name in ("MAX_ENTRY_BYTES", "LEAST_ENTRIES")}


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time of one query in seconds, the least of some runs, and the plan that `explain` names."""

    scan: float
    index: float
    chosen: float
    explained: str

    @property
    def ratio(self) -> float:
        return self.chosen / min(self.scan, self.index)


def batches(rows: int, width: int) -> Iterator[pa.RecordBatch]:
    """Yields rows with scattered amounts and notes of about this many bytes."""
    rng, step = np.random.default_rng(1), _LOADED_BYTES // (width + 100)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        notes = [f"{number:08}" * (width // 8) for number in rng.integers(0, 10**8, count)]
        amounts = rng.integers(0, _AMOUNTS, count)
        columns = [np.arange(start, start + count), amounts, rng.random(count), notes]
        yield pa.record_batch(columns, schema=_SCHEMA)


async def load(tables: Tables, rows: int, width: int) -> LiveTable:
    """Returns a table of one bucket with a base of all rows."""
    options = {"columnar_base": "eager"}
    await tables.create(
        "growth.rows", _SCHEMA, primary_key=["id"], bucket_key=(), buckets=1, indexes=[["amount"]], options=options
    )
    table = tables.table("growth.rows")
    for batch in batches(rows, width):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        await table.writes.upsert(sink.getvalue().to_pybytes(), 1)
    await tables._bases.maintain_bucket(table.state, table.buckets[0])
    return table


def plan_of(share: float, columns: tuple[str, ...] | None, read_path: ReadPath) -> ReadPlan:
    return ReadPlan(
        buckets=None,
        columns=columns,
        where=col("amount") < int(share * _AMOUNTS),
        where_message=b"",
        resume_token=b"",
        key_range=KeyRange(),
        reverse=False,
        ordered=False,
        limit=None,
        read_path=read_path,
    )


async def read(table: LiveTable, plan: ReadPlan) -> float:
    """Returns the processor time of a scan, with its chunks serialized."""
    began = time.process_time()
    scan = await table.reads.open_view(plan)
    room = (32_768, 2 << 20) if scan.large_chunks else (8192, 1 << 20)
    with closing(scan.source) as source:
        while True:
            while not source.prefetch(*room):
                pass
            chunk = source.next_chunk(*room)
            if chunk is None:
                return time.process_time() - began
            if chunk.message is None:
                chunk.batch.serialize()


async def measure(table: LiveTable, plan: ReadPlan, runs: int) -> Costs:
    """Measures a query with each plan in turn, and the least of some runs of each."""
    found: dict[str, list[float]] = {name: [] for name in _FORCED}
    for _ in range(runs):
        for name, constants in _FORCED.items():
            for constant, value in (_DEFAULTS | constants).items():
                setattr(index_lookup, constant, value)
            found[name].append(await read(table, plan))
    explained = await table.reads.explain(plan)
    scan, index, chosen = map(min, found.values())
    return Costs(scan, index, chosen, "index" if explained.index else "scan")


async def compare(
    rows: int, width: int, runs: int, columns: tuple[str, ...] | None
) -> AsyncIterator[tuple[ReadPath, float, Costs]]:
    """Yields the costs for each read path and share of rows that match."""
    with tempfile.TemporaryDirectory(prefix="scankv-growth-") as directory:
        tables = Tables(ServerConfig(data=Path(directory), base_maintenance_seconds=3600.0, base_cpu_share=1.0))
        tables.start()
        try:
            table = await load(tables, rows, width)
            for path in (ReadPath.ROCKSDB, ReadPath.AUTO):
                for share in SHARES:
                    yield path, share, await measure(table, plan_of(share, columns, path), runs)
        finally:
            await tables.close()


def index(bench: Bench) -> Result:
    """Scans for some rows with the plan that the server chooses. The worst share of rows that match counts."""
    found = Spread.of(run_alone(_ratios, bench.rows, bench.runs))
    figure = Figure(
        name="index",
        work=f"scan for {SHARES[0]:.2%} to {SHARES[-1]:.0%} of {bench.rows:,} rows, worst of the plans chosen",
        against="the better of a scan and an index",
        unit="ratio",
        spread=Spread(found.greatest, found.least, found.greatest),
        at_most=1.3,
    )
    return Result(figures=[figure])


def _ratios(rows: int, runs: int) -> list[float]:
    async def collect() -> list[float]:
        return [costs.ratio async for _path, _share, costs in compare(rows, _WIDTH, runs, None)]

    return asyncio.run(collect())


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth.index_lookups", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=_WIDTH, help="bytes of the longest column")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--covered", action="store_true", help="read only columns of the index")
    arguments = parser.parse_args()
    columns = ("id", "amount") if arguments.covered else None
    print("| read path | matching | scan, ms | index, ms | chosen, ms | ratio | explained |")
    print("|---|---|---|---|---|---|---|")
    async for path, share, costs in compare(arguments.rows, arguments.width, arguments.runs, columns):
        times = " | ".join(f"{1e3 * each:.1f}" for each in (costs.scan, costs.index, costs.chosen))
        name = "RocksDB" if path is ReadPath.ROCKSDB else "columnar base"
        print(f"| {name} | {share:.2%} | {times} | {costs.ratio:.2f} | {costs.explained} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
