"""How long a committed change takes to the one who follows the table."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from aio_client import StartFrom, connect
from aio_client.sync import connect as connect_blocking
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

_TABLE: Final = "bench.followed"
_COMMITS: Final = 100
_SYNCS: Final = 50
_MILLIS: Final = 1000.0
_NANOS: Final = 1e9

_NOTHING, _COMMITTED, _BEGUN, _ACKNOWLEDGED, _SYNC = (
    "a unary call that does nothing",
    "from the commit at the server to the change in the consumer's hands",
    "from the call of upsert to the change in the consumer's hands",
    "from the call of upsert to its acknowledgement",
    "fdatasync of 4 KiB more of a file in the same directory",
)


class Follower(ClientReader):
    """A client that follows a table."""

    def open(self) -> None:
        """Starts to follow it from now on."""
        self._stream = self._table.changes(StartFrom.LATEST).stream()
        self._runner.run(self._stream.__aenter__())

    def close(self) -> None:
        """Follows it no more."""
        self._runner.run(self._stream.aclose())

    def nothing(self) -> float:
        """The median seconds of a call that does nothing."""
        return self._runner.run(self._nothing())

    def follow(self, changes: int) -> list[tuple[int, int]]:
        """For each of the next changes, when it was committed and when it was here, in nanoseconds since 1970."""
        return self._runner.run(self._follow(changes))

    async def _nothing(self) -> float:
        seconds = []
        for _ in range(_COMMITS):
            started = time.perf_counter()
            await self._client.wait_ready()
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)

    async def _follow(self, changes: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while len(found) < changes:
            batch = await anext(self._stream)
            now = time.time_ns()
            committed = batch.column("_commit_timestamp").cast("int64").to_pylist()
            found += [(1000 * micros, now) for micros in committed]
        return found


class SingleRowWriter:
    """A client that upserts one row at a time, each acknowledged before the next."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._written = 0

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def write(self, rows: int) -> list[tuple[int, int]]:
        """For each row, when its upsert was called and when it was acknowledged, in nanoseconds since 1970."""
        return self._runner.run(self._write(rows))

    async def _connect(self) -> None:
        self._client = await connect(self._url)
        self._table = await self._client.table(_TABLE)

    async def _write(self, rows: int) -> list[tuple[int, int]]:
        found = []
        for number in range(self._written, self._written + rows):
            batch = t4.rows(number, 1)
            begun = time.time_ns()
            await self._table.upsert(batch)
            found.append((begun, time.time_ns()))
        self._written += rows
        return found


def run(bench: Bench) -> Result:
    """Writes row by row while another process follows."""
    found = []
    with ExitStack() as stack:
        server = stack.enter_context(BenchmarkServer(bench.directory / "followed"))
        _create(server.url)
        follower = stack.enter_context(Worker(Follower, server.url, _TABLE))
        writer = stack.enter_context(Worker(SingleRowWriter, server.url))
        for number in range(-1, bench.runs):
            nothing = follower.call(Follower.nothing)
            follower.call(Follower.open)
            follower.begin(Follower.follow, _COMMITS)
            written = writer.call(SingleRowWriter.write, _COMMITS)
            seconds = _seconds(written, follower.finish())
            follower.call(Follower.close)
            seconds |= {_NOTHING: nothing, _SYNC: _sync_seconds(bench.directory)}
            if number >= 0:
                found.append(seconds)
                progress(f"  run {number + 1} of {bench.runs}: {_MILLIS * seconds[_COMMITTED]:.2f} ms")
    order = (_NOTHING, _COMMITTED, _BEGUN, _ACKNOWLEDGED, _SYNC)
    spreads = {name: Spread.of(_MILLIS * seconds[name] for seconds in found) for name in order}
    return Result(
        figures=[
            Figure(
                name="commit_to_consumer_vs_call",
                work="one-row commit to the change in a consumer's hands, median",
                against=_NOTHING,
                unit="times",
                spread=Spread.of(seconds[_COMMITTED] / seconds[_NOTHING] for seconds in found),
                at_most=5,
            )
        ],
        tables=[
            ResultTable(
                "From a commit to a consumer",
                ("milliseconds", "median", "least", "greatest"),
                [(name, s.median, s.least, s.greatest) for name, s in spreads.items()],
            )
        ],
        notes=[
            f"From a commit to a consumer: {_COMMITS} upserts of one row a run, each acknowledged before the next, of "
            "which the median counts; writer, server and consumer are three processes, with one clock. The commit "
            "is the change's `_commit_timestamp`: the write to RocksDB, before the sync, without which nobody is "
            "shown a change; so one sync is part of it.",
        ],
    )


def _create(url: str) -> None:
    with connect_blocking(url) as client:
        client.create_table(_TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS)


def _seconds(written: list[tuple[int, int]], received: list[tuple[int, int]]) -> dict[str, float]:
    """The median seconds between what writer and consumer have noted of the same changes."""
    begun = [came - begun for (begun, _), (_, came) in zip(written, received, strict=True)]
    nanos = {
        _COMMITTED: [came - committed for committed, came in received],
        _BEGUN: begun,
        _ACKNOWLEDGED: [acknowledged - begun for begun, acknowledged in written],
    }
    return {name: statistics.median(values) / _NANOS for name, values in nanos.items()}


def _sync_seconds(directory: Path) -> float:
    """The median seconds of a sync of a file that grows."""
    seconds = []
    with (directory / "synced").open("ab", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
