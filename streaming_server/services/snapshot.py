"""`SnapshotService`: pinned snapshots and their splits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest
from scankv.model.names import table_of
from scankv.v1 import snapshot_pb2, snapshot_pb2_grpc
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL
from streaming_server.engine.snapshots.part_ids import PartId
from streaming_server.scan.chunk_source import total_rows
from streaming_server.services.errors import map_errors
from streaming_server.services.snapshot_request import split_request, split_response, ttl_of
from streaming_server.services.tablets.joined_snapshots import join_snapshots
from streaming_server.services.tablets.several_snapshots import pin_tables

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.snapshots.leases import SnapshotInfo
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers


class SnapshotService(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Serves pinned snapshots. See `protos/scankv/v1/snapshot.proto` for the contract.

    Args:
        tables: The tables of this process.
        workers: The workers of the server.
    """

    def __init__(self, tables: Tables, workers: Workers) -> None:
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
                ttl=ttl_of(request.ttl_millis),
                same_view_as=request.same_view_as,
                shared=request.shared,
                name=request.name,
            )
        return snapshot_pb2.PinSnapshotResponse(snapshot=_snapshot(info), write_pause_micros=info.write_pause_micros)

    async def PinSnapshots(
        self,
        request: snapshot_pb2.PinSnapshotsRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.PinSnapshotsRequest, snapshot_pb2.PinSnapshotsResponse],
    ) -> snapshot_pb2.PinSnapshotsResponse:
        async with map_errors(request, context):
            return await pin_tables(request.tables, ttl_of(request.ttl_millis), self._workers, self._tables, context)
        raise AssertionError("map_errors ends the call")

    async def RenewSnapshot(
        self,
        request: snapshot_pb2.RenewSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.RenewSnapshotRequest, snapshot_pb2.RenewSnapshotResponse],
    ) -> snapshot_pb2.RenewSnapshotResponse:
        async with map_errors(request, context):
            part = PartId.parse(request.snapshot_id)
            if part is not None and request.announces:
                await self._snapshots.announce(part)
            info = await self._snapshots.renew(request.snapshot_id, ttl_of(request.ttl_millis))
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
            found = map(_snapshot, self._snapshots.list_snapshots(table))
            # The worker that has called joins the parts of several workers.
            is_part = self._workers.is_forwarded(CALL_METADATA.get())
        return snapshot_pb2.ListSnapshotsResponse(snapshots=found if is_part else join_snapshots(found))

    async def SplitSnapshot(
        self,
        request: snapshot_pb2.SplitSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.SplitSnapshotRequest, snapshot_pb2.SplitSnapshotResponse],
    ) -> snapshot_pb2.SplitSnapshotResponse:
        async with map_errors(request, context):
            cut = split_request(request)
            if request.sample:
                sample, _ = await self._snapshots.sample(request.snapshot_id, cut)
                return snapshot_pb2.SplitSnapshotResponse(sample=json.dumps(sample.to_json()).encode())
            ranges = await self._snapshots.split(
                request.snapshot_id,
                cut.splits,
                cut.key_range,
                cut.buckets,
                where=cut.where,
                rows_per_split=cut.rows_per_split,
            )
        return split_response(ranges)

    async def UseSnapshot(  # type: ignore[override]  # as `AdminService.CheckTable`
        self,
        request: snapshot_pb2.UseSnapshotRequest,
        context: grpc.aio.ServicerContext[snapshot_pb2.UseSnapshotRequest, snapshot_pb2.UseSnapshotResponse],
    ) -> None:
        """Lends a view to another worker until the call ends."""
        async with map_errors(request, context):
            if not self._workers.is_forwarded(CALL_METADATA.get()):
                raise InvalidRequest("UseSnapshot is for the worker processes of the server: scan the snapshot instead")
            if (call := CURRENT_CALL.get()) is not None:
                call.may_last = True
            self._tables.table(request.table)
            with self._snapshots.lend(request.snapshot_id, request.table) as lent:
                await context.write(
                    snapshot_pb2.UseSnapshotResponse(view_id=lent.view_id, table_incarnation=lent.incarnation)
                )
                raise await lent.wait_ended()


def _snapshot(info: SnapshotInfo) -> snapshot_pb2.Snapshot:
    manifest = info.manifest
    return snapshot_pb2.Snapshot(
        snapshot_id=info.snapshot_id,
        view_id=info.view_id,
        table=table_of(manifest.definition.name),
        table_incarnation=manifest.definition.incarnation,
        arrow_schema=manifest.definition.schema.arrow.serialize().to_pybytes(),
        schema_id=manifest.definition.schema.id,
        log_offsets={number: bucket.log_offset for number, bucket in manifest.buckets.items()},
        view_micros=manifest.view_micros,
        rows=total_rows(bucket.rows for bucket in manifest.buckets.values()),
        ttl_millis=round(info.ttl * 1000),
        remaining_millis=round(info.remaining * 1000),
        name=info.name,
        principal=info.principal,
    )
