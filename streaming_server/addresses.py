"""Network addresses as text."""

from __future__ import annotations

import errno
import ipaddress
import socket


def address_of(host: str, port: int) -> str:
    """Returns the address as gRPC and clients write it, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def why_not_listening(host: str, port: int) -> str:
    """Returns why a program cannot listen at an address, which gRPC only logs: as the system says it, where it does."""
    reason = "it is in use"
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE and error.strerror:
            reason = error.strerror
    return reason


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
