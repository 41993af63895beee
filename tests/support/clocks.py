"""Clocks that a test sets, for a server in its own process."""

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

DAY = 86_400.0
HOUR = 3600.0
SETTINGS: dict[str, Any] = {"log_maintenance_seconds": 3600, "writer_ttl_seconds": 7200}
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


@asynccontextmanager
async def serving(data: Path, machine: FakeClocks, **settings: Any) -> AsyncIterator[tuple[Server, Client]]:
    """A server in this process on a machine whose clocks the test sets; nothing is looked after unless it says so."""
    config = ServerConfig(data=data, port=0, **{**SETTINGS, **settings})
    async with Server(config, clocks=machine) as server, connect(server.address) as client:
        yield server, client


async def look_after(server: Server, name: str) -> None:
    """Has done what is due: expired writers are forgotten, and old changes removed."""
    table = server._tables.table(name)
    for live in table.buckets:
        async with live.mutex:
            await live.open()
        await server._tables._log_maintenance.maintain(table.state, live)
