"""Connections to the worker processes of a server that has several: calls about a table go straight to its owner."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aio_client._transport.transport import Transport
from scankv.model.errors import ScanKvError
from scankv.v1 import table_pb2

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

    async def transport_to(self, table: table_pb2.Table) -> Transport:
        """Returns the transport to the worker that owns a table; that to the server if it cannot be reached.

        Args:
            table: The table, as the server describes it.
        """
        port = table.owner_port
        if not port:
            return self._server  # The server is one process.
        found = self._by_port.get(port)
        if found is None:
            found = self._by_port[port] = asyncio.create_task(self._connect(table))
        try:
            return await asyncio.shield(found)
        except asyncio.CancelledError:
            if found.cancelled():
                return self._server  # The client was closed.
            raise

    async def _connect(self, table: table_pb2.Table) -> Transport:
        transport = Transport(_at_port(self._server.config, table.owner_port), fallback=self._server)
        is_owner = False
        try:
            await transport.wait_ready(_PROBE_SECONDS)
            is_owner = await _is_owner(transport, table)
        except ScanKvError:
            return self._server
        finally:
            if not is_owner:
                await transport.close()
        return transport if is_owner else self._server

    async def close(self) -> None:
        """Closes all of them, except for that to the server."""
        found, self._by_port = [*self._by_port.values()], {}
        for connecting in found:
            connecting.cancel()
        for transport in await asyncio.gather(*found, return_exceptions=True):
            if isinstance(transport, Transport) and transport is not self._server:
                await transport.close()


async def _is_owner(transport: Transport, table: table_pb2.Table) -> bool:
    """Whether the owner of a table answers at a port. Raises ScanKvError.

    Where the port of the server is forwarded from another host, the port of a worker may be that of another server,
    which may have a table of the same name.
    """
    response = await transport.attempt(
        lambda: transport.services.tables.GetTable,
        table_pb2.GetTableRequest(name=table.name),
        deadline=time.monotonic() + _PROBE_SECONDS,
    )
    there = response.table
    return (there.incarnation, there.owner_port) == (table.incarnation, table.owner_port)


def _at_port(config: ClientConfig, port: int) -> ClientConfig:
    scheme, separator, _ = config.url.rpartition("://")
    host = config.address.rpartition(":")[0]
    return replace(config, url=f"{scheme}{separator}{host}:{port}")
