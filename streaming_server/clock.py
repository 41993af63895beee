"""The clocks of a server. Only this module reads the clocks of the machine.

A server uses three times; docs/operations/clocks.md says which of its parts uses which.

- Monotonic time, for everything kept in memory: leases, locks, sessions. A restart begins it again.
- Service time, for everything on disk that expires: how long servers have run on a data directory. It cannot be set,
  and a restart never advances it, so nothing expires before its time to live has passed.
- Commit time, for data: the wall clock, except that it never goes back and never follows a jump.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from scankv.model.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.shared_times import SharedTimes

MAX_DOUBTFUL_SPANS: Final = 16
"""The most spans of doubtful commit times that are remembered: the latest ones."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NOTICEABLE_NANOS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_log: Final = logging.getLogger(__name__)


class MachineClocks(Protocol):
    """The clocks of the machine. Thread-safe."""

    @property
    def boot(self) -> str:
        """Identifies the boot from which `uptime_nanos` counts; empty if the system does not report it."""

    def monotonic(self) -> float:
        """Returns seconds since an unknown instant. They cannot be set, and pause while the machine is suspended."""

    def uptime_nanos(self) -> int:
        """Returns the nanoseconds since the machine booted, including suspended time. It cannot be set."""

    def wall_nanos(self) -> int:
        """Returns the nanoseconds since 1970 by the wall clock, which may be set at any time."""


