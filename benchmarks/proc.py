"""The memory and processor time of a process, as Linux reports them."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None)


def resident_bytes(pid: int) -> int:
    """Returns the current resident memory of the process."""
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Returns the peak resident memory since the start of the process or the last `reset_peak`."""
    return _status_bytes(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    """Resets the peak that `peak_bytes` returns to the current memory; see clear_refs in proc(5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of all threads of the process, including ended threads, in nanosecond resolution."""
    clock = ctypes.c_int()
    if error := _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error), f"process {pid}")
    return time.clock_gettime(clock.value)


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no {field}")
