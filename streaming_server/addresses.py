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
    errors: list[OSError] = []
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror or str(error)
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            errors.append(error)
    if any(each.errno == errno.EADDRINUSE for each in errors):
        return "it is in use"
    return (errors[0].strerror or str(errors[0])) if errors else "gRPC does not say why"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
