"""What a thousand idle consumers cost the server."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

from aio_client import StartFrom, connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds, peak_bytes, reset_peak, resident_bytes
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from aio_client import ScanStream
    from benchmarks.bench import Bench
    from scankv.model.scans.scan_spec import ScanSpec

_CONSUMERS: Final = 1000
_ROWS_OF_A_CONSUMER: Final = 200
"""A trial run with few rows has fewer consumers, and measures them for a shorter time."""
_AT_ONCE: Final = 20
_WINDOW_SECONDS: Final = 10.0
"""Enough for two heartbeats of each consumer."""
_MEBIBYTE: Final = 1 << 20


class ConsumerClients:
    """Consumers with a connection each. One client connects first, so that idle memory includes the open bucket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._heartbeats = 0

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def follow(self, count: int, server: int, seconds: float) -> tuple[float, int]:
        """Starts consumers and measures them.

        Args:
            count: The number of consumers.
            server: The process id of the server.
            seconds: How long to measure.

        Returns:
            The server's processor time, in seconds per second, and the number of heartbeats.
        """
        return self._runner.run(self._follow(count, server, seconds))

    async def _open(self) -> None:
        client = await self._stack.enter_async_context(connect(self._url))
        table = await client.table(t4.TABLE)
        await table.stats()  # opens the bucket
        self._changes = table.changes(StartFrom.LATEST)

    async def _follow(self, count: int, server: int, seconds: float) -> tuple[float, int]:
        tasks = []
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            specs = [self._changes.with_consumer_id(f"consumer-{number}").spec for number in numbers]
            streams = await asyncio.gather(*map(self._start_stream, specs))
            tasks += [asyncio.create_task(self._read(stream)) for stream in streams]
        try:
            # Lets the server finish the work of opening the streams.
            await asyncio.sleep(1.0)
            heartbeats, began = self._heartbeats, cpu_seconds(server)
            await asyncio.sleep(seconds)
            share, heartbeats = (cpu_seconds(server) - began) / seconds, self._heartbeats - heartbeats
            if ended := [task for task in tasks if task.done()]:
                raise RuntimeError(f"{len(ended)} consumers ended early") from ended[0].exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return share, heartbeats

    async def _start_stream(self, spec: ScanSpec) -> ScanStream:
        client = await self._stack.enter_async_context(connect(self._url))
        return await self._stack.enter_async_context(client.scan(spec).stream())

    async def _read(self, stream: ScanStream) -> None:
        stream.on_heartbeat(self._count_heartbeat)
        await anext(stream)
        raise RuntimeError("a consumer received a change, although nothing was written")

    def _count_heartbeat(self) -> None:
        self._heartbeats += 1


def run(bench: Bench) -> Result:
    """Starts a new server with all consumers for each run."""
    _allow_files()
    count = min(_CONSUMERS, bench.rows // _ROWS_OF_A_CONSUMER)
    seconds = _WINDOW_SECONDS if count == _CONSUMERS else 1.0
    found = [_follow(bench, count, seconds, number) for number in range(bench.runs)]
    grown, shares, heartbeats, resident = (Spread.of(values) for values in zip(*found, strict=True))
    work = f"{count:,} idle consumers, each with its own connection: server"
    return Result(
        figures=[
            Figure(
                name="consumers_memory",
                work=f"{work} memory",
                against="above idle",
                unit="MiB",
                spread=grown,
                at_most=200,
            ),
            Figure(
                name="consumers_cpu",
                work=f"{work} processor time",
                against="one core",
                unit="%",
                spread=shares,
                at_most=5,
            ),
        ],
        tables=[
            ResultTable(
                f"{count:,} idle consumers",
                ("", "median", "least", "greatest"),
                [
                    ("heartbeats per second, of all", heartbeats.median, heartbeats.least, heartbeats.greatest),
                    ("resident memory at the end, MiB above idle", resident.median, resident.least, resident.greatest),
                ],
            )
        ],
        notes=[
            "Idle consumers: a fresh server for each run. Idle is its resident memory with the bucket open and one "
            "client. The memory is the kernel's peak value (VmHWM), so it includes the work of opening the streams. "
            f"The processor time covers {seconds:g} seconds in which nothing is written and all consumers receive "
            "heartbeats.",
        ],
    )


def _follow(bench: Bench, count: int, seconds: float, number: int) -> tuple[float, float, float, float]:
    """Returns the peak memory above idle in MiB, the processor time in %, heartbeats/s, and the memory at the end."""
    data = bench.store.copy(f"consumers-{number}")
    with BenchmarkServer(data) as server, Worker(ConsumerClients, server.url) as consumers:
        consumers.wait_ready()
        reset_peak(server.pid)
        idle = resident_bytes(server.pid)
        share, heartbeats = consumers.call(ConsumerClients.follow, count, server.pid, seconds)
        grown = (peak_bytes(server.pid) - idle) / _MEBIBYTE
        resident = (resident_bytes(server.pid) - idle) / _MEBIBYTE
    progress(f"  run {number + 1} of {bench.runs}: {grown:.1f} MiB above idle, {100 * share:.1f} % of a core")
    return grown, 100 * share, heartbeats / seconds, resident


def _allow_files() -> None:
    """Raises the limit of open files, which child processes inherit, to the maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
