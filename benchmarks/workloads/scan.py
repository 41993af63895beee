"""A full scan of T4 against the loop in-process and against Arrow Flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bench import Figure, Result, rates_table
from benchmarks.measure import Spread, interleaved, paired_ratios
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
    """Reads T4 in three ways, in turn."""
    store = bench.store
    with (
        Worker(LoopReader, store.copy("loop")) as loop,
        BenchmarkServer(store.data) as server,
        Worker(ClientReader, server.url) as scankv,
        Worker(FlightServer, store.copy("flight")) as flight_server,
        Worker(FlightReader, flight_server.call(FlightServer.url)) as flight,
    ):
        rates = interleaved(
            bench.runs,
            {
                _LOOP: lambda: loop.call(LoopReader.read).checked(store.rows),
                _SCANKV: lambda: scankv.call(ClientReader.read).checked(store.rows),
                _FLIGHT: lambda: flight.call(FlightReader.read).checked(store.rows),
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
            "(hard links), flushed and compacted before, with the same RocksDB options and a block cache of their own "
            "that a scan does not fill; so every byte comes from the page cache of the system, through decompression.",
            "The loop runs in a process that has the store open and does nothing else. ScanKV and Flight each have a "
            "server process and a client process, which share the machine's cores. Both stream chunks of the same size "
            "(8,192 rows), and both clients open every batch and count its rows. ScanKV's client moreover validates "
            "the batches and compares a checksum; Flight's does neither.",
        ],
    )
