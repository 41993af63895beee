"""Connects the commands to the server: by their option `--url`, and by `scankv --profile`.

No option takes a token, because all users of a machine see the arguments of its processes.
"""

from __future__ import annotations

import socket
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aio_client import sync
    from aio_client._transport.config import ClientConfig

PROFILE: Final[ContextVar[str | None]] = ContextVar("PROFILE", default=None)
"""The profile that was given before the command. None: that of the environment, if there is one."""

_CONNECT_SECONDS: Final = 1.5


def open_client(url: str | None, *, waits: bool = False) -> sync.Client:
    """Opens a client of the server that the command is for.

    Args:
        url: The server. None: that of the profile or the environment.
        waits: Whether the command waits for a server that is down. Without it, even calls that the client would repeat
            for a minute fail at once, because the server is usually not being started. A server that goes away later,
            during the command, is waited for.

    Raises:
        UsageError: As `connect` does.
        Unavailable: No server listens at the address.
    """
    # The list of commands needs this module, and must not wait for the client.
    from aio_client import sync

    client = sync.connect(url, profile=PROFILE.get())
    if not waits:
        try:
            check_listening(client.config)
        except BaseException:
            client.close()
            raise
    return client


def check_listening(config: ClientConfig) -> None:
    """Raises Unavailable, within two seconds, if no server listens at the address of a client."""
    from aio_client._transport.status_errors import how_to_start
    from scankv.model.errors import Unavailable

    address = config.address
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # UnicodeError: a part of the name is empty or too long.
        reason = error.strerror if isinstance(error, OSError) else "it is not a name of a host"
        why = f"the name of the host has no address ({reason}); check the address"
        raise Unavailable(f"no ScanKV server answers at {address}: {why}", address=address) from None
    deadline = time.monotonic() + _CONNECT_SECONDS
    for tried, (family, kind, protocol, _, at) in enumerate(found):
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(max(0.05, (deadline - time.monotonic()) / (len(found) - tried)))
            try:
                connection.connect(at)
                return
            except TimeoutError:
                why = f"it does not answer within {_CONNECT_SECONDS:g} s"
            except OSError as error:
                why = "the connection was refused" if isinstance(error, ConnectionRefusedError) else str(error.strerror)
    how = how_to_start(address, tls=config.tls is not None)
    raise Unavailable(f"no ScanKV server answers at {address}: {why}; {how}", address=address)
