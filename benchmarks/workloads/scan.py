"""Compares a full scan of T4 with an in-process loop and with Arrow Flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, paired_ratios, run_interleaved
from benchmarks.readers.arrow_flight import FlightReader, FlightServer
from benchmarks.readers.loop import LoopReader
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_WORK = "full scan, one stream, the client receives Arrow over TCP"
_LOOP, _SCANKV, _FLIGHT = "loop over db.values()", "ScanKV", "Arrow Flight"


def run(bench: Bench) -> Result:
    """Reads T4 with three readers in turn."""
    store = bench.store
    with (
        Worker(LoopReader, store.copy("loop")) as loop,
        BenchmarkServer(store.data) as server,
        Worker(ClientReader, server.url) as scankv,
        Worker(FlightServer, store.copy("flight")) as flight_server,
        Worker(FlightReader, flight_server.call(FlightServer.url)) as flight,
    ):
        rates = run_interleaved(
            bench.runs,
            {
                _LOOP: lambda: loop.call(LoopReader.read).check_rows(store.rows),
                _SCANKV: lambda: scankv.call(ClientReader.read).check_rows(store.rows),
                _FLIGHT: lambda: flight.call(FlightReader.read).check_rows(store.rows),
            },
        )
    return Result(
        figures=[
            Figure(
                name="scan_vs_loop",
                work=_WORK,
                against="looping over `db.values()` in-process, decoding nothing",
                unit="ratio",
                spread=paired_ratios(rates[_SCANKV], rates[_LOOP]),
                at_least=0.60,
            ),
            Figure(
                name="scan_vs_flight",
                work="the same",
                against="Arrow Flight `DoGet` over the same store and decoder",
                unit="ratio",
                spread=paired_ratios(rates[_SCANKV], rates[_FLIGHT]),
                at_least=1.0,
            ),
        ],
        tables=[rates_table("Full scan", {name: Spread.of(values) for name, values in rates.items()})],
        notes=[
            "The three readers take turns, after one round that does not count. All three open the same table files "
            "(hard links), which were flushed and compacted before, with the same RocksDB options. Each has its own "
            "block cache, which scans do not fill, so every byte is read from the page cache and decompressed.",
            "The loop runs in a process that has the store open and does nothing else. ScanKV and Flight each have a "
            "server process and a client process, which share the machine's cores. Both stream chunks of the same size "
            "(8,192 rows), and both clients open every batch and count its rows. Only ScanKV's client also validates "
            "the batches and compares a checksum.",
        ],
    )
