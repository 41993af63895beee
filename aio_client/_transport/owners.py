"""Connections to the worker processes of a server that has several: calls about a table go straight to its owner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aio_client._transport.transport import Transport
from scankv.model.errors import ScanKvError

if TYPE_CHECKING:
    from aio_client._transport.config import ClientConfig

_PROBE_SECONDS: Final = 2.0
"""How long a worker has to answer at first. A firewall may let through the port of the server only."""


class Owners:
    """The transports to the workers of one server, made when first needed. Belongs to the event loop of the client.

    A worker that cannot be reached at its own port is reached through the port of the server, where another worker
    passes calls on to it. So where the ports of the workers are closed, everything works, and takes longer.

    Args:
        server: The transport to the server.
    """

    def __init__(self, server: Transport) -> None:
        self._server = server
        self._by_port: dict[int, asyncio.Task[Transport]] = {}

    async def transport_to(self, port: int) -> Transport:
        """Returns the transport to the worker that has a port of its own; that to the server if it cannot be reached.

        Args:
            port: The port, as the server describes a table. 0: the server is one process.
        """
        if not port:
            return self._server
        found = self._by_port.get(port)
        if found is None:
            found = self._by_port[port] = asyncio.create_task(self._connect(port))
        try:
            return await asyncio.shield(found)
        except asyncio.CancelledError:
            if found.cancelled():
                return self._server  # The client was closed.
            raise

    async def _connect(self, port: int) -> Transport:
        transport = Transport(_at_port(self._server.config, port), fallback=self._server)
        try:
            await transport.wait_ready(_PROBE_SECONDS)
        except ScanKvError:
            await transport.close()
            return self._server
        return transport

    async def close(self) -> None:
        """Closes all of them, except for that to the server."""
        found, self._by_port = self._by_port, {}
        for connecting in found.values():
            if not connecting.done():
                connecting.cancel()
            elif (transport := connecting.result()) is not self._server:
                await transport.close()


def _at_port(config: ClientConfig, port: int) -> ClientConfig:
    scheme, separator, _ = config.url.rpartition("://")
    host = config.address.rpartition(":")[0]
    return replace(config, url=f"{scheme}{separator}{host}:{port}")
