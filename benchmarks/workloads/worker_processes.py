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
    from pathlib import Path

    from aio_client import Scan, ScanSpec
    from benchmarks.bench import Bench

_WORKERS: Final = 2
_MOST_ROWS: Final = 1_000_000
_CALL_ROWS: Final = 100_000
_PARTS: Final = 8
# So many that little depends on what one worker does in the background, such as the build of a columnar base.
_SCANS: Final = 6
_ROUNDS: Final = 12
_WORK: Final = {
    "upserts": "upserts of two tables at once",
    "scans": "scans of two tables at once",
    "parts": "scans of the parts of one snapshot by two clients",
    "tablet_upserts": "upserts of one table with a tablet for each worker",
    "tablet_scans": "scans of one table with a tablet for each worker",
    "unordered": "scans of one table with a tablet for each worker, in any order",
}
"""What is measured, by the name of its figure."""


def run(bench: Bench) -> Result:
    """Loads and scans tables of two workers, or of one process."""
    rows = min(bench.rows // 2, _MOST_ROWS)
    rates: dict[str, dict[str, list[float]]] = {what: {} for what in _WORK}
    walls: dict[str, dict[str, list[float]]] = {what: {} for what in _WORK}
    for number in range(bench.runs):
        # In turn, each in a new directory.
        for workers in (1, _WORKERS):
            name = f"{workers} process" if workers == 1 else f"{workers} workers"
            directory = bench.directory / f"workers-{workers}-{number}"
            for what, (done, busiest, wall) in _use_server(directory, workers, rows).items():
                rates[what].setdefault(name, []).append(done / busiest)
                walls[what].setdefault(name, []).append(done / wall)
                progress(f"  run {number + 1} of {bench.runs}: {name}: {what} {done / busiest:,.0f}")
    return Result(
        figures=[
            Figure(
                name=f"workers_{what}",
                work=f"{work}: rows for each second of the busiest of {_WORKERS} workers",
                against="the same with one process",
                unit="ratio",
                spread=paired_ratios(*reversed(rates[what].values())),
                at_least=1.7,
            )
            for what, work in _WORK.items()
        ],
        tables=[
            ResultTable(
                f"{work[0].upper()}{work[1:]}",
                ("", "rows for each second of the busiest process", "rows for each second of wall clock"),
                [
                    (name, Spread.of(values).median, Spread.of(walls[what][name]).median)
                    for name, values in rates[what].items()
                ],
            )
            for what, work in _WORK.items()
        ],
        notes=[
            "Two clients use two tables, each owned by another worker, and then read the halves of a snapshot of one. "
            "One client uses the table with tablets; in a server of one process, that table has no tablets. "
            "On two cores, the clients and the workers share the processor, so the wall clock says little about a "
            "machine with more cores."
        ],
    )


def _use_server(directory: Path, workers: int, rows: int) -> dict[str, tuple[int, float, float]]:
    """Returns the rows, the processor time of the busiest process, and the wall clock, by what was measured."""
    with (
        BenchmarkServer(directory, workers=workers) as server,
        Worker(TableUser, server.url, 0, rows) as first,
        Worker(TableUser, server.url, 1, rows) as second,
    ):
        users = first, second
        measured = {
            "upserts": (2 * rows, *_measure(server.pid, users, TableUser.load)),
            "scans": (2 * _SCANS * rows, *_measure(server.pid, users, TableUser.scan)),
        }
        specs = first.call(TableUser.pin)
        halves = specs[: _PARTS // 2], specs[_PARTS // 2 :]
        measured["parts"] = (_ROUNDS * rows, *_measure(server.pid, users, TableUser.read, halves))
    with (
        BenchmarkServer(directory.with_name(f"{directory.name}-tablets"), workers=workers) as server,
        Worker(TableUser, server.url, 0, rows, _WORKERS, workers) as user,
    ):
        measured["tablet_upserts"] = (rows, *_measure(server.pid, [user], TableUser.load))
        for what, unordered in (("tablet_scans", False), ("unordered", True)):
            measured[what] = (_SCANS * rows, *_measure(server.pid, [user], TableUser.scan, [unordered]))
    return measured


def _measure(
    server: int,
    users: Sequence[Worker[TableUser]],
    work: Callable[..., None],
    arguments: Sequence[object] | None = None,
) -> tuple[float, float]:
    """Returns the processor time of the busiest process of the server, and the wall clock, in seconds.

    Args:
        server: The process that was started.
        users: The clients, which work at once.
        work: What each of them does.
        arguments: An argument for the work of each. None: no argument.
    """
    for user in users:
        user.wait_ready()
    before = {pid: cpu_seconds(pid) for pid in tree_ids(server)}
    began = time.perf_counter()
    for number, user in enumerate(users):
        user.begin(work, *(() if arguments is None else (arguments[number],)))
    for user in users:
        user.finish()
    wall = time.perf_counter() - began
    return max(cpu_seconds(pid) - seconds for pid, seconds in before.items()), wall


class TableUser:
    """Loads and scans one table, and parts of any snapshot.

    Args:
        url: The address of the server.
        owner: The worker that owns the table if there are two.
        rows: The number of rows.
        buckets: The buckets of the table.
        tablets: Its tablets.
    """

    def __init__(self, url: str, owner: int, rows: int, buckets: int = t4.BUCKETS, tablets: int = 1) -> None:
        self._buckets, self._tablets = buckets, tablets
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
            self._name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=self._buckets, tablets=self._tablets
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

    def scan(self, unordered: bool = False) -> None:
        """Reads all rows several times, in the order of buckets or in any order."""
        scan = self._table.scan().read_path("rocksdb")
        self._runner.run(self._scan(scan.unordered() if unordered else scan))

    async def _scan(self, scan: Scan) -> None:
        for _ in range(_SCANS):
            rows = 0
            async for batch in scan.stream():
                rows += batch.num_rows
            if rows != self._rows:
                raise RuntimeError(f"the scan returned {rows:,} rows, not {self._rows:,}")

    def pin(self) -> list[ScanSpec]:
        """Pins the table, and returns the parts of its snapshot."""
        return self._runner.run(self._pin())

    async def _pin(self) -> list[ScanSpec]:
        snapshot = await self._table.snapshot()
        return [part.spec for part in await self._table.scan().read_path("rocksdb").as_of(snapshot).splits(_PARTS)]

    def read(self, parts: Sequence[ScanSpec]) -> None:
        """Reads parts of a snapshot, one after another, twelve times."""
        self._runner.run(self._read(parts))

    async def _read(self, parts: Sequence[ScanSpec]) -> None:
        for _ in range(_ROUNDS):
            rows = 0
            for part in parts:
                async for batch in self._client.scan(part).stream():
                    rows += batch.num_rows
            # The parts are about equal.
            if not 0.4 * self._rows <= rows <= 0.6 * self._rows:
                raise RuntimeError(f"the parts have {rows:,} rows, not about a half of {self._rows:,}")
