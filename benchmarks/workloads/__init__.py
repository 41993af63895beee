"""The figures that ScanKV is held to, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.workloads import latency, load, memory, pin, scan, shares, upsert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Benchmark

WORKLOADS: Final[Mapping[str, Benchmark]] = {
    "scan": scan.run,
    "latency": latency.run,
    "memory": memory.run,
    "shares": shares.run,
    "upsert": upsert.run,
    "load": load.run,
    "pin": pin.run,
}
