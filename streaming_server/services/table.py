"""`TableService`: creating, changing, dropping and describing tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.errors import InvalidRequest
from scankv.model.limits import MAX_SIZED_TABLES
from scankv.model.names import table_of
from scankv.model.tables.evolution import ColumnChanges
from scankv.model.tables.merge_wire import aggregates_from_proto, merging_from_proto, merging_to_proto
from scankv.model.types.default_values import values_to_ipc
from scankv.model.types.types import storable_type
from scankv.v1 import table_pb2, table_pb2_grpc
from streaming_server.access.callers import ANYBODY
from streaming_server.access.grants import Role
from streaming_server.access.owners import CALLER
from streaming_server.engine.bucket.request_rows import read_batch
from streaming_server.services.bases import base_statistics
from streaming_server.services.errors import map_errors
from streaming_server.services.merged_answers import merge_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucketStats
    from streaming_server.engine.indexes.index_builds import IndexBuildProgress
    from streaming_server.engine.tables.definition_rules import TableParts
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.storage.files.disk_use import BucketFiles, DiskBytes
    from streaming_server.workers import WorkerSettings


class TableService(table_pb2_grpc.TableServiceServicer):
    """Serves table definitions. See `protos/scankv/v1/table.proto` for the contract.

    Args:
        tables: The tables of this process.
        worker: What makes this process one of several of its server. None: it is the complete server.
    """

    def __init__(self, tables: Tables, worker: WorkerSettings | None = None) -> None:
        self._tables = tables
        self._worker = worker

    async def CreateTable(
        self,
        request: table_pb2.CreateTableRequest,
        context: grpc.aio.ServicerContext[table_pb2.CreateTableRequest, table_pb2.CreateTableResponse],
    ) -> table_pb2.CreateTableResponse:
        async with map_errors(request, context):
            definition = await self._tables.create(request.name, schema_of(request.arrow_schema), **parts_of(request))
        return table_pb2.CreateTableResponse(table=self._message(definition))

    async def DropTable(
        self,
        request: table_pb2.DropTableRequest,
        context: grpc.aio.ServicerContext[table_pb2.DropTableRequest, table_pb2.DropTableResponse],
    ) -> table_pb2.DropTableResponse:
        async with map_errors(request, context):
            await self._tables.drop(request.name)
        return table_pb2.DropTableResponse()

    async def AlterTable(
        self,
        request: table_pb2.AlterTableRequest,
        context: grpc.aio.ServicerContext[table_pb2.AlterTableRequest, table_pb2.AlterTableResponse],
    ) -> table_pb2.AlterTableResponse:
        async with map_errors(request, context):
            definition = await self._tables.alter(
                request.name,
                columns=_column_changes(request),
                add_indexes=_indexes(request.add_indexes),
                drop_indexes=_indexes(request.drop_indexes),
                add_aggregates=aggregates_from_proto(request.add_aggregates),
                set_options=dict(request.set_options),
                reset_options=tuple(request.reset_options),
            )
        return table_pb2.AlterTableResponse(table=self._message(definition))

    async def GetTable(
        self,
        request: table_pb2.GetTableRequest,
        context: grpc.aio.ServicerContext[table_pb2.GetTableRequest, table_pb2.GetTableResponse],
    ) -> table_pb2.GetTableResponse:
        async with map_errors(request, context):
            table = self._tables.table(request.name)
            if not request.statistics:
                return table_pb2.GetTableResponse(table=self._message(table.definition))
            buckets, indexes = await table.statistics()
            disk, files = await table.disk_use()
        now = table.state.clock.commit_micros()
        return table_pb2.GetTableResponse(
            table=self._message(table.definition),
            buckets=[_statistics(each, files.get(each.live.number), table.definition, now) for each in buckets],
            indexes=[_status(status) for status in indexes],
            disk=disk_use_to_proto(disk),
        )

    async def ListTables(
        self,
        request: table_pb2.ListTablesRequest,
        context: grpc.aio.ServicerContext[table_pb2.ListTablesRequest, table_pb2.ListTablesResponse],
    ) -> table_pb2.ListTablesResponse:
        async with map_errors(request, context):
            tables = [self._message(each) for each in self._tables.definitions() if each.tablet is None]
            found = {table_of(name): reason for name, reason in self._tables.find_damaged().items()}
            damaged = [table_pb2.DamagedTable(name=name, reason=reason) for name, reason in found.items()]
        caller = CALLER.get() or ANYBODY
        ends = [each for each in (caller.expires_at, caller.certificate_ends) if each is not None]
        return table_pb2.ListTablesResponse(tables=tables, damaged=damaged, caller_expires_at=min(ends, default=None))

    async def ListTableSizes(
        self,
        request: table_pb2.ListTableSizesRequest,
        context: grpc.aio.ServicerContext[table_pb2.ListTableSizesRequest, table_pb2.ListTableSizesResponse],
    ) -> table_pb2.ListTableSizesResponse:
        async with map_errors(request, context):
            if len(request.names) > MAX_SIZED_TABLES:
                raise InvalidRequest(
                    f"the request names {len(request.names):,} tables: at most {MAX_SIZED_TABLES} are allowed; ask for "
                    "the others in another call"
                )
            grants = (CALLER.get() or ANYBODY).grants
            # The others are not measured, because the time for that would show that they exist.
            readable = {name for name in request.names if grants.allow(Role.READ, name)}
            found = await self._tables.sizes.measure(readable)
        response = table_pb2.ListTableSizesResponse(
            sizes=[table_pb2.TableSize(name=name, **asdict(size)) for name, size in found.items()]
        )
        return merge_sizes({0: response}) if self._worker is None else response

    def _message(self, definition: TableDefinition) -> table_pb2.Table:
        message = table_message(definition)
        if self._worker is not None:
            message.owner_port = self._worker.port
            message.worker_ports.extend(self._worker.ports)
        return message


def parts_of(request: table_pb2.CreateTableRequest) -> TableParts:
    """Returns what a request says about a new table, besides its name and its columns. Raises InvalidRequest."""
    return {
        "primary_key": tuple(request.primary_key),
        "bucket_key": tuple(request.bucket_key),
        "buckets": request.buckets or None,
        "options": dict(request.options),
        "indexes": _indexes(request.indexes),
        "merging": merging_from_proto(request.merging),
        "partition_by": tuple(request.partition_by),
        "tablets": request.tablets or 1,
    }


def schema_of(data: bytes) -> pa.Schema:
    """Reads a schema from a client. Raises InvalidRequest."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        # Names are decoded on access. Access them here, where the error of a malformed name is caught.
        schema.names  # noqa: B018
        return schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(f"the schema is not an Arrow IPC schema message: {error}") from error


