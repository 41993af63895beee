"""`WriteService`: upserts and deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protos.scankv.v1 import write_pb2, write_pb2_grpc
from streaming_server.services.errors import mapped_errors

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.tables import Tables


class WriteService(write_pb2_grpc.WriteServiceServicer):
    """Serves the writes. See `protos/scankv/v1/write.proto` for what they promise.

    Attributes:
        rows_written: Rows and keys acknowledged since the start.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.rows_written = 0

    async def Upsert(
        self,
        request: write_pb2.UpsertRequest,
        context: grpc.aio.ServicerContext[write_pb2.UpsertRequest, write_pb2.WriteResponse],
    ) -> write_pb2.WriteResponse:
        """Inserts or replaces rows."""
        async with mapped_errors(request, context):
            rows, offsets = await self._tables.table(request.table).upsert(request.rows, request.schema_id)
        self.rows_written += rows
        return write_pb2.WriteResponse(rows=rows, log_offsets=offsets)

    async def Delete(
        self,
        request: write_pb2.DeleteRequest,
        context: grpc.aio.ServicerContext[write_pb2.DeleteRequest, write_pb2.WriteResponse],
    ) -> write_pb2.WriteResponse:
        """Deletes rows by key."""
        async with mapped_errors(request, context):
            rows, offsets = await self._tables.table(request.table).delete(request.keys)
        self.rows_written += rows
        return write_pb2.WriteResponse(rows=rows, log_offsets=offsets)
