"""`ConsumerService`: named readers of the changelog of a table, and their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest, InvalidResumeToken
from scankv.model.limits import MAX_RESUME_TOKEN_BYTES, MAX_ROWS_POSITION_BYTES
from scankv.v1 import consumer_pb2, consumer_pb2_grpc
from streaming_server.services.errors import map_errors
from streaming_server.services.log_request import log_start

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.changelog.consumer import ConsumerInfo
    from streaming_server.engine.tables.tables import Tables


class ConsumerService(consumer_pb2_grpc.ConsumerServiceServicer):
    """Serves consumers. See `protos/scankv/v1/consumer.proto` for the contract."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._consumers = tables.consumers

    async def ListConsumers(
        self,
        request: consumer_pb2.ListConsumersRequest,
        context: grpc.aio.ServicerContext[consumer_pb2.ListConsumersRequest, consumer_pb2.ListConsumersResponse],
    ) -> consumer_pb2.ListConsumersResponse:
        async with map_errors(request, context):
            table = self._tables.table(request.table).state
            infos = await self._consumers.list_consumers(table)
        incarnation = table.definition.incarnation
        return consumer_pb2.ListConsumersResponse(consumers=(_consumer(info, incarnation) for info in infos))

    async def CommitPosition(
        self,
        request: consumer_pb2.CommitPositionRequest,
        context: grpc.aio.ServicerContext[consumer_pb2.CommitPositionRequest, consumer_pb2.CommitPositionResponse],
    ) -> consumer_pb2.CommitPositionResponse:
        """Advances a consumer to a position that its stream has reached."""
        async with map_errors(request, context):
            if len(request.resume_token) > MAX_RESUME_TOKEN_BYTES:
                raise InvalidResumeToken("the resume token is damaged: send it exactly as it was received")
            if len(request.rows_position) > MAX_ROWS_POSITION_BYTES or (request.rows_position and request.resume_token):
                raise InvalidRequest(
                    f"rows_position must have at most {MAX_ROWS_POSITION_BYTES:,} bytes, and no resume_token beside it"
                )
            table = self._tables.table(request.table).state
            offsets, micros = await self._consumers.commit(
                table, request.consumer_id, request.fence, request.resume_token, request.rows_position
            )
        return consumer_pb2.CommitPositionResponse(
            log_offsets=offsets, committed_micros=micros, table_incarnation=table.definition.incarnation
        )

    async def ResetConsumer(
        self,
        request: consumer_pb2.ResetConsumerRequest,
        context: grpc.aio.ServicerContext[consumer_pb2.ResetConsumerRequest, consumer_pb2.ResetConsumerResponse],
    ) -> consumer_pb2.ResetConsumerResponse:
        async with map_errors(request, context):
            start = request.start
            table = self._tables.table(request.table).state
            if request.accept:
                if request.HasField("start"):
                    raise InvalidRequest("accept cannot be combined with start: it keeps the restored position")
                offsets = await self._consumers.accept(table, request.consumer_id)
                return consumer_pb2.ResetConsumerResponse(
                    log_offsets=offsets, table_incarnation=table.definition.incarnation
                )
            if start.WhichOneof("start") is None:
                raise InvalidRequest("start is missing: it must have the position at which the consumer continues")
            if start.WhichOneof("stop") or start.consumer_id or start.consumer_fence:
                raise InvalidRequest("start has other fields than start and clamp: a reset uses only these two")
            offsets = await self._consumers.reset(table, request.consumer_id, log_start(start), clamp=start.clamp)
        return consumer_pb2.ResetConsumerResponse(log_offsets=offsets, table_incarnation=table.definition.incarnation)

    async def DeleteConsumer(
        self,
        request: consumer_pb2.DeleteConsumerRequest,
        context: grpc.aio.ServicerContext[consumer_pb2.DeleteConsumerRequest, consumer_pb2.DeleteConsumerResponse],
    ) -> consumer_pb2.DeleteConsumerResponse:
        async with map_errors(request, context):
            await self._consumers.delete(self._tables.table(request.table).state, request.consumer_id)
        return consumer_pb2.DeleteConsumerResponse()


def _consumer(info: ConsumerInfo, incarnation: str) -> consumer_pb2.Consumer:
    return consumer_pb2.Consumer(
        consumer_id=info.consumer_id,
        log_offsets=info.offsets,
        lag=info.lag,
        committed_micros=info.committed_micros,
        live=info.live,
        full=info.full,
        remaining_millis=round(info.remaining * 1000),
        damage=info.damage,
        table_incarnation=incarnation,
        rows_position=info.rows_position,
        restored=info.is_restored,
        principal=info.principal,
    )
