"""One connection through the proxy: two sockets, two directions, and the faults that wait for their byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client.testing._faults import Direction, Fault

# A direction buffers this, and what the kernel holds for the sockets.
_READ_BYTES: Final = 64 * 1024
# How often per second a slow direction forwards bytes: often enough to look steady, rarely enough to cost nothing.
_PARTS_A_SECOND: Final = 20
LINGER_ZERO: Final = struct.pack("ii", 1, 0)
"""Closing a socket at once and dropping unsent data makes TCP send a reset; see socket(7), SO_LINGER."""


class FaultConnection:
    """Forwards between two connected, non-blocking sockets until an end or a fault. Belongs to its event loop."""

    def __init__(self, client: socket.socket, server: socket.socket, made: Callable[[Fault, int], None]) -> None:
        """Takes over both sockets.

        Args:
            client: The socket to the client.
            server: The socket to the server.
            made: Called with each fault that has happened, and the bytes of its direction.
        """
        self._sockets = (client, server)
        self._made = made
        self._pipes: dict[Direction, _Pipe] = {
            "to_client": _Pipe(server, client, self._make),
            "to_server": _Pipe(client, server, self._make),
        }
        self._pumps: list[asyncio.Task[None]] = []
        self._ended_by: Fault | None = None

    def forwarded(self, direction: Direction) -> int:
        """Returns the bytes forwarded in a direction so far."""
        return self._pipes[direction].forwarded

    def add(self, fault: Fault) -> None:
        """Plans a fault, counted from now. A fault after 0 bytes happens before this returns."""
        self._pipes[fault.direction].add(fault)

    def resume(self) -> None:
        """Ends stalls and slowness."""
        for pipe in self._pipes.values():
            pipe.resume()

    def forget_faults(self) -> None:
        """Drops the faults that have not happened yet."""
        for pipe in self._pipes.values():
            pipe.waiting.clear()

    async def run(self) -> None:
        """Forwards until both directions have ended or a fault ends the connection. Closes both sockets."""
        try:
            if self._ended_by is None:
                async with asyncio.TaskGroup() as group:
                    self._pumps = [group.create_task(pipe.pump()) for pipe in self._pipes.values()]
        except* OSError:  # One end has reset the connection or is gone, so the other end gets a reset.
            self._reset()
        finally:
            self._close()

    def _make(self, fault: Fault, at_bytes: int) -> None:
        """Records a fault that a pipe has made happen. A `cut` or `reset` also ends the connection."""
        if self._ended_by is not None:
            return
        self._made(fault, at_bytes)
        if fault.kind in ("cut", "reset"):
            self._ended_by = fault
            for pump in self._pumps:
                pump.cancel()

    def _reset(self) -> None:
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)

    def _close(self) -> None:
        if self._ended_by is not None and self._ended_by.kind == "reset":
            self._reset()
        for each in self._sockets:
            each.close()


class _Pipe:
    """One direction. Reads at most 64 KiB, and reads more only when the receiver has taken them."""

    def __init__(self, source: socket.socket, sink: socket.socket, make: Callable[[Fault, int], None]) -> None:
        self._source = source
        self._sink = sink
        self._make = make
        self.waiting: list[tuple[int, Fault]] = []
        self.forwarded = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._rate: int | None = None
        self._over = False

    def add(self, fault: Fault) -> None:
        self.waiting.append((self.forwarded + fault.after_bytes, fault))
        self.waiting.sort(key=lambda each: each[0])  # Stable: faults of the same byte happen in their order.
        self._make_what_is_due()

    def resume(self) -> None:
        self._rate = None
        self._flowing.set()

    async def pump(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._source, _READ_BYTES):
            await self._forward(memoryview(data))
            if self._over:
                return
        await self._flowing.wait()  # A stalled direction does not forward its end either.
        self._shut()

    async def _forward(self, data: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while data:
            await self._flowing.wait()
            if self._over:
                return
            rate = self._rate
            part = data[: self._most(rate)]
            await loop.sock_sendall(self._sink, part)
            self.forwarded += len(part)
            data = data[len(part) :]
            self._make_what_is_due()
            if rate is not None:
                await asyncio.sleep(len(part) / rate)

    def _most(self, rate: int | None) -> int:
        """Returns how many bytes may be forwarded before the next fault or pause."""
        most = _READ_BYTES if rate is None else max(1, rate // _PARTS_A_SECOND)
        return min(most, self.waiting[0][0] - self.forwarded) if self.waiting else most

    def _make_what_is_due(self) -> None:
        while self.waiting and self.waiting[0][0] <= self.forwarded:
            _, fault = self.waiting.pop(0)
            match fault.kind:
                case "stall":
                    self._flowing.clear()
                case "slow":
                    self._rate = fault.bytes_per_second
                case "half_close":
                    self._shut()
                case "cut" | "reset":
                    self._over = True
            self._make(fault, self.forwarded)

    def _shut(self) -> None:
        self._over = True
        with suppress(OSError):  # The receiver is gone already.
            self._sink.shutdown(socket.SHUT_WR)
