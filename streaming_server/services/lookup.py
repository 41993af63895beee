"""`LookupService`: reads by key, and answers about many rows that are computed here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from protos.scankv.v1 import lookup_pb2, lookup_pb2_grpc, scan_pb2
from streaming_server.scan.aggregation import Aggregation, RowCounter
from streaming_server.scan.top_n import TopN, TopNSpec
from streaming_server.services.errors import mapped_errors
from streaming_server.services.reading import definition_of, whole_view
from streaming_server.services.scan_request import bucket_numbers, column_names
from table_model.aggregates import Aggregate, AggregateFunction
from table_model.errors import InvalidRequest, RequestTooLarge
from table_model.limits import MAX_COLUMNS, MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import grpc

    from streaming_server.engine.tables import Tables
    from streaming_server.scan.registry import ScanRegistry

_FUNCTIONS = {
    lookup_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function.name}"): function
    for function in AggregateFunction
}


class LookupService(lookup_pb2_grpc.LookupServiceServicer):
    """Serves lookups, counts, aggregates and top-N. See `protos/scankv/v1/lookup.proto` for what they promise.

    Args:
        tables: What is read.
        registry: Admits, lists and ends what reads whole views, as it does with scans.
    """

    def __init__(self, tables: Tables, registry: ScanRegistry) -> None:
        self._tables = tables
        self._registry = registry

    async def Lookup(
        self,
        request: lookup_pb2.LookupRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.LookupRequest, lookup_pb2.LookupResponse],
    ) -> lookup_pb2.LookupResponse:
        """Reads the rows of some keys."""
        async with mapped_errors(request, context):
            columns = column_names(request.columns) if request.HasField("columns") else None
            rows, found = await self._tables.table(request.table).lookup(request.keys, columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        return lookup_pb2.LookupResponse(rows=sink.getvalue().to_pybytes(), found=found)

    async def Count(
        self,
        request: lookup_pb2.CountRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.CountRequest, lookup_pb2.CountResponse],
    ) -> lookup_pb2.CountResponse:
        """Counts the rows of a table; reads them only where it has to look at them."""
        async with mapped_errors(request, context):
            if request.HasField("where"):
                scan = _scan_of(request, ())
                scan.buckets.extend(request.buckets)
                counter = RowCounter()
                async with whole_view(self._tables, self._registry, scan, context) as view:
                    await view.read(counter)
                rows, offsets = counter.rows, view.log_offsets
            else:
                rows, offsets = await self._count_all(request)
        return lookup_pb2.CountResponse(rows=rows, log_offsets=offsets)

    async def _count_all(self, request: lookup_pb2.CountRequest) -> tuple[int, Mapping[int, int]]:
        buckets, table = bucket_numbers(request.buckets), self._tables.table(request.table)
        if not request.HasField("snapshot"):
            return await table.count(buckets)
        async with self._tables.snapshots.reading(request.snapshot.snapshot_id, request.table, buckets) as reader:
            return sum(reader.rows.values()), reader.log_offsets

    async def Aggregate(
        self,
        request: lookup_pb2.AggregateRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.AggregateRequest, lookup_pb2.AggregateResponse],
    ) -> lookup_pb2.AggregateResponse:
        """Computes functions of columns over all rows, or for groups of rows."""
        async with mapped_errors(request, context):
            schema = definition_of(self._tables, _scan_of(request)).schema
            aggregation = Aggregation(_aggregates_of(request), request.group_by, schema)
            scan = _scan_of(request, aggregation.columns)
            async with whole_view(self._tables, self._registry, scan, context) as view:
                await view.read(aggregation)
            rows = await asyncio.to_thread(lambda: _to_ipc(aggregation.result()))
        return lookup_pb2.AggregateResponse(rows=rows, log_offsets=view.log_offsets)

    async def TopN(
        self,
        request: lookup_pb2.TopNRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.TopNRequest, lookup_pb2.TopNResponse],
    ) -> lookup_pb2.TopNResponse:
        """Finds the first rows in the order of a column."""
        async with mapped_errors(request, context):
            columns = column_names(request.columns) if request.HasField("columns") else None
            spec = TopNSpec(by=request.by, n=request.n, ascending=request.ascending, columns=columns)
            spec.check(definition_of(self._tables, _scan_of(request)).schema)
            scan = _scan_of(request, (request.by,))
            async with whole_view(self._tables, self._registry, scan, context, stored_rows=True) as view:
                top = TopN(spec, view.definition)
                await view.read(top)
            rows = await asyncio.to_thread(lambda: _to_ipc(top.result()))
        return lookup_pb2.TopNResponse(rows=rows, log_offsets=view.log_offsets)


def _scan_of(
    request: lookup_pb2.CountRequest | lookup_pb2.AggregateRequest | lookup_pb2.TopNRequest,
    columns: Sequence[str] | None = None,
) -> scan_pb2.ScanKvRequest:
    """The scan of the rows that a request is about."""
    return scan_pb2.ScanKvRequest(
        table=request.table,
        snapshot=request.snapshot if request.HasField("snapshot") else None,
        where=request.where if request.HasField("where") else None,
        columns=None if columns is None else scan_pb2.ColumnNames(names=columns),
    )


def _aggregates_of(request: lookup_pb2.AggregateRequest) -> list[Aggregate]:
    """What a request asks for. Raises InvalidRequest for more than any table has, or an unknown function."""
    if max(len(request.aggregates), len(request.group_by)) > MAX_COLUMNS:
        raise InvalidRequest(f"over {MAX_COLUMNS} columns are asked for: no table has more")
    aggregates = []
    for message in request.aggregates:
        if not 1 <= len(message.functions) <= len(_FUNCTIONS):
            raise InvalidRequest(f'column "{message.column}": ask for 1 to {len(_FUNCTIONS)} functions, each once')
        for number in message.functions:
            if number not in _FUNCTIONS:
                raise InvalidRequest(f'column "{message.column}": this server has no function {number}')
            aggregates.append(Aggregate(message.column, _FUNCTIONS[number]))
    return aggregates


def _to_ipc(rows: pa.RecordBatch) -> bytes:
    """Rows as an answer carries them. Raises RequestTooLarge for more than an answer may have."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data = sink.getvalue()
    if data.size > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the answer has {data.size:,} bytes; the limit is {MAX_REQUEST_BYTES:,}: ask for fewer rows or columns"
        )
    result: bytes = data.to_pybytes()
    return result
