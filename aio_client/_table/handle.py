"""The state that all methods of a `Table` share: a connection and the table's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aio_client._table.python_rows import PythonRows
from aio_client._table.shape import TableShape
from scankv.model.errors import SchemaMismatch
from scankv.model.expressions import predicate_of
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.transport import Transport
    from scankv.model.expressions import Predicate, Where

_Built = TypeVar("_Built")


class TableHandle:
    """A table as one client reaches it. Belongs to the event loop of the client.

    Attributes:
        transport: The client's connection.
        shape: What the server's last answer says about the table.
    """

    def __init__(self, transport: Transport, description: table_pb2.Table) -> None:
        self.transport = transport
        self.shape: TableShape = TableShape.of(description)
        self._python_rows: PythonRows | None = None

    @property
    def python_rows(self) -> PythonRows:
        """Encodes and decodes single rows of the known shape."""
        if self._python_rows is None or self._python_rows.shape is not self.shape:
            self._python_rows = PythonRows(self.shape)
        return self._python_rows

    @property
    def name(self) -> str:
        """The name as `database.table`."""
        return self.shape.name

    def parse_where(self, where: Where | None) -> Predicate | None:
        """Reads a `where` argument with the columns of the table."""
        return None if where is None else predicate_of(where, self.shape.schema)

    async def build_for_shape(self, build: Callable[[TableShape], _Built]) -> _Built:
        """Returns `build(shape)`. Asks the server for the shape again if the known one does not fit."""
        try:
            return build(self.shape)
        except SchemaMismatch:
            # The column may have been added since the table was opened.
            await self.refresh()
            return build(self.shape)

    async def describe(self, *, statistics: bool = False) -> table_pb2.GetTableResponse:
        """Asks the server for the table's description, with the statistics of its buckets if wanted."""
        request = table_pb2.GetTableRequest(name=self.name, statistics=statistics)
        return await self.transport.call(lambda: self.transport.services.tables.GetTable, request)

    async def refresh(self) -> None:
        """Asks the server for the table's shape."""
        self.shape = TableShape.of((await self.describe()).table)


class TableMethods:
    """Base of the groups of methods that make up `Table`. The groups share only the handle."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
