"""`LockService`: column locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.v1 import lock_pb2, lock_pb2_grpc
from streaming_server.services.errors import map_errors

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.tables.tables import Tables
    from streaming_server.engine.writes.column_locks import HeldColumnLock


class LockService(lock_pb2_grpc.LockServiceServicer):
    """Serves the column locks. See `protos/scankv/v1/lock.proto` for the contract."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def LockColumns(
        self,
        request: lock_pb2.LockColumnsRequest,
        context: grpc.aio.ServicerContext[lock_pb2.LockColumnsRequest, lock_pb2.LockColumnsResponse],
    ) -> lock_pb2.LockColumnsResponse:
        async with map_errors(request, context):
            table = self._tables.table(request.table)
            lock = await table.writes.locks.lock(
                lambda: table.definition,
                request.columns,
                request.owner,
                request.lock_id,
                _seconds(request.ttl_millis),
                take_over=request.take_over,
            )
            self._tables.locks.notify(lock)
        return lock_pb2.LockColumnsResponse(lock=_message(lock))

    async def RenewColumnLock(
        self,
        request: lock_pb2.RenewColumnLockRequest,
        context: grpc.aio.ServicerContext[lock_pb2.RenewColumnLockRequest, lock_pb2.RenewColumnLockResponse],
    ) -> lock_pb2.RenewColumnLockResponse:
        async with map_errors(request, context):
            locks = self._tables.locks.with_id(request.lock_id)
            lock = await locks.renew(request.lock_id, _seconds(request.ttl_millis))
            self._tables.locks.notify(lock)
        return lock_pb2.RenewColumnLockResponse(lock=_message(lock))

    async def ReleaseColumnLock(
        self,
        request: lock_pb2.ReleaseColumnLockRequest,
        context: grpc.aio.ServicerContext[lock_pb2.ReleaseColumnLockRequest, lock_pb2.ReleaseColumnLockResponse],
    ) -> lock_pb2.ReleaseColumnLockResponse:
        async with map_errors(request, context):
            await self._tables.locks.with_id(request.lock_id).release(request.lock_id)
        return lock_pb2.ReleaseColumnLockResponse()

    async def ListColumnLocks(
        self,
        request: lock_pb2.ListColumnLocksRequest,
        context: grpc.aio.ServicerContext[lock_pb2.ListColumnLocksRequest, lock_pb2.ListColumnLocksResponse],
    ) -> lock_pb2.ListColumnLocksResponse:
        async with map_errors(request, context):
            table = self._tables.table(request.table).definition.name if request.table else None
            locks = self._tables.locks.list_locks(table)
        return lock_pb2.ListColumnLocksResponse(locks=map(_message, locks))


def _seconds(millis: int) -> float | None:
    return millis / 1000 if millis else None


def _message(lock: HeldColumnLock) -> lock_pb2.ColumnLock:
    return lock_pb2.ColumnLock(
        lock_id=lock.lock_id,
        table=lock.table,
        columns=lock.columns,
        owner=lock.owner,
        ttl_millis=round(lock.ttl * 1000),
        remaining_millis=round(lock.remaining * 1000),
        principal=lock.principal,
    )
