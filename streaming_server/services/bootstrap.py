"""`BootstrapService`: new tables with all their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from scankv.model.limits import MAX_WAIT_MILLIS
from scankv.v1 import bootstrap_pb2, bootstrap_pb2_grpc
from streaming_server.engine.bootstrap.bootstrap import BOOTSTRAP_TTL_SECONDS
from streaming_server.engine.transactions.open_transaction import check_id
from streaming_server.services.errors import map_errors, map_write_errors
from streaming_server.services.table import parts_of, schema_of, table_message
from streaming_server.services.write import overwrites
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from streaming_server.engine.tables.tables import Tables
    from streaming_server.storage.bootstrap.staged_runs import RequestOnDisk

_MAX_DIGEST_BYTES: Final = 64


class BootstrapService(bootstrap_pb2_grpc.BootstrapServiceServicer):
    """Serves bootstraps. See `protos/scankv/v1/bootstrap.proto` for the contract.

    Args:
        tables: The tables of this process.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._bootstraps = tables.bootstraps

    async def BeginBootstrap(
        self,
        request: bootstrap_pb2.BeginBootstrapRequest,
        context: grpc.aio.ServicerContext[bootstrap_pb2.BeginBootstrapRequest, bootstrap_pb2.BeginBootstrapResponse],
    ) -> bootstrap_pb2.BeginBootstrapResponse:
        async with map_write_errors(request, context):
            if request.definition.name != request.table:
                raise InvalidRequest(
                    f'definition.name must be the table "{request.table}", not "{request.definition.name}"'
                )
            schema, parts = schema_of(request.definition.arrow_schema), parts_of(request.definition)
            definition = self._tables.rules.define(request.table, schema, **parts)
            id_ = await self._tables.begin_bootstrap(
                definition,
                overwrite=overwrites(request.mode),
                merges_duplicates=request.merge_duplicates,
                ttl=request.ttl_millis / 1000 if request.ttl_millis else BOOTSTRAP_TTL_SECONDS,
                source=request.source,
                from_scratch=request.from_scratch,
            )
            begun = self._bootstraps.get(id_, request.table)
        return bootstrap_pb2.BeginBootstrapResponse(
            bootstrap_id=id_,
            definition=table_message(begun.definition),
            parts=[_part_message(part, requests) for part, requests in begun.staged.items()],
            is_committing=begun.is_committing,
        )

    async def StageRows(
        self,
        request: bootstrap_pb2.StageRowsRequest,
        context: grpc.aio.ServicerContext[bootstrap_pb2.StageRowsRequest, bootstrap_pb2.StageRowsResponse],
    ) -> bootstrap_pb2.StageRowsResponse:
        async with map_write_errors(request, context):
            check_id("a bootstrap's part", request.part)
            if len(request.digest) > _MAX_DIGEST_BYTES:
                raise InvalidRequest(f"digest must have at most {_MAX_DIGEST_BYTES} bytes, not {len(request.digest):,}")
            place = BootstrapRequest(request.part, request.sequence)
            id_, data, digest = request.bootstrap_id, request.rows, request.digest
            rows = await self._bootstraps.stage(id_, request.table, place, data, digest)
        return bootstrap_pb2.StageRowsResponse(rows=rows)

    async def CommitBootstrap(
        self,
        request: bootstrap_pb2.CommitBootstrapRequest,
        context: grpc.aio.ServicerContext[bootstrap_pb2.CommitBootstrapRequest, bootstrap_pb2.CommitBootstrapResponse],
    ) -> bootstrap_pb2.CommitBootstrapResponse:
        async with map_write_errors(request, context):
            if request.wait_millis > MAX_WAIT_MILLIS:
                raise InvalidRequest(f"wait_millis must be at most {MAX_WAIT_MILLIS:,}, not {request.wait_millis:,}")
            parts = _parts_of(request)
            rows = await self._tables.rows_of_bootstrap(request.bootstrap_id, request.table)
            if rows is not None:
                return bootstrap_pb2.CommitBootstrapResponse(done=True, rows=rows)
            wait = request.wait_millis / 1000
            made = await self._bootstraps.commit(request.bootstrap_id, request.table, parts, wait)
        return bootstrap_pb2.CommitBootstrapResponse(
            done=made.is_done, staged_rows=made.staged_rows, merged_rows=made.merged_rows, rows=made.rows
        )

    async def AbortBootstrap(
        self,
        request: bootstrap_pb2.AbortBootstrapRequest,
        context: grpc.aio.ServicerContext[bootstrap_pb2.AbortBootstrapRequest, bootstrap_pb2.AbortBootstrapResponse],
    ) -> bootstrap_pb2.AbortBootstrapResponse:
        async with map_errors(request, context):
            await self._bootstraps.abort(request.bootstrap_id, request.table)
        return bootstrap_pb2.AbortBootstrapResponse()


def _part_message(part: str, requests: Sequence[RequestOnDisk]) -> bootstrap_pb2.BootstrapPart:
    messages = [
        bootstrap_pb2.BootstrapPartRequest(rows=each.rows, bytes=each.size_bytes, digest=each.digest)
        for each in requests
    ]
    return bootstrap_pb2.BootstrapPart(part=part, requests=messages)


def _parts_of(request: bootstrap_pb2.CommitBootstrapRequest) -> dict[str, int]:
    """Returns the parts of a commit, with their numbers of requests. Raises InvalidRequest if one is named twice."""
    parts = {part.part: part.requests for part in request.parts}
    for name in parts:
        check_id("a bootstrap's part", name)
    if len(parts) < len(request.parts):
        raise InvalidRequest("a part of the bootstrap is named twice: name each part once")
    return parts
