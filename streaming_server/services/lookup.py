"""`LookupService`: reads by key, and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from protos.scankv.v1 import lookup_pb2, lookup_pb2_grpc
from streaming_server.services.errors import mapped_errors

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.tables import Tables


class LookupService(lookup_pb2_grpc.LookupServiceServicer):
    """Serves lookups and counts. See `protos/scankv/v1/lookup.proto` for what they promise."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def Lookup(
        self,
        request: lookup_pb2.LookupRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.LookupRequest, lookup_pb2.LookupResponse],
    ) -> lookup_pb2.LookupResponse:
        """Reads the rows of some keys."""
        async with mapped_errors(request, context):
            columns = tuple(request.columns.names) if request.HasField("columns") else None
            rows, found = await self._tables.table(request.table).lookup(request.keys, columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        return lookup_pb2.LookupResponse(rows=sink.getvalue().to_pybytes(), found=found)

    async def Count(
        self,
        request: lookup_pb2.CountRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.CountRequest, lookup_pb2.CountResponse],
    ) -> lookup_pb2.CountResponse:
        """Counts the rows of a table."""
        async with mapped_errors(request, context):
            rows, offsets = await self._tables.table(request.table).count(tuple(request.buckets) or None)
        return lookup_pb2.CountResponse(rows=rows, log_offsets=offsets)
