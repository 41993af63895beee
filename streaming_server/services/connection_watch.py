"""Which connections end because no known caller uses them: gRPC's server lists no connections and ends none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from scankv.model.networks import network_of
from streaming_server.services.connections import (
    COUNTS_BYTES,
    OpenConnection,
    address_of_peer,
    close_all,
    find_connections,
    received_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_CHECK_SECONDS: Final = 1.0
"""How often connections are looked at."""

_FLOOD_CHECK_SECONDS: Final = 0.05
"""How often while some have to end, or few are left."""

_PAUSE_SHARE: Final = 4
"""A pause is at least so many times as long as the check before it, which looks at all open files."""

_BEGIN_SECONDS: Final = 1.0
"""A younger connection does not count as one without an authenticated call: its first call may be on its way."""

_FLOOD_BEGIN_SECONDS: Final = 0.1
"""The same while few connections are left: a younger one counts, and does not end."""

_SEEN_SECONDS: Final = 0.25
"""How long a call waits at most until a check has seen its connection."""

_FEW_LEFT: Final = 3 / 4
"""Few connections are left while there are more than this share of the most."""

_FLOOD_SHARE: Final = 1 / 4
"""While few connections are left, an address has at most this share of them without an authenticated call."""

_log = logging.getLogger(__name__)


class ConnectionWatch:
    """The connections of clients, and which of them have had an authenticated call. Bound to the event loop.

    A connection without one takes a descriptor and a place among `max_connections`, and health calls would keep it open
    for ever. So it ends in time, and an address has few of them. On a server without tokens, every call counts.

    Args:
        seconds: How long a connection may be open without an authenticated call.
        most_of_address: The most connections without an authenticated call that an address may have at once.
        most: The most connections that the server accepts.

    Attributes:
        ports: The ports on which the server listens for clients.
        ended: The number of connections that were ended since the start.
    """

    def __init__(self, seconds: float, most_of_address: int, most: int) -> None:
        self.ports: set[int] = set()
        self.ended = 0
        self._seconds = seconds
        self._most_of_address = most_of_address
        self._most = most
        self._authenticated: dict[str, tuple[str, int] | None] = {}
        self._authenticating = Counter[str]()
        self._open: dict[int, OpenConnection | None] = {}
        # A client may connect from one port to several addresses of the server. gRPC names only the client's.
        self._by_address: dict[tuple[str, int], list[OpenConnection]] = {}
        self._unwanted = set[tuple[str, int]]()
        self._shall_check = asyncio.Event()
        self._checked = asyncio.Event()

    def record_call(self, peer: str) -> None:
        """Records an authenticated call of a connection, which gRPC names as `ipv4:127.0.0.1:1234`."""
        if peer not in self._authenticated:
            self._authenticated[peer] = address_of_peer(peer)

    @contextmanager
    def authenticating(self, peer: str) -> Iterator[None]:
        """Counts a call as in authentication, which may wait for the issuer of a token."""
        self._authenticating[peer] += 1
        try:
            yield
        finally:
            self._authenticating[peer] -= 1
            if not self._authenticating[peer]:
                del self._authenticating[peer]

    def is_authenticated(self, peer: str) -> bool:
        """Whether a connection has had an authenticated call."""
        return peer in self._authenticated

    def end_unauthenticated(self, peer: str) -> None:
        """Ends a connection as `end`, unless it has had an authenticated call."""
        if peer not in self._authenticated:
            self.end(peer)

    def end(self, peer: str) -> None:
        """Ends a connection: at once if a check has seen it, otherwise by the next check, which then comes at once.

        So it costs the event loop the same, however many files are open.
        """
        address = address_of_peer(peer)
        if address is None:
            return
        if closed := close_all(self._by_address.get(address, ())):
            self.ended += closed
            return
        self._unwanted.add(address)
        self._shall_check.set()

    def received_bytes(self, peer: str) -> int | None:
        """Returns how many bytes a connection has received since it began. None: no check has seen it yet.

        It is the sum if several connections have the address of the client.
        """
        address = self._authenticated.get(peer) or address_of_peer(peer)
        known = None if address is None else self._by_address.get(address)
        if known is None:
            self._shall_check.set()
            return None
        received = [size for each in known if (size := received_bytes(each)) is not None]
        if not received:
            self._shall_check.set()  # It may be another connection from the same port.
            return None
        return sum(received)

    async def wait_until_seen(self, peer: str) -> None:
        """Waits a short time for a check to see a connection, if the system says how much one has received."""
        if not COUNTS_BYTES:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_SECONDS):
                while self.received_bytes(peer) is None:
                    await self._checked.wait()

    async def run(self) -> None:
        """Looks at the connections again and again."""
        is_flooded, pause = False, _FLOOD_CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            if not is_flooded:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await self._shall_check.wait()
            began = time.monotonic()
            try:
                is_flooded = await self._check()
            except Exception:
                _log.exception("a check of the connections failed, and is tried again")
            pause = max(_FLOOD_CHECK_SECONDS, _PAUSE_SHARE * (time.monotonic() - began))

    async def _check(self) -> bool:
        """Ends the connections that are open for too long, or too many, without an authenticated call.

        Returns:
            Whether some have ended, or few are left.
        """
        unwanted, self._unwanted = self._unwanted, set()
        self._shall_check.clear()
        recorded = dict(self._authenticated)
        self._open = await asyncio.to_thread(find_connections, self._open, self.ports, time.monotonic())
        connections = [each for each in self._open.values() if each is not None]
        by_address: dict[tuple[str, int], list[OpenConnection]] = defaultdict(list)
        for each in connections:
            by_address[each.address].append(each)
        self._by_address = dict(by_address)
        self._checked.set()
        self._checked = asyncio.Event()
        for peer, address in recorded.items():
            if address not in self._by_address:
                del self._authenticated[peer]
        authenticated = set(self._authenticated.values())
        has_few_left = len(connections) > _FEW_LEFT * self._most
        ending = overdue(
            [each for each in connections if each.address not in authenticated],
            time.monotonic(),
            self._seconds,
            min(self._most_of_address, max(1, int(self._most * _FLOOD_SHARE)))
            if has_few_left
            else self._most_of_address,
            authenticating={address_of_peer(peer) for peer in self._authenticating},
            has_few_left=has_few_left,
        )
        if ending:
            _log.info("ending %d connections that have had no authenticated call", len(ending))
        refused = [each for address in unwanted for each in self._by_address.get(address, ())]
        self.ended += await asyncio.to_thread(close_all, {*ending, *refused})
        return has_few_left or bool(ending)


def overdue(
    strangers: Collection[OpenConnection],
    now: float,
    seconds: float,
    most_of_address: int,
    *,
    authenticating: Collection[tuple[str, int] | None] = (),
    has_few_left: bool = False,
) -> list[OpenConnection]:
    """Returns which connections without an authenticated call end: those that are too old, and those too many.

    The oldest ones of an address end first, so that a flood does not keep other callers behind the same address away.

    Args:
        strangers: The connections without an authenticated call.
        now: Monotonic seconds.
        seconds: How long such a connection may be open. With a call in authentication, twice as long.
        most_of_address: The most of them that an address may have.
        authenticating: The addresses with a call in authentication. They do not count.
        has_few_left: Whether few connections are left. Then all strangers count, and those with a call in
            authentication end last.
    """
    by_network: dict[str, list[OpenConnection]] = defaultdict(list)
    begin = min(seconds, _FLOOD_BEGIN_SECONDS if has_few_left else _BEGIN_SECONDS)
    for each in strangers:
        if has_few_left or (now - each.since >= begin and each.address not in authenticating):
            by_network[network_of(each.address[0])].append(each)
    too_many = set[OpenConnection]()
    for connections in by_network.values():
        connections.sort(key=lambda each: (each.address in authenticating, each.since))
        too_many.update(connections[: max(0, len(connections) - most_of_address)])
    return [
        each
        for each in strangers
        if now - each.since >= seconds * (1 + (each.address in authenticating))
        or (each in too_many and now - each.since >= begin)
    ]
