"""Describes the machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_LIBRARIES = ("pyarrow", "grpcio", "protobuf", "rocksdict", "numpy", "google-crc32c")


def describe() -> dict[str, str]:
    """Returns processor, memory, kernel, Python and library versions, and the load of the machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{memory:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: metadata.version(name) for name in _LIBRARIES},
        "load average at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
