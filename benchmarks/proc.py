"""The memory and processor time of a process, as Linux reports them."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
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


def tree_ids(pid: int) -> list[int]:
    """Returns the ids of the process and of all its live descendants."""
    parents: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        # A process may end between the two steps.
        with suppress(OSError):
            parents.setdefault(int(_stat_fields(file)[1]), []).append(int(file.parent.name))
    found = [pid]
    for each in found:  # grows
        found += parents.get(each, [])
    return found


def tree_cpu_seconds(pid: int) -> float:
    """Returns the processor time of the process and all its descendants, ended ones included, in steps of 10 ms."""
    ticks = 0
    for each in tree_ids(pid):
        with suppress(OSError):
            ticks += sum(int(field) for field in _stat_fields(Path(f"/proc/{each}/stat"))[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def tree_bytes(pid: int) -> int:
    """Returns the resident memory of the process and its live descendants; memory that they share counts once."""
    total = 0
    for each in tree_ids(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _stat_fields(file: Path) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third one: the name before them may contain spaces."""
    return file.read_text().rpartition(")")[2].split()
