"""`TabletService`: what the owner of a table with tablets asks their owners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc

from scankv.model.errors import PermissionDenied
from scankv.v1 import worker_pb2, worker_pb2_grpc
from streaming_server.current_call import CALL_METADATA
from streaming_server.engine.columnar.base_adoption import adopt_bases
from streaming_server.services.errors import map_errors
from streaming_server.services.forwarding import error_of
from streaming_server.services.tablets.tablet_calls import HOLD_SECONDS

if TYPE_CHECKING:
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers
    from streaming_server.services.tablets.tablet_queries import TabletQueries

_FOLLOW: Final = "scankv.v1.TabletService/FollowTable"
_FOLLOW_SECONDS: Final = 10.0


class TabletService(worker_pb2_grpc.TabletServiceServicer):
    """Serves the owners of tables. See `protos/scankv/v1/worker.proto` for the contract.

    Args:
        tables: The tables and tablets of this worker.
        workers: The workers of the server.
        queries: Computes the shares of tablets in queries.
    """

    def __init__(self, tables: Tables, workers: Workers, queries: TabletQueries) -> None:
        self._tables = tables
        self._workers = workers
        self._queries = queries

    def _check_caller(self) -> None:
        """Raises PermissionDenied unless a worker of this server calls."""
        if not self._workers.is_forwarded(CALL_METADATA.get()):
            raise PermissionDenied("only the worker processes of the server can make this call")

    async def FollowTable(
        self,
        request: worker_pb2.FollowTableRequest,
        context: grpc.aio.ServicerContext[worker_pb2.FollowTableRequest, worker_pb2.FollowTableResponse],
    ) -> worker_pb2.FollowTableResponse:
        async with map_errors(request, context):
            self._check_caller()
            await self._tables.tablets.follow(request.table_name, closing=request.closing)
        return worker_pb2.FollowTableResponse()

    async def HoldTablet(  # type: ignore[override]  # it writes its answer
        self,
        request: worker_pb2.HoldTabletRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async with map_errors(request, context):
            self._check_caller()
            table = self._tables.table(request.tablet)
            # A call under the hold cannot do either, which takes the mutexes.
            await adopt_bases(table.state, [*table.buckets])
            if request.flushes:
                await table.pinning.flush()
                await context.write(worker_pb2.HoldTabletResponse())
                return
            async with self._tables.holds.hold(request.hold_id, table.buckets):
                await context.write(worker_pb2.HoldTabletResponse())
                # The caller ends the call once the views are open.
                await asyncio.sleep(HOLD_SECONDS)

    async def QueryTablet(  # type: ignore[override]  # it writes its answers
        self,
        request: worker_pb2.QueryTabletRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async with map_errors(request, context):
            self._check_caller()
            await self._queries.answer(request, context.peer(), context.write)

    async def WatchTablet(
        self,
        request: worker_pb2.WatchTabletRequest,
        context: grpc.aio.ServicerContext[worker_pb2.WatchTabletRequest, worker_pb2.WatchTabletResponse],
    ) -> worker_pb2.WatchTabletResponse:
        async with map_errors(request, context):
            self._check_caller()
            return worker_pb2.WatchTabletResponse(version=await self._queries.version(request))
        raise AssertionError("map_errors ends the call")


async def tell_owners(workers: Workers, table: str, closing: bool) -> None:
    """Has all other workers follow a table. Raises the error of the first one that does not."""
    request = worker_pb2.FollowTableRequest(table_name=table, closing=closing).SerializeToString()

    async def tell(number: int) -> None:
        try:
            await workers.ask(number, _FOLLOW, request, _FOLLOW_SECONDS, of_server=True)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, number, f"tablets of {table}") from error

    others = (number for number in range(len(workers)) if number != workers.placement.number)
    for each in await asyncio.gather(*map(tell, others), return_exceptions=True):
        if isinstance(each, BaseException):
            raise each
