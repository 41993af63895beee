"""The state that all methods of a `Table` share: a connection and the table's shape."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from aio_client._table.python_rows import PythonRows
from aio_client._table.shape import TableShape
from scankv.model.errors import SchemaMismatch
from scankv.model.expressions import predicate_of
from scankv.model.short_tracebacks import SHORT_TRACEBACK
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.transport import Transport
    from scankv.model.expressions import Predicate, Where

_Built = TypeVar("_Built")

# Parsing a predicate takes about as long as a call without work.
_MAX_KEPT: Final = 64
_MAX_KEPT_LENGTH: Final = 1000


class TableHandle:
    """A table as one client reaches it. Belongs to the event loop of the client.

    Attributes:
        shape: What the server says about the table, as of when it was opened or a write needed a column that was added
            later. Rows to write must have its columns, so reads do not change it.
        read_shape: What the server says about the table, as of the last read that has found another shape.
        is_outdated: Whether the columns of `shape` have other names or types by now, or are gone.
    """

    def __init__(self, transport: Transport, description: table_pb2.Table) -> None:
        self._transport = transport
        self.shape: TableShape = TableShape.of(description)
        self.read_shape: TableShape = self.shape
        self.is_outdated: bool = False
        self._python_rows: PythonRows | None = None
        self._read_rows: PythonRows | None = None
        # Predicates by their text, which `where` arguments often repeat, and the shape for which they were parsed.
        self._parsed: dict[str, Predicate] = {}
        self._parsed_for: TableShape = self.shape

    @property
    def transport(self) -> Transport:
        """The client's connection to the owner of the table; to the server while the owner has not been found."""
        return self._transport.to_owner(self.shape.description.owner_port)

    @property
    def python_rows(self) -> PythonRows:
        """Encodes single rows to write, which have the columns of `shape`."""
        if self._python_rows is None or self._python_rows.shape is not self.shape:
            self._python_rows = PythonRows(self.shape)
        return self._python_rows

    @property
    def read_rows(self) -> PythonRows:
        """Encodes single keys to look up, and decodes rows, which have the columns of `read_shape`."""
        if self.read_shape is self.shape:
            return self.python_rows
        if self._read_rows is None or self._read_rows.shape is not self.read_shape:
            self._read_rows = PythonRows(self.read_shape)
        return self._read_rows

    @property
    def name(self) -> str:
        """The name as `database.table`."""
        return self.shape.name

    def parse_where(self, where: Where | None) -> Predicate | None:
        """Reads a `where` argument with the columns of the table."""
        if where is None:
            return None
        if not isinstance(where, str) or len(where) > _MAX_KEPT_LENGTH:
            return predicate_of(where, self.shape.schema)
        if self._parsed_for is not self.shape:
            self._parsed, self._parsed_for = {}, self.shape
        predicate = self._parsed.get(where)
        if predicate is None:
            with SHORT_TRACEBACK:
                predicate = predicate_of(where, self.shape.schema)
            if len(self._parsed) >= _MAX_KEPT:
                del self._parsed[next(iter(self._parsed))]
            self._parsed[where] = predicate
        return predicate

    async def build_for_shape(self, build: Callable[[TableShape], _Built]) -> _Built:
        """Returns `build(shape)`. Asks the server for the shape again if the known one does not fit."""
        with suppress(SchemaMismatch):
            return build(self.shape)
        # The column may have been added since the table was opened.
        await self.refresh()
        with SHORT_TRACEBACK:
            return build(self.shape)

    async def describe(self, *, statistics: bool = False) -> table_pb2.GetTableResponse:
        """Asks the server for the table's description, with the statistics of its buckets if wanted."""
        request = table_pb2.GetTableRequest(name=self.name, statistics=statistics)
        return await self.transport.call(lambda: self.transport.services.tables.GetTable, request)

    async def refresh(self) -> None:
        """Asks the server for the table's shape."""
        self.shape = self.read_shape = TableShape.of((await self.describe()).table)
        self.is_outdated = False

    async def follow(self) -> None:
        """Asks the server for the table's shape, and uses it if rows for the known shape mean the same in it."""
        newer = TableShape.of((await self.describe()).table)
        if self.shape.is_part_of(newer):
            self.shape = self.read_shape = newer
        else:
            self.is_outdated = True


class TableMethods:
    """Base of the groups of methods that make up `Table`. The groups share only the handle."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
