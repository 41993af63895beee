"""Which connections the gateway takes and which it ends, counted from accept() on: a TLS handshake may never end."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from scankv.model.networks import network_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from http_gateway.settings import GatewaySettings

_RESERVED: Final = 10
"""Of so many places, one is for connections without an authenticated call: idle ones with such a call make room."""


class Waiting(Protocol):
    """What serves a connection, once its TLS handshake has ended."""

    def awaits_request(self) -> bool:
        """Whether no request has arrived completely, and nothing of an answer is left to send."""

    def end(self) -> None:
        """Ends the connection."""


@dataclass(slots=True, eq=False)
class Place:
    """The place of one connection.

    Attributes:
        network: The address of its client, or its network of IPv6.
        accepted: Its socket.
        server: What serves it. None: its TLS handshake has not ended.
    """

    network: str
    accepted: socket.socket
    server: Waiting | None = None

    def can_end(self) -> bool:
        """Whether no request would be lost that has arrived."""
        return self.server is None or self.server.awaits_request()

    def end(self) -> None:
        """Ends the connection. Its socket is closed soon after."""
        if self.server is not None:
            self.server.end()
            return
        # asyncio closes it as if its client had.
        with suppress(OSError):
            self.accepted.shutdown(socket.SHUT_RDWR)


class Connections:
    """The open connections, and for each network those without an authenticated call, the oldest first."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._open: dict[int, Place] = {}
        self._unknown: defaultdict[str, dict[int, Place]] = defaultdict(dict)

    def admit(self, accepted: socket.socket, host: str) -> bool:
        """Counts a connection, unless there are too many.

        Only a connection that awaits a request can end. If its network has too many without an authenticated call, the
        oldest of them ends. If the gateway has too many, the oldest without an authenticated call ends, of any network,
        or the oldest of all while those without a call have few places. So a flood of strangers ends few known
        connections, and a caller with a token who keeps idle connections does not keep others out.
        """
        network, number = network_of(host), accepted.fileno()
        unknown = self._unknown.get(network, {})
        if len(unknown) >= self._settings.max_unknown_connections and not self._end_oldest(unknown):
            return False
        if len(self._open) >= self._settings.max_connections and not self._end_any():
            return False
        self._open[number] = self._unknown[network][number] = Place(network, accepted)
        return True

    def _end_any(self) -> bool:
        """Ends a connection to make room in the gateway. Returns whether there was one that can end."""
        unknown = {number: place for number, place in self._open.items() if self._is_unknown(number, place)}
        are_many = len(unknown) > self._settings.max_connections // _RESERVED
        return (are_many and self._end_oldest(unknown)) or self._end_oldest(self._open)

    def _is_unknown(self, number: int, place: Place) -> bool:
        return number in self._unknown.get(place.network, {})

    def _end_oldest(self, places: Mapping[int, Place]) -> bool:
        """Ends the oldest connection that can end, and counts it no longer. Returns whether there was one."""
        oldest = next((each for each in places.items() if each[1].can_end()), None)
        if oldest is None:
            return False
        self.release(oldest[0])
        oldest[1].end()
        return True

    def hand_over(self, number: int, server: Waiting) -> None:
        """Says what serves a connection from now on. `number` is that of its file.

        If its place was taken away before, the connection ends now. Its request may have arrived, but is not answered.
        """
        place = self._open.get(number)
        if place is None:
            server.end()
        else:
            place.server = server

    def forget_unknown(self, number: int) -> None:
        """Counts a connection no longer as one without an authenticated call."""
        place = self._open.get(number)
        if place is None or not self._is_unknown(number, place):
            return
        del self._unknown[place.network][number]
        if not self._unknown[place.network]:
            del self._unknown[place.network]

    def release(self, number: int) -> None:
        """Counts a connection no longer. Its file is about to be closed."""
        self.forget_unknown(number)
        self._open.pop(number, None)


class CountingListener(socket.socket):
    """Listens as another socket does, and takes only the connections that are admitted.

    asyncio tells a protocol of its connection only after the TLS handshake, so the connections are counted here.
    """

    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=os.dup(listener.fileno()))
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns the next connection with its address.

        Raises:
            ConnectionAbortedError: It was refused. asyncio then accepts the next one.
        """
        accepted, address = super().accept()
        counted = _CountedSocket(accepted, self._connections)
        if not self._connections.admit(counted, address[0]):
            counted.close()
            raise ConnectionAbortedError("too many connections")
        return counted, address


class _CountedSocket(socket.socket):
    """The socket of a connection that counts until it is closed."""

    def __init__(self, accepted: socket.socket, connections: Connections) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._connections = connections

    def close(self) -> None:
        self._connections.release(self.fileno())
        super().close()
