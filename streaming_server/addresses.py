"""Network addresses as text."""

from __future__ import annotations

import ipaddress


def address_of(host: str, port: int) -> str:
    """Returns the address as gRPC and clients write it, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
