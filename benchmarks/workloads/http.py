"""How much slower scans and gets over gRPC become while browsers use the HTTP gateway, well or badly."""

from __future__ import annotations

import asyncio
import http.client
import select
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, Timing, paired_ratios, progress
from benchmarks.proc import cpu_seconds
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from benchmarks.bench import Bench

_SECONDS: Final = 1.0  # of scans, and then of gets
_STALLED, _HALVES, _WATCHERS = 20, 20, 50
_WIDE: Final = "bench.wide"
_WIDE_ROWS, _WIDE_BYTES = 40_000, 1000  # more than the buffers between a server and a reader
_TIMEOUT_SECONDS: Final = 20.0  # shorter than the gateway bears with a reader that takes nothing
_IDLE_SECONDS: Final = 0.5
_PIECE: Final = 1 << 20
_MILLIS: Final = 1000.0
_CPU_AT_MOST: Final = 1.1
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLRDHUP


class GrpcRound(NamedTuple):
    """What one client over gRPC got.

    Attributes:
        rate: The rows per second of full scans.
        cpu: The processor time of the server and the client for a row of them, in seconds.
        took: The 99th percentile of the seconds of a get.
    """

    rate: float
    cpu: float
    took: float


class GrpcReader(ClientReader):
    """A client over gRPC that scans T4, and then gets single rows of it."""

    def scan(self, rows: int) -> Timing:
        """Scans T4, which has so many rows, again and again."""
        timings = [self.read().check_rows(rows)]
        while (seconds := sum(each.seconds for each in timings)) < _SECONDS:
            timings.append(self.read().check_rows(rows))
        return Timing(sum(each.rows for each in timings), seconds)

    def get(self) -> float:
        """Gets rows one after another. Returns the 99th percentile of the seconds."""
        return self._runner.run(self._get())

    async def _get(self) -> float:
        took: list[float] = []
        until = time.perf_counter() + _SECONDS
        while (started := time.perf_counter()) < until:
            await self._table.get(len(took) % 1000)
            took.append(time.perf_counter() - started)
        return sorted(took)[len(took) * 99 // 100]

    def wait_stalled(self) -> None:
        """Waits until all buffers are full: all downloads are live scans, none of which has gone on for a while."""
        self._runner.run(_wait_until(self._are_stalled))

    async def _are_stalled(self) -> bool:
        idle = [scan.idle for scan in await self._client.live_scans()]
        return len(idle) == _STALLED and min(idle) > _IDLE_SECONDS

    def wait_watching(self) -> None:
        """Waits until all watches wait at the server. Their first answers took processor time."""
        self._runner.run(_wait_until(self._are_watching))

    async def _are_watching(self) -> bool:
        return (await self._client.stats()).waiting_calls >= _WATCHERS


async def _wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while True:
            if await condition():
                return
            await asyncio.sleep(_IDLE_SECONDS / 10)


class Browsers:
    """Many connections to an HTTP gateway, in one process. Each method begins something, and `leave` ends it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = ExitStack()
        self._idle: list[socket.socket] = []
        self._leaving = threading.Event()
        self._taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stall(self) -> None:
        """Begins downloads without reading them."""
        for _ in range(_STALLED):
            self._open(f"GET /v1/tables/{_WIDE}/scan HTTP/1.1\r\nHost: localhost\r\n\r\n", until=b"\r\n\r\n")

    def halve(self) -> None:
        """Begins requests without ending them, which the gateway bears with for ten seconds."""
        for _ in range(_HALVES):
            self._open("GET /v1/tables HTTP/1.1\r\nHost: localhost\r\nX-Half: ")

    def watch(self) -> None:
        """Begins streams of events of a table that does not change, and reads the first event of each."""
        path = f"/v1/tables/{_WIDE}/watch/rows?key=1"
        for _ in range(_WATCHERS):
            self._open(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n", until=b"data: ")

    def download(self) -> None:
        """Downloads T4 again and again, as fast as the gateway sends it."""
        reading = threading.Thread(target=self._download)
        self._leaving.clear()
        reading.start()
        self._stack.callback(reading.join)
        self._stack.callback(self._leaving.set)

    def leave(self) -> int:
        """Ends what was begun. Returns how many idle connections the gateway has kept, plus the bytes downloaded."""
        poll = select.poll()
        for connection in self._idle:
            poll.register(connection, _GONE)
        kept = len(self._idle) - len(poll.poll(0))
        self._idle.clear()
        self._stack.close()
        taken, self._taken = self._taken, 0
        return kept + taken

    def _open(self, request: str, until: bytes = b"") -> None:
        connection = self._stack.enter_context(socket.socket())
        # Small, so that little of an answer is on the way.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(("127.0.0.1", self._port))
        connection.sendall(request.encode())
        data = b""
        while until not in data:
            part = connection.recv(512)
            if not part:
                raise RuntimeError(f"the gateway has ended a connection: {data!r}")
            data += part
        self._idle.append(connection)

    def _download(self) -> None:
        while not self._leaving.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
            connection.request("GET", f"/v1/tables/{t4.TABLE}/scan?format=arrow&limit=10000000")
            with connection.getresponse() as response:
                if response.status != http.HTTPStatus.OK:
                    return  # Nothing was taken, so the run is no result.
                while not self._leaving.is_set() and (part := response.read(_PIECE)):
                    self._taken += len(part)
            connection.close()


class BrowserLoad(NamedTuple):
    """What browsers do, and what it may cost others.

    Attributes:
        name: Its name in those of figures.
        work: What they do.
        begin: Begins it.
        settle: Waits until it is what it shall be. None: at once.
        least: What `Browsers.leave` returns at least if it has lasted.
        rate_at_least: The least rate of scans, as a ratio to that without HTTP.
        took_at_most: The greatest time of gets, as a ratio to that without HTTP.
        reads: Whether the server reads rows for it in the meantime, which takes processor time.
    """

    name: str
    work: str
    begin: Callable[[Browsers], None]
    settle: Callable[[GrpcReader], None] | None
    least: int
    rate_at_least: float
    took_at_most: float
    reads: bool = False


_NONE: Final = "no HTTP"
_STALL: Final = f"{_STALLED} stalled downloads and {_HALVES} half-sent requests"
_WATCH: Final = f"{_WATCHERS} watchers of an unchanged table"
_LOADS: Final = (
    BrowserLoad("stalled", _STALL, Browsers.stall, GrpcReader.wait_stalled, _STALLED + _HALVES, 0.9, 2.0),
    BrowserLoad("watchers", _WATCH, Browsers.watch, GrpcReader.wait_watching, _WATCHERS, 0.9, 2.0),
    BrowserLoad("download", "one download at full speed", Browsers.download, None, 1, 0.33, 10.0, reads=True),
)


def run(bench: Bench) -> Result:
    """Measures scans and gets without HTTP, and then with each kind of use, in rounds."""
    port = _free_port()
    with (
        BenchmarkServer(bench.store.copy("http"), http_port=port) as server,
        Worker(Browsers, port) as browsers,
        Worker(GrpcReader, server.url) as reader,
    ):
        _fill(server.url)
        found: dict[str, list[GrpcRound]] = {name: [] for name in (_NONE, *(load.work for load in _LOADS))}
        for number in range(-1, bench.runs):
            for load in (None, *_LOADS):
                each, work = _measure(server, reader, bench.rows, browsers, load), load.work if load else _NONE
                if number >= 0:
                    found[work].append(each)
                    progress(
                        f"  run {number + 1} of {bench.runs}: {work:<48} {each.rate:>12,.0f} rows/s, "
                        f"{each.cpu * 1e6:.2f} s of processor time for 1,000,000 rows, get {_MILLIS * each.took:.2f} ms"
                    )
    return Result(
        figures=[figure for load in _LOADS for figure in _figures(load, found[load.work], found[_NONE])],
        tables=[
            ResultTable(
                "Scans and gets over gRPC beside the HTTP gateway",
                ("", "scan, rows/s", "processor time of 1,000,000 rows in s", "p99 of get in ms"),
                [
                    (name, Spread.of(rates).median, 1e6 * Spread.of(cpu).median, _MILLIS * Spread.of(took).median)
                    for name, each in found.items()
                    for rates, cpu, took in (zip(*each, strict=True),)
                ],
            )
        ],
        notes=[
            f"HTTP: one client over gRPC scans T4 for {_SECONDS:g} second, and then gets single rows as long. The "
            "gateway is a process of its own, and so are the browsers. All share the cores of the machine, so on few "
            "cores most of what a download at full speed costs is the processor time of the gateway and the browser. "
            "Downloads count as stalled once no buffer between the server and the browser takes any more, and watchers "
            "once all of them wait for a change.",
        ],
    )


def _figures(load: BrowserLoad, beside: list[GrpcRound], alone: list[GrpcRound]) -> list[Figure]:
    against = "the same without HTTP"
    rate = Figure(
        name=f"http_{load.name}_scan",
        work=f"full scan over gRPC beside {load.work}, rows/s",
        against=against,
        unit="ratio",
        spread=paired_ratios([each.rate for each in beside], [each.rate for each in alone]),
        at_least=load.rate_at_least,
    )
    cpu = Figure(
        name=f"http_{load.name}_cpu",
        work="the same: processor time of the server and the client over gRPC",
        against=against,
        unit="times",
        spread=paired_ratios([each.cpu for each in beside], [each.cpu for each in alone]),
        at_most=_CPU_AT_MOST,
    )
    took = Figure(
        name=f"http_{load.name}_get",
        work=f"p99 of get over gRPC beside {load.work}",
        against=against,
        unit="times",
        spread=paired_ratios([each.took for each in beside], [each.took for each in alone]),
        at_most=load.took_at_most,
    )
    return [rate, took] if load.reads else [rate, cpu, took]


def _measure(
    server: BenchmarkServer, reader: Worker[GrpcReader], rows: int, browsers: Worker[Browsers], load: BrowserLoad | None
) -> GrpcRound:
    if load is not None:
        browsers.call(load.begin)
        if load.settle is not None:
            reader.call(load.settle)
        # Last, because the gateway does not wait for them for long.
        if load.work == _STALL:
            browsers.call(Browsers.halve)
    reader.wait_ready()
    before = cpu_seconds(server.pid) + cpu_seconds(reader.pid)
    scanned = reader.call(GrpcReader.scan, rows)
    cpu = cpu_seconds(server.pid) + cpu_seconds(reader.pid) - before
    took = reader.call(GrpcReader.get)
    if load is not None and (left := browsers.call(Browsers.leave)) < load.least:
        raise RuntimeError(f"{load.work}: only {left} of {load.least} lasted")
    return GrpcRound(scanned.rate, cpu / scanned.rows, took)


def _fill(url: str) -> None:
    with connect(url) as client:
        rows = pa.table({"k": range(_WIDE_ROWS), "text": ["x" * _WIDE_BYTES] * _WIDE_ROWS})
        client.create_table(_WIDE, rows.schema, primary_key=["k"]).upsert(rows)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
