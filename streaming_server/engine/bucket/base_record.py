"""What the columnar base of one bucket has cost, and why there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BaseRecord:
    """What keeping the base of a bucket has cost since the start of the server, and what it has to be kept for.

    Attributes:
        wanted: Whether a scan or a snapshot was about to read a base since the last one was begun.
        changed_bytes: Bytes of the keys and rows that were written since the base, or since the one that was lost.
        base_bytes: Bytes of the files of the last base that there was; 0 where there was none.
        cut_millis: When that one was begun, in milliseconds since 1970 UTC.
        builds: Bases that were built.
        cpu_seconds: What all building took, of one core; also where no base came of it.
        written_bytes: Bytes of all bases that were built.
        last_cpu_seconds: What building the last one took.
        last_written_bytes: Bytes of the files of that.
        lost: Why the base before is read no more, in words; empty while there is one, or was none.
        waits: Why none is built now, in words.
        is_on_disk: Whether files of one that is read no more are still there.
    """

    wanted: bool = False
    changed_bytes: int = 0
    base_bytes: int = 0
    cut_millis: int = 0
    builds: int = 0
    cpu_seconds: float = 0.0
    written_bytes: int = 0
    last_cpu_seconds: float = 0.0
    last_written_bytes: int = 0
    lost: str = ""
    waits: str = "it was not looked at yet"
    is_on_disk: bool = False

    @property
    def unused_reason(self) -> str:
        """Why there is no base that scans read, in words."""
        return "; ".join(filter(None, (self.lost, self.waits)))

    def adopt(self, base_bytes: int, cut_millis: int) -> None:
        """A base of these files is read from now on."""
        self.base_bytes, self.cut_millis = base_bytes, cut_millis
        self.lost = self.waits = ""
        self.is_on_disk = False
