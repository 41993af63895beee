"""`Table`: one table of a server, with everything that a client can do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client._admin.partitions import PartitionMethods
from aio_client._admin.table_stats import StatsMethods
from aio_client._client.table_replacement import ReplacementMethods
from aio_client._input.near_misses import NearMisses
from aio_client._queries.table_lookups import LookupMethods
from aio_client._queries.table_queries import QueryMethods
from aio_client._scan.consumers import ConsumerMethods
from aio_client._scan.table_scans import ScanMethods
from aio_client._table.description import TableDescription
from aio_client._table.handle import TableHandle
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    import pyarrow as pa

    from aio_client._transport.transport import Transport


class Table(
    TableDescription,
    LookupMethods,
    ScanMethods,
    QueryMethods,
    ReplacementMethods,
    ConsumerMethods,
    StatsMethods,
    PartitionMethods,
    NearMisses,
):
    """A table on the server. Its methods read and write the current rows; its properties make no call.

    The properties are as of the call that returned the object, or of a later write that found the table altered or
    created again.

    Besides the errors that a method lists, every call can raise TableNotFound, if the table was dropped,
    ConnectionFailed, if the server cannot be reached or does not answer in time, and UsageError, if the client is
    closed.

    Made by `client.table(name)`, `create_table`, `alter_table` or `tables`. Belongs to the event loop of its client;
    many tasks may use it at once.
    """

    def __init__(self, transport: Transport, description: table_pb2.Table) -> None:
        """Called by the methods of `Client`."""
        super().__init__(TableHandle(transport, description))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._handle.transport.address}>"

    def _repr_html_(self) -> str:
        from aio_client._input.notebooks import html_table

        keys = self.primary_key
        columns = ((each.name, each.type, "yes" if each.name in keys else "", _nulls(each)) for each in self.schema)
        return html_table(repr(self).strip("<>"), ("column", "type", "key", "nulls"), columns)


def _nulls(field: pa.Field) -> str:
    return "yes" if field.nullable else "no"


async def open_table(transport: Transport, name: str) -> Table:
    """Returns a table by its name, over a connection to its owner. Raises TableNotFound."""
    request = table_pb2.GetTableRequest(name=name)
    return Table(transport, (await transport.call(lambda: transport.services.tables.GetTable, request)).table)
