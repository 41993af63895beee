"""`SnapshotService`: pinned snapshots and their splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest
from scankv.model.expressions.wire import from_proto
from scankv.v1 import scan_pb2, snapshot_pb2, snapshot_pb2_grpc
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL
from streaming_server.scan.chunk_source import total_rows
from streaming_server.services.errors import map_errors
from streaming_server.services.scan_request import bucket_numbers, key_range

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.snapshots.leases import SnapshotInfo
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers


class SnapshotService(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Serves pinned snapshots. See `protos/scankv/v1/snapshot.proto` for the contract.

    Args:
        tables: The tables of this process.
        workers: The workers of the server. None: this process is the whole server.
    """

    def __init__(self, tables: Tables, workers: Workers | None = None) -> None:
        self._tables = tables
        self._workers = workers
        self._snapshots = tables.snapshots

    async def PinSnapshot(
        self,
        request: snapshot_pb2.PinSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.PinSnapshotRequest, snapshot_pb2.PinSnapshotResponse],
    ) -> snapshot_pb2.PinSnapshotResponse:
        async with map_errors(request, context):
            info = await self._snapshots.pin(
                self._tables.table(request.table).pinning,
                lease_id=request.lease_id,
                ttl=_ttl(request.ttl_millis),
                same_view_as=request.same_view_as,
                shared=request.shared,
                name=request.name,
            )
        return snapshot_pb2.PinSnapshotResponse(snapshot=_snapshot(info), write_pause_micros=info.write_pause_micros)

    async def RenewSnapshot(
        self,
        request: snapshot_pb2.RenewSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.RenewSnapshotRequest, snapshot_pb2.RenewSnapshotResponse],
    ) -> snapshot_pb2.RenewSnapshotResponse:
        async with map_errors(request, context):
            info = await self._snapshots.renew(request.snapshot_id, _ttl(request.ttl_millis))
        return snapshot_pb2.RenewSnapshotResponse(snapshot=_snapshot(info))

    async def ReleaseSnapshot(
        self,
        request: snapshot_pb2.ReleaseSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.ReleaseSnapshotRequest, snapshot_pb2.ReleaseSnapshotResponse],
    ) -> snapshot_pb2.ReleaseSnapshotResponse:
        async with map_errors(request, context):
            await self._snapshots.release(request.snapshot_id)
        return snapshot_pb2.ReleaseSnapshotResponse()

    async def ListSnapshots(
        self,
        request: snapshot_pb2.ListSnapshotsRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.ListSnapshotsRequest, snapshot_pb2.ListSnapshotsResponse],
    ) -> snapshot_pb2.ListSnapshotsResponse:
        async with map_errors(request, context):
            table = self._tables.table(request.table).definition.name if request.table else None
            infos = self._snapshots.list_snapshots(table)
        return snapshot_pb2.ListSnapshotsResponse(snapshots=map(_snapshot, infos))

    async def SplitSnapshot(
        self,
        request: snapshot_pb2.SplitSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.SplitSnapshotRequest, snapshot_pb2.SplitSnapshotResponse],
    ) -> snapshot_pb2.SplitSnapshotResponse:
        async with map_errors(request, context):
            ranges = await self._snapshots.split(
                request.snapshot_id,
                request.splits,
                key_range(request.key_range),
                bucket_numbers(request.buckets),
                where=from_proto(request.where) if request.HasField("where") else None,
                rows_per_split=request.rows_per_split or None,
            )
        return snapshot_pb2.SplitSnapshotResponse(
            ranges=(scan_pb2.KeyRange(start=each.start, end=each.end) for each in ranges)
        )

    async def UseSnapshot(  # type: ignore[override]  # as `AdminService.CheckTable`
        self,
        request: snapshot_pb2.UseSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.UseSnapshotRequest, snapshot_pb2.UseSnapshotResponse],
    ) -> None:
        """Lends a view to another worker until the call ends."""
        async with map_errors(request, context):
            if self._workers is None or not self._workers.is_forwarded(CALL_METADATA.get()):
                raise InvalidRequest("UseSnapshot is for the worker processes of the server: scan the snapshot instead")
            if (call := CURRENT_CALL.get()) is not None:
                call.may_last = True
            self._tables.table(request.table)
            with self._snapshots.lend(request.snapshot_id, request.table) as lent:
                await context.write(
                    snapshot_pb2.UseSnapshotResponse(view_id=lent.view_id, table_incarnation=lent.incarnation)
                )
                raise await lent.wait_ended()


def _ttl(millis: int) -> float | None:
    return millis / 1000 if millis else None


def _snapshot(info: SnapshotInfo) -> snapshot_pb2.Snapshot:
    manifest = info.manifest
    return snapshot_pb2.Snapshot(
        snapshot_id=info.snapshot_id,
        view_id=info.view_id,
        table=manifest.definition.name,
        table_incarnation=manifest.definition.incarnation,
        arrow_schema=manifest.definition.schema.arrow.serialize().to_pybytes(),
        schema_id=manifest.definition.schema.id,
        log_offsets={number: bucket.log_offset for number, bucket in manifest.buckets.items()},
        view_micros=manifest.view_micros,
        rows=total_rows(bucket.rows for bucket in manifest.buckets.values()),
        ttl_millis=round(info.ttl * 1000),
        remaining_millis=round(info.remaining * 1000),
        name=info.name,
    )
