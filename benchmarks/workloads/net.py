"""What catching up by net changes costs the server in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.measure import Spread, Timing, progress
from benchmarks.proc import peak_bytes, reset_peak, resident_bytes
from benchmarks.readers.changes import ChangesReader
from benchmarks.server import BenchmarkServer
from benchmarks.store import Store
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_MOST_KEYS: Final = 5_000_000
_LEAST_KEYS: Final = 120_000
"""More than a server is behind before it catches up."""
_MEBIBYTE: Final = 1 << 20


def run(bench: Bench) -> Result:
    """Starts a server for each run, and compares its peak while a stream catches up with its memory before."""
    keys = max(_LEAST_KEYS, min(_MOST_KEYS, 5 * bench.rows // 2))
    directory = bench.directory / "net"
    directory.mkdir()
    store = Store(directory, keys)
    found = []
    for number in range(bench.runs):
        growth, timing = _catch_up(store)
        found.append((growth, timing.rate))
        progress(f"  run {number + 1} of {bench.runs}: {growth:.1f} MiB above before, {timing.seconds:.1f} s")
    growths, rates = (Spread.of(values) for values in zip(*found, strict=True))
    return Result(
        figures=[
            Figure(
                name="net_memory",
                work=f"net catch-up over {keys:,} distinct keys: server memory, default settings",
                against="above before",
                unit="MiB",
                spread=growths,
                at_most=128,
            )
        ],
        tables=[
            ResultTable(
                "Net catch-up",
                ("rows/s", "median", "least", "greatest"),
                [(f"net changes of {keys:,} keys", rates.median, rates.least, rates.greatest)],
            )
        ],
        notes=[
            "Net catch-up: T4's shape, every key inserted once, read from the first change on in one stream with "
            "`with_catch_up('net')`. A fresh server for each run; before is its resident memory when the bucket is "
            "open. The peak is what the kernel kept (VmHWM), not sampled.",
        ],
    )


def _catch_up(store: Store) -> tuple[float, Timing]:
    """The server's memory above before at its peak, in MiB, and how long it took."""
    with BenchmarkServer(store.data) as server, Worker(ChangesReader, server.url) as reader:
        reader.call(ChangesReader.read_log, 1)
        reset_peak(server.pid)
        before = resident_bytes(server.pid)
        timing = reader.call(ChangesReader.read_net).checked(store.rows)
        return (peak_bytes(server.pid) - before) / _MEBIBYTE, timing
