"""What a full scan costs the server in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, progress
from benchmarks.proc import peak_bytes, reset_peak, resident_bytes
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.store import Store

_MEBIBYTE = 1 << 20


def run(bench: Bench) -> Result:
    """Starts a server for each run, and compares its peak over its first scan with its memory before."""
    growth = []
    for number in range(bench.runs):
        growth.append(_growth_bytes(bench.store) / _MEBIBYTE)
        progress(f"  run {number + 1} of {bench.runs}: {growth[-1]:.1f} MiB above idle")
    return Result(
        figures=[
            Figure(
                name="server_peak_memory",
                work=f"server memory over a scan of {bench.rows:,} rows",
                against="above idle",
                unit="MiB",
                spread=Spread.of(growth),
                at_most=64,
            )
        ],
        notes=[
            "Memory: a fresh server for each run; idle is its resident memory when a client is connected and nothing "
            "was scanned yet, so opening the bucket counts. The peak is what the kernel kept (VmHWM), not sampled.",
        ],
    )


def _growth_bytes(store: Store) -> int:
    with BenchmarkServer(store.data) as server, Worker(ClientReader, server.url) as reader:
        reader.wait_ready()
        reset_peak(server.pid)
        idle = resident_bytes(server.pid)
        reader.call(ClientReader.read).checked(store.rows)
        return peak_bytes(server.pid) - idle
