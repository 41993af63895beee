"""What a worker process of a server knows of its server: its place, and how it reaches the others."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from streaming_server.shared_times import SharedTimes
from streaming_server.storage.tables.placement import ALONE

HEARTBEAT_SECONDS: Final = 1.0
"""How often a worker that is ready reports to its supervisor, over its standard output, that its event loop runs."""
CONNECTED: Final = b"+"
"""What a worker reports once it is connected to the others, after all have been ready."""

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.storage.tables.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings that the supervisor gives a worker process. Immutable.

    Attributes:
        placement: The place of the worker among all workers.
        lock: The inherited descriptor by which the supervisor has locked the data directory. The lock lasts until all
            processes that have it have ended.
        times: The inherited descriptor of the commit times of all workers.
        sockets: The directory of the sockets on which workers listen for each other. Only their user can use it. None:
            the server is one process.
        key: A secret of this start of the server, by which workers recognize each other.
        peer_key: Another secret, with which workers and the HTTP gateway name the client for whom they make a call.
        ports: The port of each worker, by number, on which only that worker listens, besides the port of the server.
        stdout: The descriptor of the standard output of the server. That of a worker leads to the supervisor.
    """

    placement: Placement
    lock: int
    times: int
    sockets: Path | None
    key: str = field(repr=False)
    peer_key: str = field(repr=False)
    ports: tuple[int, ...]
    stdout: int = 1
    _abstract: str = field(default_factory=lambda: f"unix-abstract:scankv-{secrets.token_hex(16)}", repr=False)

    @property
    def port(self) -> int:
        """The port on which only this worker listens, besides the port of the server."""
        return self.ports[self.placement.number]

    @property
    def aliases(self) -> Path:
        """A directory that only this worker uses. It ends with the server."""
        assert self.sockets is not None
        return self.sockets / f"aliases-{self.placement.number}"

    def open_times(self) -> SharedTimes:
        """Opens the commit times of all workers."""
        return SharedTimes(self.times, self.placement.number)

    def address_of(self, number: int) -> str:
        """Returns the address on which a worker listens for the others, as gRPC writes it."""
        return self._abstract if self.sockets is None else f"unix:{self.sockets / str(number)}"


def alone() -> WorkerSettings:
    """Returns the settings of a server of one process, which calls only itself.

    The socket of the server has no file, so any user of the host can connect to it. But the server answers only calls
    with the key.
    """
    return WorkerSettings(
        placement=ALONE, lock=-1, times=-1, sockets=None, key=secrets.token_hex(32), peer_key="", ports=()
    )
