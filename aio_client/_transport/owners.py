"""Connections to the worker processes of a server that has several.

Calls about a table go straight to its owner. The parts of a snapshot go to all workers in turns.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aio_client._transport.transport import Transport
from scankv.model.errors import ScanKvError
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        # The ports of the workers, in the order of their numbers. None: not known yet.
        self._ports: tuple[int, ...] | None = None
        server.owners = weakref.ref(self)

    async def transport_to(self, table: table_pb2.Table) -> Transport:
        """Returns the transport to the worker that owns a table; that to the server if it cannot be reached.

        Args:
            table: The table, as the server describes it.
        """
        self._ports = tuple(table.worker_ports)
        return await self._transport_at(table.owner_port, table)

    async def transport_for_part(self, table: str, part: int) -> Transport:
        """Returns the transport to the worker that reads a part of a snapshot; that to the server if it is not known.

        The workers take turns, so every client chooses the same worker for a part.

        Args:
            table: The name of the table.
            part: The number of the part, from 0 on.
        """
        if self._ports == ():
            return self._server
        known = None if self._ports is None else self._by_port.get(_port_for(part, self._ports))
        if known is not None:
            return await self._wait_for(known)
        try:
            description = await _describe(self._server, table)
        except ScanKvError:
            return self._server  # Whatever is wrong, the scan finds it, too.
        self._ports = tuple(description.worker_ports)
        return await self._transport_at(_port_for(part, self._ports), description)

    async def _transport_at(self, port: int, table: table_pb2.Table) -> Transport:
        """Returns the transport to the worker with a port, which is checked with a table. 0: that to the server."""
        if not port:
            return self._server  # The server is one process.
        found = self._by_port.get(port)
        if found is None:
            found = self._by_port[port] = asyncio.create_task(self._connect(port, table))
        return await self._wait_for(found)

    async def _wait_for(self, found: asyncio.Task[Transport]) -> Transport:
        try:
            return await asyncio.shield(found)
        except asyncio.CancelledError:
            if found.cancelled():
                return self._server  # The client was closed.
            raise

    async def _connect(self, port: int, table: table_pb2.Table) -> Transport:
        transport = Transport(_at_port(self._server.config, port), fallback=self._server)
        transport.owners = weakref.ref(self)
        is_worker = False
        try:
            await transport.wait_ready(_PROBE_SECONDS)
            is_worker = await _is_of_server(transport, table)
        except ScanKvError:
            return self._server
        finally:
            if not is_worker:
                await transport.close()
        return transport if is_worker else self._server

    async def close(self) -> None:
        """Closes all of them, except for that to the server."""
        found, self._by_port = [*self._by_port.values()], {}
        for connecting in found:
            connecting.cancel()
        for transport in await asyncio.gather(*found, return_exceptions=True):
            if isinstance(transport, Transport) and transport is not self._server:
                await transport.close()


async def _is_of_server(transport: Transport, table: table_pb2.Table) -> bool:
    """Whether a worker of the server that has a table answers at a port. Raises ScanKvError.

    Where the port of the server is forwarded from another host, the port of a worker may be that of another server,
    which may have a table of the same name.
    """
    there = await _describe(transport, table.name)
    return (there.incarnation, there.owner_port) == (table.incarnation, table.owner_port)


async def _describe(transport: Transport, table: str) -> table_pb2.Table:
    """Asks once for the description of a table. Raises ScanKvError."""
    response = await transport.attempt(
        lambda: transport.services.tables.GetTable,
        table_pb2.GetTableRequest(name=table),
        deadline=time.monotonic() + _PROBE_SECONDS,
    )
    return response.table


def _port_for(part: int, ports: Sequence[int]) -> int:
    """Returns the port of the worker that reads a part of a snapshot. 0: the server is one process."""
    return ports[part % len(ports)] if ports else 0


def _at_port(config: ClientConfig, port: int) -> ClientConfig:
    scheme, separator, _ = config.url.rpartition("://")
    host = config.address.rpartition(":")[0]
    return replace(config, url=f"{scheme}{separator}{host}:{port}")
