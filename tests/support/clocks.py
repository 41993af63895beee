"""Clocks that a test controls, for a server in the test's process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aio_client import Client, connect
from streaming_server.clock import MachineClocks
from streaming_server.config import ServerConfig
from streaming_server.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable

DAY = 86_400.0
HOUR = 3600.0
SETTINGS: dict[str, Any] = {"log_maintenance_seconds": 3600, "sweep_seconds": 3600, "writer_ttl_seconds": 7200}
START = 1_700_000_000 * 1_000_000_000


class FakeClocks(MachineClocks):
    """The clocks of a machine. Time passes, and the wall clock is set, only when the test calls a method."""

    def __init__(self) -> None:
        self._boot = 1
        self._nanos = 5_000_000_000
        self._uptime = self._nanos
        self._wall = START

    def pass_time(self, seconds: float) -> None:
        """Advances all clocks."""
        nanos = round(seconds * 1e9)
        self._nanos += nanos
        self._uptime += nanos
        self._wall += nanos

    def set_wall(self, by: float) -> None:
        """Sets the wall clock forward by some seconds, or back."""
        self._wall += round(by * 1e9)

    def suspend(self, seconds: float) -> None:
        """Simulates that the machine sleeps."""
        self._uptime += round(seconds * 1e9)
        self._wall += round(seconds * 1e9)

    def reboot(self, away: float = 0.0) -> None:
        """Simulates a reboot of the machine after it was off for some seconds."""
        self._boot += 1
        self._nanos = self._uptime = 1_000_000_000
        self._wall += round(away * 1e9)

    @property
    def wall_micros(self) -> int:
        """Returns the wall clock in microseconds since 1970."""
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


@asynccontextmanager
async def serving(data: Path, machine: FakeClocks, **settings: Any) -> AsyncIterator[tuple[Server, Client]]:
    """Runs a server in this process with the test's clocks. Maintenance runs only when the test calls `look_after`."""
    config = ServerConfig(data=data, port=0, **{**SETTINGS, **settings})
    async with Server(config, clocks=machine) as server, connect(server.address) as client:
        yield server, client


def parts_of(server: Server, name: str) -> list[LiveTable]:
    """Returns a table of a server, or all of its tablets."""
    definition = server._tables.table(name).definition
    return [server._tables.table(each.name) for each in definition.all_tablets or [definition]]


async def look_after(server: Server, name: str) -> None:
    """Runs the maintenance that is due: forgets expired writers and removes old changes."""
    for table in parts_of(server, name):
        for live in table.buckets:
            async with live.mutex:
                await live.open()
            await server._tables._log_maintenance.maintain(table.state, live)
