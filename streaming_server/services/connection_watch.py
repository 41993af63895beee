"""Which connections end because no known caller uses them: gRPC's server lists no connections and ends none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from streaming_server.services.connections import (
    OpenConnection,
    address_of_peer,
    close_all,
    close_connection,
    find_connections,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHECK_SECONDS: Final = 1.0
"""How often connections are looked at."""

_FLOOD_CHECK_SECONDS: Final = 0.2
"""How often once some had to end."""

_BEGIN_SECONDS: Final = 1.0
"""A younger connection does not count as one without an authenticated call: its first call may be on its way."""

_log = logging.getLogger(__name__)


class ConnectionWatch:
    """The connections of clients, and which of them have had an authenticated call. Bound to the event loop.

    A connection without one takes a descriptor and a place among `max_connections`, and health calls would keep it open
    for ever. So it ends in time, and an address has few of them. On a server without tokens, every call counts.

    Args:
        seconds: How long a connection may be open without an authenticated call.
        most_of_address: The most connections without an authenticated call that an address may have at once.

    Attributes:
        ports: The ports on which the server listens for clients.
        ended: The number of connections that were ended since the start.
    """

    def __init__(self, seconds: float, most_of_address: int) -> None:
        self.ports: set[int] = set()
        self.ended = 0
        self._seconds = seconds
        self._most_of_address = most_of_address
        self._authenticated: dict[str, tuple[str, int] | None] = {}
        self._open: dict[int, OpenConnection | None] = {}

    def record_call(self, peer: str) -> None:
        """Records an authenticated call of a connection, which gRPC names as `ipv4:127.0.0.1:1234`."""
        if peer not in self._authenticated:
            self._authenticated[peer] = address_of_peer(peer)

    def end_unauthenticated(self, peer: str) -> None:
        """Ends a connection at once, unless it has had an authenticated call."""
        if peer not in self._authenticated:
            self.ended += close_connection(peer)

    async def run(self) -> None:
        """Looks at the connections again and again."""
        pause = _CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                pause = _FLOOD_CHECK_SECONDS if await self._check() else _CHECK_SECONDS
            except Exception:
                _log.exception("a check of the connections failed, and is tried again")

    async def _check(self) -> int:
        """Ends the connections that are open for too long, or too many, without an authenticated call.

        Returns:
            How many have ended.
        """
        recorded = dict(self._authenticated)
        self._open = await asyncio.to_thread(find_connections, self._open, self.ports, time.monotonic())
        connections = [each for each in self._open.values() if each is not None]
        alive = {each.address for each in connections}
        for peer, address in recorded.items():
            if address not in alive:
                del self._authenticated[peer]
        authenticated = set(self._authenticated.values())
        strangers = [each for each in connections if each.address not in authenticated]
        ending = overdue(strangers, time.monotonic(), self._seconds, self._most_of_address)
        if ending:
            self.ended += await asyncio.to_thread(close_all, ending)
            _log.info("ending %d connections that have had no authenticated call", len(ending))
        return len(ending)


def overdue(
    strangers: Iterable[OpenConnection], now: float, seconds: float, most_of_address: int
) -> list[OpenConnection]:
    """Returns which connections without an authenticated call end: those that are too old, and those too many.

    The oldest ones of an address end first, so that a flood does not keep other callers behind the same address away.
    """
    by_host: dict[str, list[OpenConnection]] = defaultdict(list)
    for each in strangers:
        if now - each.since >= min(seconds, _BEGIN_SECONDS):
            by_host[each.address[0]].append(each)
    ending = []
    for connections in by_host.values():
        connections.sort(key=lambda each: each.since)
        too_many = len(connections) - most_of_address
        ending += [each for i, each in enumerate(connections) if i < too_many or now - each.since >= seconds]
    return ending