class SystemClocks:
    """The clocks of the operating system."""

    def __init__(self) -> None:
        try:
            self.boot = _BOOT_ID.read_text().strip()
        except OSError:
            self.boot = ""

    def monotonic(self) -> float:
        """See `MachineClocks`."""
        return time.monotonic()

    def uptime_nanos(self) -> int:
        """See `MachineClocks`."""
        return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def wall_nanos(self) -> int:
        """See `MachineClocks`."""
        return time.time_ns()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLimits:
    """How far the wall clock is trusted.

    Attributes:
        max_step_seconds: The largest step forward of the wall clock that commit time follows; a larger step is a jump.
        trust_seconds: Commit time follows a jump forward once the wall clock has kept it for as long as the jump is
            wide, or for this long if the jump is wider.
    """

    max_step_seconds: float = 300.0
    trust_seconds: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTimes:
    """The stored clocks of a data directory, in nanoseconds.

    Attributes:
        service: How long servers have run on the directory.
        commit: The commit time.
        wall: The wall clock at the same instant, since 1970.
        uptime: The uptime of the machine at the same instant.
        boot: The boot from which `uptime` and `jumped` count.
        jumped: The uptime when the wall clock last jumped.
        agreed: The last commit time at which commit time and wall clock agreed.
        doubtful: The spans of commit time, ascending, in which a time given by a client may mean another instant.
    """

    service: int
    commit: int
    wall: int
    uptime: int
    boot: str
    jumped: int
    agreed: int
    doubtful: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StoredTimes:
        """Reads the result of `to_json`."""
        return cls(**{**stored, "doubtful": tuple((start, end) for start, end in stored["doubtful"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStatus:
    """The state of the clocks, for reports.

    Attributes:
        offset_millis: How far the wall clock is ahead of commit time; negative when it is behind.
        jumps: How often the wall clock has jumped since the server started.
    """

    offset_millis: int
    jumps: int


def next_commit_time(commit: int, elapsed: int, wall: int, max_step: int) -> int:
    """Returns the commit time after some time has passed, all in nanoseconds.

    Commit time follows the wall clock forward, in steps of at most `max_step`. While it is ahead of the wall clock, it
    advances at half the pace until the two meet, so that commits in the meantime still get different times. After the
    wall clock has jumped forward, commit time advances at its own pace.
    """
    expected = commit + elapsed
    if wall < expected:
        return max(commit + elapsed // 2, wall)
    return wall if wall - expected <= max_step else expected


class ServerClock:
    """The one clock of a server. Thread-safe.

    Args:
        machine: The clocks of the machine. None: the real ones.
        stored: The times that an earlier server has stored in the data directory. None: it has none.
        limits: How far the wall clock is trusted.
        shared: The commit times of all processes of the server, by which none falls behind another. None: the server is
            one process.
    """

    def __init__(
        self,
        machine: MachineClocks | None = None,
        stored: StoredTimes | None = None,
        limits: ClockLimits | None = None,
        shared: SharedTimes | None = None,
    ) -> None:
        self._shared = shared
        self._machine = SystemClocks() if machine is None else machine
        limits = ClockLimits() if limits is None else limits
        self._max_step = int(limits.max_step_seconds * 1e9)
        self._trust = int(limits.trust_seconds * 1e9)
        self._lock = threading.Lock()
        self._jumps = 0
        self._doubtful: tuple[tuple[int, int], ...] = ()
        self._counted = self._machine.monotonic()
        uptime, wall = self._machine.uptime_nanos(), self._machine.wall_nanos()
        self._wall, self._uptime, self._jumped = wall, uptime, uptime
        self._commit = self._agreed = wall
        # Rule: time during which no server ran expires nothing.
        self._service = 0 if stored is None else stored.service
        if stored is not None:
            self._take_over(stored)
        self._offset = self._wall - self._commit
        self._advance()
        self._stored_at = self._commit, self._uptime

    def _take_over(self, stored: StoredTimes) -> None:
        self._commit, self._agreed, self._doubtful = stored.commit, stored.agreed, stored.doubtful
        elapsed = self._uptime - stored.uptime
        if stored.boot and stored.boot == self._machine.boot and elapsed >= 0:
            # At its own pace, since a server that has crashed may have answered with any time up to this one.
            self._commit += elapsed
            self._wall, self._jumped = stored.wall + elapsed, stored.jumped
            return
        # Only the wall clock can tell how long the machine was off.
        if self._wall >= stored.commit:
            if stored.commit - stored.wall > self._max_step:
                self._doubt(stored.agreed, stored.commit)
            elif stored.wall - stored.commit > self._max_step:
                self._doubt(stored.commit, stored.wall)
            if self._wall - stored.commit > self._trust:
                _log.warning("by the wall clock, no server ran for %s", _text(self._wall - stored.commit))
            self._commit = self._wall
        elif stored.commit - self._wall > self._max_step:
            self._jumps += 1
            self._report_jump(self._wall - stored.commit)

    def monotonic(self) -> float:
        """Returns monotonic seconds, for everything kept in memory."""
        return self._machine.monotonic()

    def service_micros(self) -> int:
        """Returns service time in microseconds, for everything on disk that expires."""
        with self._lock:
            return self._service_now() // 1000

    def commit_micros(self) -> int:
        """Returns the commit time, in microseconds since 1970. It never decreases."""
        with self._lock:
            self._advance()
            return self._commit // 1000

    def status(self) -> ClockStatus:
        """Reports the state of the clocks."""
        with self._lock:
            self._advance()
            return ClockStatus(offset_millis=(self._wall - self._commit) // 1_000_000, jumps=self._jumps)

    def check_time(self, micros: int, what: str) -> None:
        """Checks that a time given by a client means the instant that the client thinks of.

        Rule: no request silently starts or stops reading at another position than its timestamp says.

        Args:
            micros: The time, in microseconds since 1970.
            what: The name of the time in errors.

        Raises:
            InvalidRequest: The wall clock had jumped around that time, and commit time did not follow it.
        """
        with self._lock:
            self._advance()
            spans = (*self._doubtful, self._open_span())
        for start, end in spans:
            if start < micros * 1000 <= end:
                until = "on" if end == math.inf else f"to {_time_text(int(end))}"
                raise InvalidRequest(
                    f"{what} is at {_time_text(micros * 1000)}, but from {_time_text(start)} {until} commits may have "
                    "wrong times, because the clock of the server's machine has jumped: give log offsets, or a time "
                    "outside of this span"
                )

    def store(self) -> StoredTimes:
        """Returns the times to store for the next server."""
        with self._lock:
            self._advance()
            self._stored_at = self._commit, self._uptime
            return self._times()

    def times(self) -> StoredTimes:
        """Returns the times now, for a backup."""
        with self._lock:
            self._advance()
            return self._times()

    def _times(self) -> StoredTimes:
        return StoredTimes(
            service=self._service_now(),
            commit=self._commit,
            wall=self._wall,
            uptime=self._uptime,
            boot=self._machine.boot,
            jumped=self._jumped,
            agreed=self._agreed,
            doubtful=self._doubtful,
        )

    @property
    def has_stepped(self) -> bool:
        """Whether commit time differs from what a server would compute from the stored times after a crash."""
        with self._lock:
            self._advance()
            commit, uptime = self._stored_at
            worked_out = next_commit_time(commit, self._uptime - uptime, self._wall, self._max_step)
            return abs(self._commit - worked_out) > _NOTICEABLE_NANOS

    def _service_now(self) -> int:
        now = self._machine.monotonic()
        self._service += max(0, int((now - self._counted) * 1e9))
        self._counted = now
        return self._service

    def _advance(self) -> None:
        uptime, wall = self._machine.uptime_nanos(), self._machine.wall_nanos()
        elapsed, before = max(0, uptime - self._uptime), self._offset
        step = wall - (self._wall + elapsed)
        self._wall, self._uptime = wall, uptime
        if abs(step) > self._max_step:
            self._jumped = uptime
            self._jumps += 1
            self._report_jump(step)
        self._commit = next_commit_time(self._commit, elapsed, wall, self._max_step)
        if self._shared is not None:
            # Rule: no process answers with an earlier time than another process has answered with before.
            own, self._commit = self._commit, max(self._commit, self._shared.latest())
            if self._commit - own > self._max_step:
                # Another process was the first to follow a jump forward.
                self._doubt(own, self._commit)
        self._offset = wall - self._commit
        if self._offset > self._max_step and uptime - self._jumped >= min(self._offset, self._trust):
            _log.warning("commit time follows the wall clock again, which was %s ahead", _text(self._offset))
            self._doubt(self._commit, wall)
            self._commit, self._offset = wall, 0
        if abs(self._offset) <= self._max_step:
            if before < -self._max_step:
                self._doubt(self._agreed, self._commit)
            self._agreed = self._commit
        if self._shared is not None:
            self._shared.set(self._commit)

    def _open_span(self) -> tuple[int, float]:
        """Returns the span of commit time that is currently doubtful; empty while commit time and wall clock agree."""
        if self._offset > self._max_step:
            return self._commit, self._wall
        if self._offset < -self._max_step:
            # Assume that the wall clock is right now. Then all commits since `_agreed` have times that are too late.
            return self._agreed, math.inf
        return 0, 0

    def _doubt(self, start: int, end: int) -> None:
        self._doubtful = (*self._doubtful, (start, end))[-MAX_DOUBTFUL_SPANS:]

    def _report_jump(self, step: int) -> None:
        if step > 0:
            _log.error(
                "the wall clock has jumped %s forward: commit time continues at its own pace, and follows the wall "
                "clock once it has kept the jump for %s; correct the wall clock if it is wrong",
                _text(step),
                _text(min(step, self._trust)),
            )
        else:
            _log.error(
                "the wall clock has jumped %s back: commit time does not go back, and advances at half the pace while "
                "it is ahead of the wall clock; correct the wall clock if it is wrong",
                _text(-step),
            )


def _time_text(nanos: int) -> str:
    """Formats a time in UTC, for messages."""
    return (_EPOCH + timedelta(microseconds=nanos // 1000)).isoformat().replace("+00:00", "Z")


def _text(nanos: int) -> str:
    """Formats a duration, for messages."""
    return str(timedelta(seconds=round(nanos / 1e9)))
