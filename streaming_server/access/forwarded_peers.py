"""Whose call it is: of the peer of the connection, or of a browser that the server's own gateway names."""

from __future__ import annotations

import hmac
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scankv.model.forwarded_peers import FORWARDED_PEER, GATEWAY_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.current_call import Metadata

_KEY_BYTES: Final = 32


class ForwardedPeers:
    """The gateways of this server, which may say for whom they make a call. Bound to the event loop.

    Any client can send the metadata of a gateway. Only a gateway process that this server has started knows the key.

    Args:
        shared_key: The key of all gateway processes, which other processes of the server believe as well, and with
            which these name the clients of calls that they forward. Empty: each gateway process gets its own.
    """

    def __init__(self, shared_key: str = "") -> None:
        self._shared_key = shared_key
        self._keys: list[bytes] = [shared_key.encode()] if shared_key else []

    @contextmanager
    def believe(self) -> Iterator[str]:
        """Makes the key of one gateway process, which is believed inside the block."""
        if self._shared_key:
            yield self._shared_key
            return
        key = secrets.token_hex(_KEY_BYTES)
        self._keys.append(key.encode())
        try:
            yield key
        finally:
            self._keys.remove(key.encode())

    def is_own(self, metadata: Metadata) -> bool:
        """Whether a gateway makes a call for itself: it has sent its key, and no token of a caller."""
        given = [value for name, value in metadata if name == GATEWAY_KEY]
        if len(given) != 1 or not isinstance(given[0], str) or any(name == "authorization" for name, _ in metadata):
            return False
        return self._is_known(given[0])

    def _is_known(self, key: str) -> bool:
        return any(hmac.compare_digest(key.encode(), each) for each in self._keys)

    def client_of(self, peer: str, metadata: Metadata) -> str:
        """Returns the address of the client that makes a call.

        Args:
            peer: The peer of the connection.
            metadata: The metadata of the call. A peer in them counts only with the key of a gateway.
        """
        if not self._keys:
            return peer
        named = [value for name, value in metadata if name == FORWARDED_PEER]
        if len(named) != 1 or not isinstance(named[0], str):
            return peer
        key, _, client = named[0].partition(" ")
        return client if client and self._is_known(key) else peer
