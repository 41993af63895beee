"""How a gateway names the client for which it makes a call, and proves that the name is to be believed."""

from __future__ import annotations

from typing import Final

FORWARDED_PEER: Final = "x-scankv-forwarded-peer"
"""The metadata in which a gateway names its client: the key of the gateway, a space, and the peer."""

GATEWAY_KEY: Final = "x-scankv-gateway-key"
"""The metadata with the key of the server's own gateway, in the one kind of call that it makes for itself."""


def peer_text(host: str, port: int) -> str:
    """Returns an address as gRPC names the peer of a call: `ipv4:10.0.0.7:44882` or `ipv6:%5B::1%5D:44882`."""
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def forwarded_peer(key: str, peer: str) -> tuple[str, str]:
    """Returns the metadata that name the client of a call.

    Args:
        key: The key of the gateway. Empty: the server does not believe the name, but knows that the call is made for
            somebody else.
        peer: The client, as by `peer_text`.
    """
    return FORWARDED_PEER, f"{key} {peer}"
