"""How much longer the slowest gets and one-row upserts take while other clients keep the server busy."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING, Any, Final

from aio_client import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, paired_ratios, progress
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from benchmarks.bench import Bench

_SECONDS: Final = 1.0  # of each kind of call
_CROWD_SECONDS: Final = 3.0  # longer than both kinds of calls together
_LOAD_ROWS: Final = 10_000
_SMALL, _LOADED = "bench.small", "bench.loaded"
_IDLE: Final = "nothing else"
_AT_MOST: Final = 10.0
_MILLIS: Final = 1000.0


class ShortCaller(ClientReader):
    """A client that makes one short call after another."""

    def round(self) -> tuple[float, float]:
        """Returns the 99th percentile of the seconds of a get, and that of a one-row upsert."""
        return self._runner.run(self._round())

    async def _round(self) -> tuple[float, float]:
        small = await self._client.table(_SMALL)
        return await _p99(lambda number: small.get(number % _LOAD_ROWS)), await _p99(
            lambda number: small.upsert(t4.rows(number + time.time_ns() % 1_000_000, 1))
        )


async def _p99(call: Callable[[int], Awaitable[object]]) -> float:
    took: list[float] = []
    until = time.perf_counter() + _SECONDS
    while (started := time.perf_counter()) < until:
        await call(len(took))
        took.append(time.perf_counter() - started)
    return sorted(took)[len(took) * 99 // 100]


class Crowd:
    """A client that reads or writes as fast as it can."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def scan(self, scans: int, seconds: float) -> int:
        """Runs some scans at a time, again and again. Returns the number of rows."""
        return self._runner.run(self._run(self._scan, scans, seconds))

    def load(self, loads: int, seconds: float) -> int:
        """Upserts rows in requests of 10,000 rows. Returns the number of rows."""
        return self._runner.run(self._run(self._load, loads, seconds))

    async def _run(self, work: Callable[[float], Awaitable[int]], count: int, seconds: float) -> int:
        until = time.monotonic() + seconds
        return sum(await asyncio.gather(*(work(until) for _ in range(count))))

    async def _scan(self, until: float) -> int:
        rows = 0
        async with connect(self._url) as client:
            table = await client.table(t4.TABLE)
            while time.monotonic() < until:
                async with table.scan().read_path("rocksdb").stream() as stream:
                    async for batch in stream:
                        rows += batch.num_rows
                        if time.monotonic() >= until:
                            break
        return rows

    async def _load(self, until: float) -> int:
        rows = 0
        async with connect(self._url) as client:
            table = await client.table(_LOADED)
            while time.monotonic() < until:
                await table.upsert(t4.rows(rows, _LOAD_ROWS))
                rows += _LOAD_ROWS
        return rows


_CROWDS: Final = {
    "a full scan": (Crowd.scan, 1),
    "four full scans": (Crowd.scan, 4),
    "a load": (Crowd.load, 1),
}
_SPARK_JOB: Final = "a Spark job"
_FIGURES: Final = {
    "get_p99_during_scan": ("gets", 0, "a full scan"),
    "upsert_p99_during_scan": ("one-row upserts", 1, "a full scan"),
    "get_p99_during_scans": ("gets", 0, "four full scans"),
    "upsert_p99_during_scans": ("one-row upserts", 1, "four full scans"),
    "get_p99_during_load": ("gets", 0, "a load"),
    "upsert_p99_during_load": ("one-row upserts", 1, "a load"),
    "get_p99_during_spark_job": ("gets", 0, _SPARK_JOB),
    "upsert_p99_during_spark_job": ("one-row upserts", 1, _SPARK_JOB),
}


def run(bench: Bench) -> Result:
    """Measures the calls alone, then during each kind of work, in rounds."""
    with (
        BenchmarkServer(bench.store.copy("fairness")) as server,
        Worker(Crowd, server.url) as crowd,
        Worker(ShortCaller, server.url) as caller,
        ExitStack() as stack,
    ):
        begin: dict[str, Callable[[], Worker[Any]]] = {
            name: partial(_begin, crowd, work, count) for name, (work, count) in _CROWDS.items()
        }
        if _has_spark():
            # Imported on use; otherwise the processes of all benchmarks would import PySpark.
            from benchmarks.workloads.spark_session import SparkJobs

            jobs = stack.enter_context(Worker(SparkJobs, server.url, bench.directory))
            begin[_SPARK_JOB] = partial(_begin, jobs, SparkJobs.read, 1)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in (_IDLE, *begin)}
        asyncio.run(_create_tables(server.url))
        for number in range(-1, bench.runs):
            for name in found:
                took = _measure(caller, name, begin.get(name))
                if number >= 0:
                    found[name].append(took)
                    progress(
                        f"  run {number + 1} of {bench.runs}: {name:<16} {_MILLIS * took[0]:.1f} and "
                        f"{_MILLIS * took[1]:.1f} ms"
                    )
    return Result(
        figures=[
            Figure(
                name=figure,
                work=f"p99 of {calls} of one client during {name} of another",
                against="the same while the server is idle",
                unit="times",
                spread=paired_ratios([took[kind] for took in found[name]], [took[kind] for took in found[_IDLE]]),
                at_most=_AT_MOST,
            )
            for figure, (calls, kind, name) in _FIGURES.items()
            if name in found
        ],
        tables=[
            ResultTable(
                "Fairness: 99th percentile",
                ("milliseconds", "get", "one-row upsert"),
                [
                    (name, *(_MILLIS * Spread.of(each[kind] for each in took).median for kind in (0, 1)))
                    for name, took in found.items()
                ],
            )
        ],
        notes=[
            f"Fairness: gets for {_SECONDS:g} second, then durable one-row upserts as long, one after another, on a "
            f"table of {_LOAD_ROWS:,} rows, while another process scans T4 or upserts {_LOAD_ROWS:,} rows at a time "
            "into a third table, or while a Spark session with two threads sums a column of T4, again and again. The "
            "processes share the cores of the machine, so on few cores a part of the ratio is due to the clients. "
            "Without Java or PySpark, there is no Spark job.",
        ],
    )


def _has_spark() -> bool:
    return find_spec("pyspark") is not None and which("java") is not None


def _begin(crowd: Worker[Any], work: Callable[..., int], count: int) -> Worker[Any]:
    crowd.begin(work, count, _CROWD_SECONDS)
    return crowd


def _measure(caller: Worker[ShortCaller], name: str, begin: Callable[[], Worker[Any]] | None) -> tuple[float, float]:
    """Measures the calls while the work that `begin` starts is running. None: alone."""
    if begin is None:
        return caller.call(ShortCaller.round)
    crowd = begin()
    took = caller.call(ShortCaller.round)
    if not crowd.finish():
        raise RuntimeError(f"{name} made no progress")
    return took


async def _create_tables(url: str) -> None:
    async with connect(url) as client:
        for name in (_SMALL, _LOADED):
            table = await client.create_table(name, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=1)
            await table.upsert(t4.rows(0, _LOAD_ROWS))
