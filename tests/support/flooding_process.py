"""Floods a server from a process of its own, until it is killed: `KIND HOST:PORT [TOKEN]`."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import grpc

from tests.support.http2 import begin_call, frame, send_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

HEALTH: Final = "/grpc.health.v1.Health/Check"
OFFSETS: Final = "/scankv.v1.TabletService/FindOffsets"
COUNT: Final = "/scankv.v1.LookupService/Count"
LIST: Final = "/scankv.v1.TableService/ListTables"
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)


@cache
def _body() -> bytes:
    return b"\x0a\x06game.n" + b"\x12\x80\x80\x80\x0f" + bytes(31_400_000)


class Flood:
    """One attacker. With a token, its calls have it."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._paths = [COUNT, LIST] if token else [HEALTH, OFFSETS, LIST]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self._channels: list[Any] = [grpc.aio.insecure_channel(address, options) for _ in range(4)]

    async def connections(self, number: int) -> None:
        """Keeps a connection without a call, and opens it again when the server ends it."""
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_PREFACE)
        if self._metadata:
            writer.write(begin_call(1, LIST, dict(self._metadata)) + send_message(1, b""))
        elif number % 2:
            writer.write(begin_call(1, HEALTH))
        while await reader.read(4096):
            pass
        writer.close()

    async def half_open(self, number: int) -> None:
        """Begins a call that has no message."""

        async def no_messages() -> AsyncIterator[bytes]:
            await asyncio.sleep(60)
            yield b""

        call = self._channels[number % 4].stream_unary(self._path(number))
        await call(no_messages(), timeout=40, metadata=self._metadata)

    async def large_bodies(self, number: int) -> None:
        """Sends 31 MB."""
        await self._channels[number % 4].unary_unary(self._path(number))(_body(), timeout=20, metadata=self._metadata)

    async def small_calls(self, number: int) -> None:
        """Makes a call with an empty message."""
        await self._channels[number % 4].unary_unary(self._path(number))(b"", timeout=20, metadata=self._metadata)

    async def http_connections(self, number: int) -> None:
        """Keeps a connection to the gateway after a request, or without one."""
        await self._send_http(b"GET", b"" if self._metadata or number % 2 else None)

    async def http_half_open(self, _: int) -> None:
        """Begins a request to the gateway whose body does not come."""
        await self._send_http(b"POST", b"", announced=1000)

    async def http_large_bodies(self, _: int) -> None:
        """Sends 31 MB to the gateway."""
        await self._send_http(b"POST", _body(), announced=len(_body()))

    async def http_small_requests(self, _: int) -> None:
        """Makes a request to the gateway."""
        await self._send_http(b"GET", b"", ends=True)

    async def _send_http(self, method: bytes, body: bytes | None, *, announced: int = 0, ends: bool = False) -> None:
        """Sends a request, or none if `body` is None, and reads until the gateway ends the connection."""
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            if body is not None:
                lines = [method + b" /v1/tables HTTP/1.1", b"Host: localhost", b"Content-Length: %d" % announced]
                lines += [f"{name}: {value}".encode() for name, value in self._metadata]
                lines += [b"Connection: close"] * ends
                writer.write(b"\r\n".join([*lines, b"", body]))
                await writer.drain()
            while await reader.read(4096):
                pass
        finally:
            writer.close()

    def _path(self, number: int) -> str:
        return self._paths[number % len(self._paths)]


KINDS: Final[dict[str, tuple[Callable[[Flood, int], Awaitable[None]], int, float]]] = {
    "connections": (Flood.connections, 300, 0.1),
    "reopened connections": (Flood.connections, 260, 0.0),
    "half-open calls": (Flood.half_open, 12, 0.1),
    "large bodies": (Flood.large_bodies, 3, 0.0),
    "small calls": (Flood.small_calls, 6, 0.01),
    "http connections": (Flood.http_connections, 300, 0.1),
    "http half-open requests": (Flood.http_half_open, 300, 0.1),
    "http large bodies": (Flood.http_large_bodies, 3, 0.1),
    "http small requests": (Flood.http_small_requests, 6, 0.01),
}
"""What one attacker does again and again, how many do it at once, and for how many seconds each pauses."""


async def flood(kind: str, address: str, token: str) -> None:
    """Floods a server until the process ends."""
    attack, at_once, pause = KINDS[kind]
    attacker = Flood(address, token)

    async def repeat(number: int) -> None:
        while True:
            with suppress(grpc.RpcError, OSError):
                await attack(attacker, number)
            await asyncio.sleep(pause)

    await asyncio.gather(*(repeat(number) for number in range(at_once)))


def main(arguments: Sequence[str]) -> None:
    """Runs the flood that the arguments name."""
    kind, address, token = arguments
    # What the attacker does for itself must not take the time of the server, as it does not on another machine.
    os.nice(19)
    asyncio.run(flood(kind, address, token))


if __name__ == "__main__":
    main(sys.argv[1:])
