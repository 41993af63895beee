"""Clocks that a test sets, for a server in its own process."""

from __future__ import annotations

from streaming_server.clock import MachineClocks

DAY = 86_400.0
HOUR = 3600.0
START = 1_700_000_000 * 1_000_000_000


class FakeClocks(MachineClocks):
    """The clocks of a machine on which time passes, and on which the wall clock is set, when the test says so."""

    def __init__(self) -> None:
        self._boot = 1
        self._nanos = 5_000_000_000
        self._uptime = self._nanos
        self._wall = START

    def pass_time(self, seconds: float) -> None:
        """Lets time pass on all clocks."""
        nanos = round(seconds * 1e9)
        self._nanos += nanos
        self._uptime += nanos
        self._wall += nanos

    def set_wall(self, by: float) -> None:
        """Sets the wall clock forward by so many seconds, or back."""
        self._wall += round(by * 1e9)

    def suspend(self, seconds: float) -> None:
        """Has the machine sleep."""
        self._uptime += round(seconds * 1e9)
        self._wall += round(seconds * 1e9)

    def reboot(self, away: float = 0.0) -> None:
        """Has the machine start again, after it was off for so many seconds."""
        self._boot += 1
        self._nanos = self._uptime = 1_000_000_000
        self._wall += round(away * 1e9)

    @property
    def wall_micros(self) -> int:
        """The wall clock, in microseconds since 1970."""
        return self._wall // 1000

    @property
    def boot(self) -> str:
        """See `MachineClocks`."""
        return f"boot-{self._boot}"

    def monotonic(self) -> float:
        """See `MachineClocks`."""
        return self._nanos / 1e9

    def uptime_nanos(self) -> int:
        """See `MachineClocks`."""
        return self._uptime

    def wall_nanos(self) -> int:
        """See `MachineClocks`."""
        return self._wall
