"""What the columnar bases of one bucket have cost, and why it has none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BaseRecord:
    """What the bases of a bucket have cost since the start of the server, and why one is wanted or missing.

    Attributes:
        wanted: Whether a scan or a snapshot has asked for a base since the last build began.
        changed_bytes: The bytes of keys and rows written since the base, or since the one that was lost.
        base_bytes: The bytes of the files of the last base. 0: no base has existed.
        cut_millis: When the build of that base began, in milliseconds since 1970 UTC.
        builds: The number of builds.
        drops: How often a base was dropped for lack of memory or disk space.
        cpu_seconds: The processor time of all builds, including failed ones.
        written_bytes: The bytes of all bases that were built.
        last_cpu_seconds: The processor time of the last build.
        last_written_bytes: The bytes of the base of the last build.
        lost: The human-readable reason why scans stopped reading the previous base. Empty while a base exists, and
            before the first base.
        waits: The human-readable reason why no base is being built.
        is_on_disk: Whether files of a base that is no longer read are still on disk.
    """

    wanted: bool = False
    changed_bytes: int = 0
    base_bytes: int = 0
    cut_millis: int = 0
    builds: int = 0
    drops: int = 0
    cpu_seconds: float = 0.0
    written_bytes: int = 0
    last_cpu_seconds: float = 0.0
    last_written_bytes: int = 0
    lost: str = ""
    waits: str = "the server has not checked yet whether to build one"
    is_on_disk: bool = False

    @property
    def unused_reason(self) -> str:
        """The human-readable reason why scans read no base."""
        return "; ".join(filter(None, (self.lost, self.waits)))

    def adopt(self, base_bytes: int, cut_millis: int) -> None:
        """Records that scans read a new base from now on."""
        self.base_bytes, self.cut_millis = base_bytes, cut_millis
        self.lost = self.waits = ""
        self.is_on_disk = False
