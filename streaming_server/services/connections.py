"""Finds and closes single connections, which gRPC's server cannot do."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

# The open files of this process, on Linux and on macOS.
COUNTS_BYTES: Final = sys.platform == "linux"
"""Whether the system says how many bytes a connection has received."""

_OPEN_FILES: Final = ("/proc/self/fd", "/dev/fd")

# `tcpi_bytes_received` in `struct tcp_info` of Linux 4.1 and newer.
_RECEIVED_BYTES: Final = struct.Struct("=128xQ")


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """The connection of a client.

    Attributes:
        descriptor: Its descriptor, which gRPC may close at any time.
        address: The host and the port of the client.
        since: When it was found, in monotonic seconds.
    """

    descriptor: int
    address: tuple[str, int]
    since: float


def find_connections(
    known: Mapping[int, OpenConnection | None], ports: Collection[int], now: float
) -> dict[int, OpenConnection | None]:
    """Returns the open sockets of this process by their inodes. None: it is not the connection of a client.

    Looks for sockets among the open files, because gRPC does not give them away. Takes about a millisecond for a
    thousand open files.

    Args:
        known: What was found before. Its sockets are not looked at again.
        ports: The ports on which the server listens for clients.
        now: Monotonic seconds.
    """
    found: dict[int, OpenConnection | None] = {}
    for number in _open_files():
        with suppress(OSError):
            status = os.fstat(number)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            if status.st_ino in known:
                found[status.st_ino] = known[status.st_ino]
                continue
            # Without a descriptor of its own, or once it has no peer, it is looked at again the next time.
            with _opened(number) as connection:
                if os.fstat(connection.fileno()).st_ino != status.st_ino:
                    continue
                address = _client_of(connection) if _port_of(connection) in ports else None
                found[status.st_ino] = None if address is None else OpenConnection(number, address, now)
    return found


def close_all(connections: Iterable[OpenConnection]) -> int:
    """Closes connections. Returns how many of them were still open."""
    closed = 0
    for each in connections:
        with suppress(OSError):
            closed += _close(each.descriptor, each.address)
    return closed


def received_bytes(connection: OpenConnection) -> int | None:
    """Returns how many bytes a connection has received since it began. None: it is over, or this is not Linux.

    Takes some microseconds.
    """
    with suppress(OSError), _opened(connection.descriptor) as opened:
        if COUNTS_BYTES and _client_of(opened) == connection.address:
            info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_BYTES.size)
            if len(info) == _RECEIVED_BYTES.size:
                received: int = _RECEIVED_BYTES.unpack(info)[0]
                return received
    return None


def close_connection(peer: str) -> bool:
    """Closes the connection of a peer, as gRPC names it: `ipv4:127.0.0.1:1234` or `ipv6:%5B::1%5D:1234`.

    gRPC then handles the closed connection as one that the client has closed. Takes about a millisecond for a thousand
    open files.

    Returns:
        Whether the connection was found.
    """
    wanted = address_of_peer(peer)
    if wanted is None:
        return False
    for number in _open_files():
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode) and _close(number, wanted):
                return True
    return False


def address_of_peer(peer: str) -> tuple[str, int] | None:
    """Returns the host and the port of a peer, as gRPC names it. None: it has none, or is no peer."""
    family, _, address = peer.partition(":")
    host, _, port = unquote(address).rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _canonical(host.strip("[]")), int(port)


def _close(descriptor: int, wanted: tuple[str, int]) -> bool:
    with _opened(descriptor) as connection:
        is_wanted = _client_of(connection) == wanted
        if is_wanted:
            connection.shutdown(socket.SHUT_RDWR)
        return is_wanted


@contextmanager
def _opened(descriptor: int) -> Iterator[socket.socket]:
    """Gives a descriptor of its own, which names the same connection even if gRPC closes its descriptor now."""
    duplicate = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=duplicate)
    except OSError:
        # gRPC has closed its descriptor, and the number is now something else.
        os.close(duplicate)
        raise
    with connection:
        yield connection


def _client_of(connection: socket.socket) -> tuple[str, int] | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host, port = connection.getpeername()[:2]
    return _canonical(host), port


def _port_of(connection: socket.socket) -> int | None:
    return connection.getsockname()[1] if connection.family in (socket.AF_INET, socket.AF_INET6) else None


def _canonical(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    # A socket of IPv6 names peers of IPv4 so, and gRPC shortens them.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _open_files() -> list[int]:
    for directory in _OPEN_FILES:
        with suppress(OSError):
            return [int(name) for name in os.listdir(directory)]
    return []
