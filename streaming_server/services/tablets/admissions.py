"""Writes that clients send to the owners of tablets: the owner of the table admits them, as it has the column locks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc

from scankv.model.errors import NotOwner
from scankv.model.names import table_of, tablet_number
from scankv.v1 import worker_pb2, write_pb2
from streaming_server.engine.bucket.call_point import CallPoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers

_Request: TypeAlias = write_pb2.UpsertRequest | write_pb2.DeleteRequest

_ADMIT: Final = "scankv.v1.TabletService/AdmitWrite"


@asynccontextmanager
async def admitted(request: _Request, workers: Workers, tables: Tables, seconds: float | None) -> AsyncIterator[None]:
    """Has the owner of the table admit a write for the length of the block, if a client has sent it to a tablet.

    Args:
        request: The write. Once it is admitted, it needs no column locks.
        workers: The workers of the server.
        tables: The tables and tablets of this worker.
        seconds: How long the client waits. None: without a limit.

    Raises:
        NotOwner: The write is not admitted. The client then sends it to the owner of the table, which knows whether it
            was written before.
    """
    if tablet_number(request.table) is None or request.admitted:
        yield
        return
    table, definition = table_of(request.table), tables.table(request.table).definition
    if request.schema_id > definition.schema.id:
        # Either this process is behind, or the client knows an earlier table of this name.
        tables.tablets.catch_up(table)
        raise _not_admitted(request)
    point = CallPoint.of(definition, tables.clock)
    asked = worker_pb2.AdmitWriteRequest(
        table_name=table, columns=request.columns, schema_id=request.schema_id, column_locks=request.column_locks
    )
    owner, data = workers.placement.owner_of(table), asked.SerializeToString()
    with workers.open(owner, _ADMIT, data, seconds, point=point.to_bytes()) as call:
        try:
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            raise _not_admitted(request) from error
        if not isinstance(answer, bytes):
            raise _not_admitted(request)
        request.ClearField("column_locks")
        yield


def _not_admitted(request: _Request) -> NotOwner:
    table = table_of(request.table)
    return NotOwner(f"the write is not admitted at {request.table}: send it to table {table}", table=table)
