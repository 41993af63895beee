"""Connections to the worker processes of a server that has several.

Calls about a table go straight to its owner. The parts of a snapshot go to all workers in turns.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from aio_client._transport.transport import Transport
from scankv.model.errors import ScanKvError
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._transport.config import ClientConfig

_PROBE_SECONDS: Final = 2.0
"""How long a worker has to answer at first. A firewall may let through the port of the server only."""


_AGAIN_SECONDS: Final = 60.0
"""How long a worker that was not found is left alone. It may have been starting, or the host was busy."""


@dataclass(slots=True)
class _KnownWorker:
    """What is known of one worker.

    Attributes:
        table: A table of the server, by which the worker is recognized.
        first: The first search for the worker, which calls wait for.
        search: The latest search.
        again: Begins the next one. None: the latest one is not over, or has found the worker.
        transport: The transport to the worker. None: it is not found yet.
    """

    table: str
    first: asyncio.Task[None]
    search: asyncio.Task[None]
    again: asyncio.TimerHandle | None = None
    transport: Transport | None = None


class Owners:
    """The transports to the workers of one server, made when first needed. Belongs to the event loop of the client.

    A worker that cannot be reached at its own port is reached through the port of the server, where another worker
    passes calls on to it. So where the ports of the workers are closed, everything works, and takes longer. Calls wait
    for a short time until a worker is found at first. After that, it is looked for every minute in the background, as
    long as the client is open.

    Args:
        server: The transport to the server.
    """

    def __init__(self, server: Transport) -> None:
        self._server = server
        self._by_port: dict[int, _KnownWorker] = {}
        # The ports of the workers, in the order of their numbers. None: not known yet.
        self._ports: tuple[int, ...] | None = None
        server.owners = weakref.ref(self)

    async def transport_to(self, table: table_pb2.Table) -> Transport:
        """Returns the transport to the worker that owns a table; that to the server if it cannot be reached.

        Args:
            table: The table, as the server describes it.
        """
        self._ports = tuple(table.worker_ports)
        return await self._transport_at(table.owner_port, table.name)

    async def transport_for_part(self, table: str, part: int) -> Transport:
        """Returns the transport to the worker that reads a part of a snapshot; that to the server if it is not known.

        The workers take turns, so every client chooses the same worker for a part.

        Args:
            table: The name of the table.
            part: The number of the part, from 0 on.
        """
        if self._ports is None:
            try:
                self._ports = tuple((await _describe(self._server, table)).worker_ports)
            except ScanKvError:
                return self._server  # Whatever is wrong, the scan finds it, too.
        return await self._transport_at(_port_for(part, self._ports), table)

    def known_transport(self, port: int) -> Transport:
        """Returns the transport to the worker with a port; that to the server if it is not found yet."""
        worker = self._by_port.get(port)
        return self._server if worker is None or worker.transport is None else worker.transport

    async def _transport_at(self, port: int, table: str) -> Transport:
        """As `known_transport`, after the first search. A port of 0 is that of the server, which is one process."""
        if port:
            if port not in self._by_port:
                search = asyncio.create_task(self._search(port))
                self._by_port[port] = _KnownWorker(table, first=search, search=search)
            worker = self._by_port[port]
            worker.table = table
            await asyncio.wait([worker.first])
        return self.known_transport(port)

    async def _search(self, port: int) -> None:
        """Looks for a worker once, and again after some time if it is not found."""
        worker = self._by_port[port]
        worker.again = None
        with suppress(ScanKvError):
            worker.transport = await self._connect(port, worker.table)
        if worker.transport is None:
            loop = asyncio.get_running_loop()
            worker.again = loop.call_later(_AGAIN_SECONDS, _search_again, weakref.ref(self), port)

    def repeat_search(self, port: int) -> None:
        """Looks for a worker again, in the background."""
        self._by_port[port].search = asyncio.create_task(self._search(port))

    async def _connect(self, port: int, table: str) -> Transport | None:
        """Returns the transport to a worker. None: another server answers at its port. Raises ScanKvError."""
        transport = Transport(_at_port(self._server.config, port), fallback=self._server)
        transport.owners = weakref.ref(self)
        is_worker = False
        try:
            await transport.wait_ready(_PROBE_SECONDS)
            is_worker = await self._is_of_server(transport, table)
        finally:
            if not is_worker:
                await transport.aclose()
        return transport if is_worker else None

    async def _is_of_server(self, transport: Transport, table: str) -> bool:
        """Whether a worker of the server that has a table answers at a port. Raises ScanKvError.

        Where the port of the server is forwarded from another host, the port of a worker may be that of another server,
        which may have a table of the same name.
        """
        here, there = await asyncio.gather(_describe(self._server, table), _describe(transport, table))
        return (there.incarnation, there.owner_port) == (here.incarnation, here.owner_port)

    async def aclose(self) -> None:
        """Ends the searches, and closes all transports except for that to the server."""
        workers, self._by_port = [*self._by_port.values()], {}
        for worker in workers:
            if worker.again is not None:
                worker.again.cancel()
            worker.search.cancel()
        await asyncio.gather(*(worker.search for worker in workers), return_exceptions=True)
        for worker in workers:
            if worker.transport is not None:
                await worker.transport.aclose()


def _search_again(owners: weakref.ref[Owners], port: int) -> None:
    # The client may have been dropped without being closed.
    if (living := owners()) is not None:
        living.repeat_search(port)


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
