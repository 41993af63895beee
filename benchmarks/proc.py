"""The memory and processor time of a process, from Linux's /proc."""

from __future__ import annotations

from pathlib import Path


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
    """Returns the processor time of all live threads, in nanosecond resolution, which `/proc/PID/stat` lacks."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/{pid}/status has no {field}")