def _column_changes(request: table_pb2.AlterTableRequest) -> ColumnChanges:
    types = schema_of(request.column_types) if request.column_types else pa.schema([])
    return ColumnChanges(
        drop=tuple(request.drop_columns),
        rename=dict(request.rename_columns),
        types={field.name: field.type for field in types},
        add=schema_of(request.add_columns) if request.add_columns else None,
        defaults=read_batch(request.column_defaults, _check_types) if request.column_defaults else None,
        comments=dict(request.column_comments),
        order=tuple(request.column_order),
    )


def _check_types(schema: pa.Schema) -> None:
    """Raises SchemaMismatch if a default has a type that no column can have."""
    for field in schema:
        if not pa.types.is_null(field.type):
            storable_type(field.type, field.name)


def _indexes(messages: Iterable[table_pb2.IndexColumns]) -> list[tuple[str, ...]]:
    return [tuple(message.columns) for message in messages]


def disk_use_to_proto(use: DiskBytes) -> table_pb2.DiskUse:
    """Converts disk use to its message."""
    return table_pb2.DiskUse(**asdict(use), total=use.total)


def _statistics(
    figures: LiveBucketStats, files: BucketFiles | None, definition: TableDefinition, now_micros: int
) -> table_pb2.BucketStatistics:
    state, log = figures.state, figures.changelog_usage
    has_base = definition.options.columnar_base != "off"
    return table_pb2.BucketStatistics(
        bucket=figures.live.number,
        rows=state.rows if state else 0,
        log_offset=state.log_offset if state else 0,
        epoch=state.epoch if state else 0,
        disk_bytes=files.total if files else 0,
        log_bytes=log.bytes,
        retention_holder=log.holder,
        retention_hold_bytes=log.held_bytes,
        damage=figures.live.problem or "",
        base=base_statistics(figures.live, now_micros) if has_base else None,
    )


def _status(status: IndexBuildProgress) -> table_pb2.IndexStatus:
    return table_pb2.IndexStatus(
        id=status.index.id,
        ready=status.ready,
        rows_done=status.rows_done,
        rows=status.rows,
        failure=status.failure,
    )


def table_message(definition: TableDefinition) -> table_pb2.Table:
    """Returns the definition of a table as a message."""
    return table_pb2.Table(
        name=definition.name,
        incarnation=definition.incarnation,
        arrow_schema=definition.schema.arrow.serialize().to_pybytes(),
        schema_id=definition.schema.id,
        column_ids=[column.id for column in definition.schema.columns],
        primary_key=definition.primary_key,
        bucket_key=definition.bucket_key,
        buckets=definition.buckets,
        options=definition.options.to_strings(),
        created_millis=definition.created_millis,
        indexes=[table_pb2.Index(id=index.id, columns=index.columns) for index in definition.indexes],
        merging=merging_to_proto(definition.merging),
        column_defaults=values_to_ipc(
            {each.name: each.write_default for each in definition.schema.columns if each.write_default is not None}
        ),
        column_comments={column.name: column.comment for column in definition.schema.columns if column.comment},
        last_column_id=definition.last_column_id,
        partition_by=definition.partition_by,
        tablets=definition.tablets if definition.tablets > 1 else 0,
    )
