"""`TabletService`: the calls of the owner of a table with tablets to the owners of the tablets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc

from scankv.model.changes.log_positions import PositionKind
from scankv.v1 import worker_pb2, worker_pb2_grpc
from streaming_server.current_call import CALL_METADATA
from streaming_server.engine.bucket.call_point import check_is_recent, check_point
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_durable
from streaming_server.engine.changelog.consumer_registry import ends_of
from streaming_server.engine.changelog.log_starts import LogStarts
from streaming_server.engine.columnar.base_adoption import adopt_bases
from streaming_server.engine.merging.preparing import current_columns
from streaming_server.engine.tasks.executor import all_ended
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.services.errors import map_errors
from streaming_server.services.forwarding import error_of
from streaming_server.services.log_request import log_start
from streaming_server.services.tablets.owner_calls import HOLD_SECONDS

if TYPE_CHECKING:
    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers
    from streaming_server.services.tablets.tablet_queries import TabletQueries

_FOLLOW: Final = "scankv.v1.TabletService/FollowTable"
_FOLLOW_SECONDS: Final = 5.0

_PIN_SECONDS: Final = 60.0
"""For how long a call may keep others from pinning a tablet. It ends sooner with the process that makes it."""


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

    async def FollowTable(
        self,
        request: worker_pb2.FollowTableRequest,
        context: grpc.aio.ServicerContext[worker_pb2.FollowTableRequest, worker_pb2.FollowTableResponse],
    ) -> worker_pb2.FollowTableResponse:
        async with map_errors(request, context):
            if await self._tables.tablets.follow(request.table_name, closing=request.closing):
                # Dropped tablets lack no rows of a transaction any more.
                await self._tables.transactions.retry(request.table_name)
        return worker_pb2.FollowTableResponse()

    async def HoldTablet(  # type: ignore[override]  # it writes its answer
        self,
        request: worker_pb2.HoldTabletRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async with map_errors(request, context):
            table = self._tables.table(request.tablet)
            if request.flushes:
                async with table.pinning.exclude_others():
                    await context.write(worker_pb2.HoldTabletResponse())
                    # Both steps take the mutexes, so a call under the hold cannot take them.
                    await adopt_bases(table.state, [*table.buckets])
                    await table.pinning.flush()
                    await context.write(worker_pb2.HoldTabletResponse())
                    # The caller ends the call once the tablet is pinned.
                    await asyncio.sleep(_PIN_SECONDS)
                return
            await adopt_bases(table.state, [*table.buckets])
            async with self._tables.holds.hold(request.hold_id, table.buckets):
                # From here on, nothing alters the tablet.
                check_point(table.definition)
                check_is_recent(self._tables.clock)
                await context.write(worker_pb2.HoldTabletResponse())
                # The caller ends the call once the views are open.
                await asyncio.sleep(HOLD_SECONDS)

    async def AdmitWrite(  # type: ignore[override]  # it writes its answer
        self,
        request: worker_pb2.AdmitWriteRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async with map_errors(request, context):
            table = self._tables.table(request.table_name)
            columns = current_columns(table.definition, request.schema_id, tuple(request.columns))
            with table.writes.locks.admit(columns, request.column_locks):
                await context.write(worker_pb2.AdmitWriteResponse())
                # The caller ends the call once the rows are written.
                await asyncio.get_running_loop().create_future()

    async def QueryTablet(  # type: ignore[override]  # it writes its answers
        self,
        request: worker_pb2.QueryTabletRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async with map_errors(request, context):
            scan_id = self._workers.scan_of(CALL_METADATA.get())
            await self._queries.answer(request, context.peer(), scan_id, context.write)

    async def WatchTablet(
        self,
        request: worker_pb2.WatchTabletRequest,
        context: grpc.aio.ServicerContext[worker_pb2.WatchTabletRequest, worker_pb2.WatchTabletResponse],
    ) -> worker_pb2.WatchTabletResponse:
        async with map_errors(request, context):
            return worker_pb2.WatchTabletResponse(version=await self._queries.version(request))
        raise AssertionError("map_errors ends the call")

    async def FindOffsets(
        self,
        request: worker_pb2.FindOffsetsRequest,
        context: grpc.aio.ServicerContext[worker_pb2.FindOffsetsRequest, worker_pb2.FindOffsetsResponse],
    ) -> worker_pb2.FindOffsetsResponse:
        async with map_errors(request, context):
            state = self._tables.table(request.tablet).state
            if request.ends_of_sound:
                return worker_pb2.FindOffsetsResponse(log_offsets=await ends_of(state, set(request.buckets)))
            return await self._find(state, request)
        raise AssertionError("map_errors ends the call")

    async def _find(self, state: TableState, request: worker_pb2.FindOffsetsRequest) -> worker_pb2.FindOffsetsResponse:
        start, answer = log_start(request.start), worker_pb2.FindOffsetsResponse()
        async with lock_buckets(state.select_buckets(request.buckets)) as opened:
            buckets = {live.number: (live, bucket) for live, bucket in opened}
            starts = LogStarts(state.definition, buckets, self._tables.clock)
            if request.last_of_buckets:
                offsets = await starts.last_of_buckets(request.last_of_buckets)
            else:
                offsets = await starts.of(start, clamp=request.start.clamp)
                if start.kind is PositionKind.LAST:
                    times = await starts.last_times(start.count)
                    answer.commit_micros.update({n: own.astype("<i8").tobytes() for n, own in times.items()})
            states = {number: bucket.state for number, (_, bucket) in buckets.items()}
            # Trimming needs the mutexes, so no change from these offsets on is trimmed yet.
            if request.consumer_id:
                self._tables.consumers.keep_from(state, request.consumer_id, offsets)
        await wait_until_durable(state.buckets, states)
        answer.log_offsets.update(offsets)
        return answer

    async def KeepChanges(
        self,
        request: worker_pb2.KeepChangesRequest,
        context: grpc.aio.ServicerContext[worker_pb2.KeepChangesRequest, worker_pb2.KeepChangesResponse],
    ) -> worker_pb2.KeepChangesResponse:
        async with map_errors(request, context):
            state = self._tables.table(request.tablet).state
            self._tables.consumers.keep(state, request.consumer_id, dict(request.log_offsets))
        return worker_pb2.KeepChangesResponse()

    async def DiscardFragments(
        self,
        request: worker_pb2.DiscardFragmentsRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DiscardFragmentsRequest, worker_pb2.DiscardFragmentsResponse],
    ) -> worker_pb2.DiscardFragmentsResponse:
        async with map_errors(request, context):
            place = StagedRequestId(token=request.token, part=request.part, sequence=request.sequence)
            await self._tables.transactions.staging.discard(place)
        return worker_pb2.DiscardFragmentsResponse()


async def notify_owners(workers: Workers, table: str, closing: bool) -> None:
    """Has all other workers follow a table. Raises the first error of one of them."""
    request = worker_pb2.FollowTableRequest(table_name=table, closing=closing).SerializeToString()

    async def notify(number: int) -> None:
        try:
            await workers.ask(number, _FOLLOW, request, _FOLLOW_SECONDS, of_server=True)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, number, f"tablets of {table}") from error

    others = (number for number in range(len(workers)) if number != workers.placement.number)
    await all_ended(map(notify, others))
