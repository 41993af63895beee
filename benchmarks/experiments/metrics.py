"""What metrics cost: the processor time of scans and of reads by key, with and without a scrape every second."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.few_rows_caller import GET, FewRowsCaller
from benchmarks.measure import CpuRounds
from benchmarks.proc import cpu_seconds
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bench import Bench

_SCRAPE_SECONDS: Final = 1.0
_RUN_SECONDS: Final = 3.0
_KEYS: Final = 20_000
_SCRAPES: Final = 20


def run(bench: Bench) -> Result:
    """Scans T4 and reads rows by their keys, in turn without and with scrapes, on one server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with (
        BenchmarkServer(bench.store.data, metrics_port=port) as server,
        Worker(ClientReader, server.url) as reader,
        Worker(FewRowsCaller, server.url, server.pid, _KEYS) as caller,
    ):

        def scan() -> float:
            rows, until = 0, time.monotonic() + _RUN_SECONDS
            while time.monotonic() < until:
                rows += reader.call(ClientReader.read).check_rows(bench.rows).rows
            return rows

        def get() -> float:
            return float(caller.call(FewRowsCaller.measure, GET, _RUN_SECONDS).calls)

        def scraped_scan() -> float:
            with _scraping(port):
                return scan()

        def scraped_get() -> float:
            with _scraping(port):
                return get()

        scrape = _cpu_of_a_scrape(server.pid, port)
        one_get = caller.call(FewRowsCaller.measure, GET, _RUN_SECONDS).cpu_per_call
        cpu = CpuRounds(
            bench.runs,
            {
                "scan": ((server.pid, reader.pid), scan),
                "scraped_scan": ((server.pid, reader.pid), scraped_scan),
                "get": ((server.pid, caller.pid), get),
                "scraped_get": ((server.pid, caller.pid), scraped_get),
            },
        )
    return Result(
        figures=[
            Figure(
                name="metrics_scan",
                work="a full scan while metrics are read every second",
                against="the same scan while they are not",
                unit="ratio",
                spread=cpu.ratios("scraped_scan", "scan"),
                at_most=1.02,
            ),
            Figure(
                name="metrics_get",
                work="`get` while metrics are read every second",
                against="the same while they are not",
                unit="ratio",
                spread=cpu.ratios("scraped_get", "get"),
                at_most=1.05,
            ),
        ],
        tables=[
            ResultTable(
                "Processor time",
                ("what", "ms"),
                [("reading the metrics of two tables, at the server", 1e3 * scrape), ("one `get`", 1e3 * one_get)],
            )
        ],
        notes=[
            f"Metrics: processor time of the server and the client for each row and each `get`, in runs of "
            f"{_RUN_SECONDS:g} s, on {os.cpu_count()} processors.",
        ],
    )


def _cpu_of_a_scrape(server: int, port: int) -> float:
    """Returns the processor seconds that the server takes for one scrape while it does nothing else."""
    _scrape(port)
    before = cpu_seconds(server)
    for _ in range(_SCRAPES):
        _scrape(port)
    return (cpu_seconds(server) - before) / _SCRAPES


def _scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        answer.read()


@contextmanager
def _scraping(port: int) -> Iterator[None]:
    """Reads the metrics at once and then every second, in a thread of this process, whose time does not count."""
    done = threading.Event()

    def scrape() -> None:
        while True:
            _scrape(port)
            if done.wait(_SCRAPE_SECONDS):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
