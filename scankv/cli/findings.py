"""What `doctor` says about one property of a host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HostVerdict(StrEnum):
    """How a property of a host is for a server."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one property of a host.

    Attributes:
        check: What was checked, as in `open files`.
        verdict: Whether it is in order.
        found: What was found.
        reason: Why it matters.
        advice: What to change: a command, or a sentence. Empty if it is in order.
    """

    check: str
    verdict: HostVerdict
    found: str
    reason: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One property to judge: its name, and why it matters."""

    name: str
    reason: str

    def ok(self, found: str) -> Finding:
        """Returns that it is in order."""
        return Finding(check=self.name, verdict=HostVerdict.OK, found=found, reason=self.reason)

    def warn(self, found: str, advice: str) -> Finding:
        """Returns that it should be changed."""
        return Finding(check=self.name, verdict=HostVerdict.WARN, found=found, reason=self.reason, advice=advice)

    def fail(self, found: str, advice: str) -> Finding:
        """Returns that it must be changed: a server does not start, or loses data or speed that it promises."""
        return Finding(check=self.name, verdict=HostVerdict.FAIL, found=found, reason=self.reason, advice=advice)

    def unknown(self, found: str, advice: str) -> Finding:
        """Returns that it could not be read. The advice says how to look."""
        return Finding(check=self.name, verdict=HostVerdict.UNKNOWN, found=found, reason=self.reason, advice=advice)


def mebibytes(size: int) -> str:
    """Formats a size in MiB, rounded down."""
    return f"{size >> 20:,} MiB"
