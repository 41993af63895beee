"""Compares a server of two worker processes with a server of one process: the work of its busiest process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, paired_ratios, progress
from benchmarks.proc import cpu_seconds, tree_ids
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from streaming_server.storage.tables.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.bench import Bench

_WORKERS: Final = 2
_MOST_ROWS: Final = 1_000_000
_CALL_ROWS: Final = 100_000
_SCANS: Final = 3
_UPSERT, _SCAN = "upserts", "scans"


def run(bench: Bench) -> Result:
    """Loads and scans two tables at once, which two workers own, or one process."""
    rows = min(bench.rows // 2, _MOST_ROWS)
    rates: dict[str, dict[str, list[float]]] = {_UPSERT: {}, _SCAN: {}}
    walls: dict[str, dict[str, list[float]]] = {_UPSERT: {}, _SCAN: {}}
    for number in range(bench.runs):
        # In turn, each in a new directory.
        for workers in (1, _WORKERS):
            name = f"{workers} process" if workers == 1 else f"{workers} workers"
            directory = bench.directory / f"workers-{workers}-{number}"
            with BenchmarkServer(directory, workers=workers) as server:
                with Worker(TableUser, server.url, 0, rows) as first, Worker(TableUser, server.url, 1, rows) as second:
                    for what, work, times in ((_UPSERT, TableUser.load, 1), (_SCAN, TableUser.scan, _SCANS)):
                        busiest, wall = _measure(server.pid, (first, second), work)
                        rates[what].setdefault(name, []).append(2 * times * rows / busiest)
                        walls[what].setdefault(name, []).append(2 * times * rows / wall)
                        progress(
                            f"  run {number + 1} of {bench.runs}: {name}: {what} {2 * times * rows / busiest:,.0f}"
                        )
    return Result(
        figures=[
            Figure(
                name=f"workers_{what}",
                work=f"{what} of two tables at once: rows for each second of the busiest of {_WORKERS} workers",
                against="the same with one process",
                unit="ratio",
                spread=paired_ratios(*reversed(rates[what].values())),
                at_least=1.7,
            )
            for what in rates
        ],
        tables=[
            ResultTable(
                f"{what.capitalize()} of two tables at once",
                ("", "rows for each second of the busiest process", "rows for each second of wall clock"),
                [
                    (name, Spread.of(values).median, Spread.of(walls[what][name]).median)
                    for name, values in rates[what].items()
                ],
            )
            for what in rates
        ],
        notes=[
            "Two clients use two tables, each owned by another worker. On two cores, the clients and the workers share "
            "the processor, so the wall clock says little about a machine with more cores."
        ],
    )


def _measure(server: int, users: Sequence[Worker[TableUser]], work: Callable[[TableUser], None]) -> tuple[float, float]:
    """Returns the processor time of the busiest process of the server, and the wall clock, in seconds."""
    for user in users:
        user.wait_ready()
    before = {pid: cpu_seconds(pid) for pid in tree_ids(server)}
    began = time.perf_counter()
    for user in users:
        user.begin(work)
    for user in users:
        user.finish()
    wall = time.perf_counter() - began
    return max(cpu_seconds(pid) - seconds for pid, seconds in before.items()), wall


class TableUser:
    """Loads and scans one table.

    Args:
        url: The address of the server.
        owner: The worker that owns the table if there are two.
        rows: The number of rows.
    """

    def __init__(self, url: str, owner: int, rows: int) -> None:
        self._url = url
        self._rows = rows
        names = (f"bench.t{number}" for number in range(100))
        self._name = next(name for name in names if Placement(0, _WORKERS).owner_of(name) == owner)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    async def _connect(self) -> None:
        self._client = await connect(self._url)
        self._table = await self._client.create_table(
            self._name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS
        )

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def load(self) -> None:
        """Upserts all rows."""
        self._runner.run(self._load())

    async def _load(self) -> None:
        for batch in t4.batches(self._rows, _CALL_ROWS):
            await self._table.upsert(batch)

    def scan(self) -> None:
        """Reads all rows, three times."""
        self._runner.run(self._scan())

    async def _scan(self) -> None:
        for _ in range(_SCANS):
            rows = 0
            async for batch in self._table.scan().stream():
                rows += batch.num_rows
            if rows != self._rows:
                raise RuntimeError(f"the scan returned {rows:,} rows, not {self._rows:,}")
