"""`PartitionService`: the partitions of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.v1 import partition_pb2, partition_pb2_grpc
from streaming_server.services.errors import map_errors

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.table.table_partitions import PartitionStats
    from streaming_server.engine.tables.tables import Tables


class PartitionService(partition_pb2_grpc.PartitionServiceServicer):
    """Serves the partitions of tables. See `protos/scankv/v1/partition.proto` for the contract."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def CreatePartition(
        self,
        request: partition_pb2.CreatePartitionRequest,
        context: grpc.aio.ServicerContext[partition_pb2.CreatePartitionRequest, partition_pb2.CreatePartitionResponse],
    ) -> partition_pb2.CreatePartitionResponse:
        async with map_errors(request, context):
            created = await self._tables.table(request.table).partitions.create(request.values)
        return partition_pb2.CreatePartitionResponse(created=created)

    async def DropPartitions(
        self,
        request: partition_pb2.DropPartitionsRequest,
        context: grpc.aio.ServicerContext[partition_pb2.DropPartitionsRequest, partition_pb2.DropPartitionsResponse],
    ) -> partition_pb2.DropPartitionsResponse:
        async with map_errors(request, context):
            dropped = await self._tables.drop_partitions(request.table, request.values)
        return partition_pb2.DropPartitionsResponse(partitions=map(_message, dropped))

    async def ListPartitions(
        self,
        request: partition_pb2.ListPartitionsRequest,
        context: grpc.aio.ServicerContext[partition_pb2.ListPartitionsRequest, partition_pb2.ListPartitionsResponse],
    ) -> partition_pb2.ListPartitionsResponse:
        async with map_errors(request, context):
            found = await self._tables.table(request.table).partitions.list_partitions(request.values)
        return partition_pb2.ListPartitionsResponse(partitions=map(_message, found))


def _message(found: PartitionStats) -> partition_pb2.Partition:
    return partition_pb2.Partition(
        values=found.prefix,
        rows=found.rows,
        disk_bytes=found.disk_bytes,
        created_micros=found.created_micros,
        written_micros=found.written_micros,
    )
