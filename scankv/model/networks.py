"""Which addresses count as one: a host of IPv4, or a network of IPv6, of which one host has all addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

_PREFIX_BITS: Final = 64  # of a network of IPv6, which no router divides for its hosts
_KNOWN_HOSTS: Final = 10_000


@lru_cache(_KNOWN_HOSTS)
def network_of(host: str) -> str:
    """Returns the IPv4 address of a host, or its IPv6 network. What is no address is returned as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _PREFIX_BITS), strict=False))
