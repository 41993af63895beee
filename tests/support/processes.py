"""The memory of a process, from the kernel."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Returns the current resident memory of a process."""
    return _status(pid)["VmRSS"]


def peak_resident_bytes(pid: int) -> int:
    """Returns the peak memory of the process since its start or the last `forget_peak`."""
    return _status(pid)["VmHWM"]


def forget_peak(pid: int) -> None:
    """Resets the peak to the current memory; see `proc_pid_clear_refs(5)`."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}
