"""The same rows in a table without tablets and in one with three, which must answer every call in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from scankv.model.errors import ServerBusy
from scankv.v1 import table_pb2
from tests.support.waiting import wait_until
from tests.support.wire import refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from aio_client import sync
    from tests.support.wire import Wire

TABLETS = 3
BUCKETS = 7


@dataclass(frozen=True)
class TabletTwins:
    """Two tables with the same rows. Immutable.

    Attributes:
        client: A client of the server.
        wire: Calls of the server.
        names: The names of the table without tablets, and of that with tablets.
    """

    client: sync.Client
    wire: Wire
    names: tuple[str, str]

    @classmethod
    def create(
        cls, client: sync.Client, wire: Wire, name: str, schema: pa.Schema, key: Sequence[str], **given: Any
    ) -> TabletTwins:
        """Creates the tables. Further arguments are those of `create_table`."""
        names = (f"{name}_plain", f"{name}_tablets")
        for each, tablets in zip(names, (1, TABLETS), strict=True):
            client.create_table(each, schema, primary_key=key, buckets=BUCKETS, tablets=tablets, **given)
        assert wire.tables.GetTable(table_pb2.GetTableRequest(name=names[1])).table.tablets == TABLETS
        return cls(client, wire, names)

    def __iter__(self) -> Iterator[sync.Table]:
        return (self.client.table(name) for name in self.names)

    def upsert(self, rows: pa.RecordBatch | list[dict[str, Any]]) -> None:
        """Writes rows to both tables."""
        for table in self:
            table.upsert(rows)

    def both(self, call: Callable[[str], Any]) -> tuple[Any, Any]:
        """Returns what a call returns for the name of each table; its error if it is refused.

        A call that the server is too busy for is repeated, as clients do.
        """
        first, second = (wait_until(partial(self._answers, call, name), "answered") for name in self.names)
        return first[0], second[0]

    def _answers(self, call: Callable[[str], Any], name: str) -> list[Any]:  # whatever the call returns
        try:
            return [call(name)]
        except grpc.RpcError as error:
            refused = refusal_of(error)
            message = refused.message.replace(name, "TABLE").replace("#0", "")
            return [] if refused.reason == ServerBusy.reason else [(refused.code, refused.reason, message)]
