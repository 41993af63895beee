"""Writes of many rows to a table with tablets: the owner of each tablet gets its rows directly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aio_client._write.repeatable_writes import write_until_answered
from scankv.model.errors import NotOwner, TableNotFound
from scankv.model.keys.buckets import bucket_of, tablet_of
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.names import tablet_name
from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._table.shape import TableShape
    from aio_client._transport.transport import Transport
    from aio_client._write.repeatable_writes import Request
    from aio_client._write.write_requests import RequestKind
    from scankv.v1 import table_pb2

_MANY_ROWS: Final = 1024
"""The fewest rows that are divided. Fewer go to the owner of the table, which checks all rows before it writes any."""


async def write_rows(
    transport: Transport,
    shape: TableShape,
    kind: RequestKind,
    batch: pa.RecordBatch,
    complete: Callable[[Request], None],
    *,
    is_indivisible: bool = False,
) -> write_pb2.WriteResponse:
    """Writes the rows of one request, and sends many rows to the owners of their tablets. Repeats until answered.

    Args:
        transport: The transport to the owner of the table.
        shape: The table.
        kind: What to do with the rows.
        batch: The rows.
        complete: Adds the identity of the request, the same to each of its parts.
        is_indivisible: Whether the request must not be divided, because it has a precondition.

    Raises:
        ScanKvError: See `write_until_answered`. Rows of other tablets may have been written.
    """
    description = shape.description
    if is_indivisible or description.tablets < 2 or batch.num_rows < _MANY_ROWS:
        request = await asyncio.to_thread(kind.request, batch)
        complete(request)
        return await write_until_answered(transport, request)
    requests = await asyncio.to_thread(_divide, shape, kind, batch)
    for request in requests.values():
        complete(request)
    while True:
        answers = await asyncio.gather(
            *(_write_to_tablet(transport, description, *each) for each in requests.items()), return_exceptions=True
        )
        joined, incarnations = write_pb2.WriteResponse(), set[str]()
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            joined.MergeFrom(answer)
            incarnations.add(answer.table_incarnation)
        if len(incarnations) == 1:
            break
        # The table was created again in between, and lacks the rows that went to its earlier incarnation. Rows that it
        # has are not written twice, because each request keeps its identity.
    joined.rows = batch.num_rows
    return joined


def _divide(shape: TableShape, kind: RequestKind, batch: pa.RecordBatch) -> dict[int, Request]:
    """Returns the request for each tablet. Blocks."""
    description = shape.description
    names = list(description.bucket_key)
    codec = KeyCodec([shape.schema.field(name).type for name in names], names)
    buckets = bucket_of(codec.encode([codec.canonical(batch.column(name)) for name in names]), description.buckets)
    tablets = tablet_of(buckets.astype(np.int64), description.buckets, description.tablets)
    requests = {}
    for tablet in np.unique(tablets).tolist():
        requests[tablet] = kind.request(batch.take(pa.array(np.flatnonzero(tablets == tablet))))
        requests[tablet].table = tablet_name(shape.name, tablet)
    return requests


async def _write_to_tablet(
    transport: Transport, description: table_pb2.Table, tablet: int, request: Request
) -> write_pb2.WriteResponse:
    """Sends a request to the owner of a tablet, or, if that worker is not its owner, to the owner of the table."""
    try:
        return await write_until_answered(await transport.to_tablet(description, tablet), request)
    except (NotOwner, TableNotFound):
        request.table = description.name
        return await write_until_answered(transport, request)
