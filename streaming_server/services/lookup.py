"""`LookupService`: reads by key, and queries over many rows that the server computes."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.expressions import bind
from scankv.model.expressions.wire import from_proto
from scankv.model.limits import MAX_COLUMNS, MAX_REQUEST_BYTES, MAX_WAIT_MILLIS
from scankv.model.tables.aggregates import Aggregate, AggregateFunction
from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.scan.chunk_source import total_rows
from streaming_server.scan.framing import frame_answer
from streaming_server.scan.queries.aggregation import Aggregation, RowCounter
from streaming_server.scan.queries.result_cache import CachedResult
from streaming_server.scan.queries.top_n import TopNCollector, TopNSpec
from streaming_server.scan.versions import version_of
from streaming_server.services.errors import map_errors
from streaming_server.services.indexed_top_n import indexed_top_n
from streaming_server.services.reading import current_of, definition_of, open_complete_view
from streaming_server.services.scan_request import bucket_numbers, column_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from scankv.model.tables.schema import Schema
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.result_cache import Computation, ResultCache
    from streaming_server.services.indexed_top_n import IndexedAnswer
    from streaming_server.services.intake import GuardedServer
    from streaming_server.services.reading import CurrentVersion

_Question = TypeVar("_Question", lookup_pb2.CountRequest, lookup_pb2.AggregateRequest, lookup_pb2.TopNRequest)
_Response = TypeVar("_Response", lookup_pb2.CountResponse, lookup_pb2.AggregateResponse, lookup_pb2.TopNResponse)

_FUNCTIONS = {
    lookup_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function.name}"): function
    for function in AggregateFunction
}


# The share of the time until its deadline that a call may wait, so that there is time to answer it.
_SHARE_OF_DEADLINE = 0.9


class LookupService:
    """Serves lookups, counts, aggregates and top-N. See `protos/scankv/v1/lookup.proto` for the contract.

    Results are cached as serialized responses, so the service registers its own handlers instead of the generated ones.

    Args:
        tables: The tables to read.
        registry: Admits, lists and ends queries that read complete views, as it does scans.
        results: Computes each result once for all callers that ask for it.
        waiting: Holds calls until their result changes.
    """

    def __init__(self, tables: Tables, registry: ScanRegistry, results: ResultCache, waiting: WaitingCalls) -> None:
        self._tables = tables
        self._registry = registry
        self._results = results
        self._waiting = waiting

    def add_to_server(self, server: GuardedServer) -> None:
        """Registers the service, once, before the server starts."""
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(method, request.FromString, None)
            for name, method, request in (
                ("Lookup", self.Lookup, lookup_pb2.LookupRequest),
                ("Count", self.Count, lookup_pb2.CountRequest),
                ("Aggregate", self.Aggregate, lookup_pb2.AggregateRequest),
                ("TopN", self.TopN, lookup_pb2.TopNRequest),
            )
        }
        name = lookup_pb2.DESCRIPTOR.services_by_name["LookupService"].full_name
        server.add_registered_method_handlers(name, handlers)

    async def Lookup(
        self, request: lookup_pb2.LookupRequest, context: grpc.aio.ServicerContext[lookup_pb2.LookupRequest, bytes]
    ) -> bytes:
        async with map_errors(request, context):
            columns = column_names(request.columns) if request.HasField("columns") else None
            table = self._tables.table(request.table)
            rows, found, offsets = await table.reads.lookup(request.keys, columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        response = lookup_pb2.LookupResponse(
            rows=sink.getvalue().to_pybytes(),
            found=found,
            log_offsets=offsets,
            table_incarnation=table.definition.incarnation,
        )
        return response.SerializeToString()

    async def Count(
        self, request: lookup_pb2.CountRequest, context: grpc.aio.ServicerContext[lookup_pb2.CountRequest, bytes]
    ) -> bytes:
        async with map_errors(request, context):
            if not request.HasField("where") and (counted := await self._count_all(request)) is not None:
                return counted
            return await self._answer(request, context, lookup_pb2.CountResponse, _check_where, self._count)
        raise AssertionError("map_errors ends the call")

    async def Aggregate(
        self,
        request: lookup_pb2.AggregateRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.AggregateRequest, bytes],
    ) -> bytes:
        """Computes functions of columns over all rows, or for groups of rows."""
        async with map_errors(request, context):
            return await self._answer(
                request, context, lookup_pb2.AggregateResponse, _check_aggregates, self._aggregate
            )
        raise AssertionError("map_errors ends the call")

    async def TopN(
        self, request: lookup_pb2.TopNRequest, context: grpc.aio.ServicerContext[lookup_pb2.TopNRequest, bytes]
    ) -> bytes:
        async with map_errors(request, context):
            return await self._answer(request, context, lookup_pb2.TopNResponse, _check_top_n, self._top_n)
        raise AssertionError("map_errors ends the call")

    async def _answer(
        self,
        request: _Question,
        context: grpc.aio.ServicerContext[_Question, bytes],
        response: type[_Response],
        check: Callable[[_Question, Schema], None],
        compute: Callable[[_Question, str, Computation], Awaitable[CachedResult]],
    ) -> bytes:
        """Answers a query: unchanged, from the result cache, from a computation in progress, or by computing it.

        Args:
            request: The query.
            context: The context of its call.
            response: The type of the response.
            check: Raises if the query is not valid for a table with these columns.
            compute: Computes the result for a client.
        """
        since = request.if_changed_since if request.HasField("if_changed_since") else None
        request.ClearField("if_changed_since")
        clock = asyncio.get_running_loop().time
        until = clock() + _wait_seconds(request, since, context.time_remaining())
        query = _query_digest(request)
        while True:
            current = await self._current(request, query, check)
            if since is None or since != current.version:
                return await self._results.get_or_compute(
                    query, current.again, partial(compute, request, context.peer())
                )
            left = until - clock()
            if left <= 0 or self._waiting.is_full:
                self._results.unchanged += 1
                return response(version=since, unchanged=True).SerializeToString()
            await self._waiting.wait_for_change(current, left)

    async def _current(
        self, request: _Question, query: bytes, check: Callable[[_Question, Schema], None]
    ) -> CurrentVersion:
        """Returns the current state of what a query reads. Calls `check`, unless the query has passed it before."""
        definition = definition_of(self._tables, request)
        if not self._results.is_valid(query, definition.incarnation, definition.schema.id):
            check(request, definition.schema)
            self._results.remember_valid(query, definition.incarnation, definition.schema.id)
        buckets = bucket_numbers(request.buckets) if isinstance(request, lookup_pb2.CountRequest) else None
        return await current_of(self._tables, request, buckets)

    async def _count_all(self, request: lookup_pb2.CountRequest) -> bytes | None:
        """Answers a count of all rows without reading them. Returns None if the number is unknown."""
        buckets, table = bucket_numbers(request.buckets), self._tables.table(request.table)
        if request.HasField("if_changed_since"):
            current = await current_of(self._tables, request, buckets)
            if request.if_changed_since == current.version:
                self._results.unchanged += 1
                return lookup_pb2.CountResponse(version=current.version, unchanged=True).SerializeToString()
        if request.HasField("snapshot"):
            snapshot_id = request.snapshot.snapshot_id
            async with self._tables.snapshots.reading(snapshot_id, request.table, buckets) as reader:
                definition, offsets = reader.definition, reader.log_offsets
                rows = total_rows(reader.rows.values())
        else:
            rows, offsets = await table.reads.count(buckets)
            definition = table.definition
        if rows is None:
            return None
        self._results.computed += 1
        version = version_of(definition, offsets)
        return lookup_pb2.CountResponse(rows=rows, log_offsets=offsets, version=version).SerializeToString()

    async def _count(self, request: lookup_pb2.CountRequest, peer: str, computation: Computation) -> CachedResult:
        scan = _scan_of(request, ())
        scan.buckets.extend(request.buckets)
        counter = RowCounter()
        async with open_complete_view(self._tables, self._registry, scan, peer, computation) as view:
            await view.read(counter)
        response = lookup_pb2.CountResponse(rows=counter.rows, log_offsets=view.log_offsets, version=view.version)
        return CachedResult(view.version, response.SerializeToString())

    async def _aggregate(
        self, request: lookup_pb2.AggregateRequest, peer: str, computation: Computation
    ) -> CachedResult:
        aggregation = _aggregation_of(request, definition_of(self._tables, request).schema)
        scan = _scan_of(request, aggregation.columns)
        async with open_complete_view(self._tables, self._registry, scan, peer, computation) as view:
            await view.read(aggregation)

        def respond() -> bytes:
            response = lookup_pb2.AggregateResponse(log_offsets=view.log_offsets, version=view.version)
            return frame_answer(response, ipc_of(aggregation.result()))

        return CachedResult(view.version, await asyncio.to_thread(respond))

    async def _top_n(self, request: lookup_pb2.TopNRequest, peer: str, computation: Computation) -> CachedResult:
        spec = _top_n_spec(request)
        by_index = await indexed_top_n(self._tables, self._registry, request, spec, peer, computation)
        if by_index is not None:
            return await _indexed_answer(by_index)
        scan = _scan_of(request, (request.by,))
        async with open_complete_view(self._tables, self._registry, scan, peer, computation, stored_rows=True) as view:
            top = TopNCollector(spec, view.definition)
            await view.read(top)
            rows_scanned = view.rows_scanned

        def respond() -> bytes:
            response = lookup_pb2.TopNResponse(log_offsets=view.log_offsets, version=view.version)
            return frame_answer(response, ipc_of(top.result()))

        cost = lookup_pb2.TopNResponse(rows_scanned=rows_scanned)
        return CachedResult(view.version, await asyncio.to_thread(respond), cost.SerializeToString())


async def _indexed_answer(answer: IndexedAnswer) -> CachedResult:
    found = answer.found

    def respond() -> bytes:
        response = lookup_pb2.TopNResponse(log_offsets=answer.log_offsets, version=answer.version, index=found.index)
        return frame_answer(response, ipc_of(found.result()))

    cost = lookup_pb2.TopNResponse(rows_scanned=found.scanned).SerializeToString()
    return CachedResult(answer.version, respond() if found.is_small else await asyncio.to_thread(respond), cost)


def _wait_seconds(request: _Question, since: bytes | None, left: float | None) -> float:
    """Returns how long a query may wait for another result, in seconds.

    Removes the wait from the request, because the result does not depend on it.

    Args:
        request: The query.
        since: The version that the client knows. None: none.
        left: The seconds until the deadline of the call. None: no deadline.

    Raises:
        InvalidRequest: The wait is out of range, or `since` is missing.
    """
    if not isinstance(request, lookup_pb2.TopNRequest) or not request.wait_millis:
        return 0.0
    millis = request.wait_millis
    request.ClearField("wait_millis")
    if millis > MAX_WAIT_MILLIS:
        raise InvalidRequest(f"wait_millis must be between 0 and {MAX_WAIT_MILLIS:,}, not {millis:,}")
    if since is None:
        raise InvalidRequest(
            "wait_millis is set without if_changed_since, the version to wait for a change of: give both"
        )
    return millis / 1000 if left is None else min(millis / 1000, _SHARE_OF_DEADLINE * left)


def _query_digest(request: Message) -> bytes:
    """Returns a digest of everything that the result of a query depends on, except the state of the table."""
    name = request.DESCRIPTOR.name.encode()
    return hashlib.blake2b(request.SerializeToString(deterministic=True), digest_size=16, key=name).digest()


def _check_where(request: _Question, schema: Schema) -> None:
    if request.HasField("where"):
        bind(from_proto(request.where), schema.arrow)


def _check_aggregates(request: lookup_pb2.AggregateRequest, schema: Schema) -> None:
    _aggregation_of(request, schema)
    _check_where(request, schema)


def _check_top_n(request: lookup_pb2.TopNRequest, schema: Schema) -> None:
    _top_n_spec(request).check(schema)
    _check_where(request, schema)


def _aggregation_of(request: lookup_pb2.AggregateRequest, schema: Schema) -> Aggregation:
    return Aggregation(_aggregates_of(request), request.group_by, schema)


def _top_n_spec(request: lookup_pb2.TopNRequest) -> TopNSpec:
    columns = column_names(request.columns) if request.HasField("columns") else None
    return TopNSpec(
        by=request.by, n=request.n, ascending=request.ascending, columns=columns, with_ties=request.with_ties
    )


def _scan_of(
    request: lookup_pb2.CountRequest | lookup_pb2.AggregateRequest | lookup_pb2.TopNRequest, columns: Sequence[str]
) -> scan_pb2.ScanKvRequest:
    """Returns the scan that reads the rows of a query."""
    return scan_pb2.ScanKvRequest(
        table=request.table,
        snapshot=request.snapshot if request.HasField("snapshot") else None,
        where=request.where if request.HasField("where") else None,
        columns=scan_pb2.ColumnNames(names=columns),
    )


def _aggregates_of(request: lookup_pb2.AggregateRequest) -> list[Aggregate]:
    """Returns the aggregates of a request. Raises InvalidRequest for too many columns or an unknown function."""
    if max(len(request.aggregates), len(request.group_by)) > MAX_COLUMNS:
        raise InvalidRequest(f"the request names over {MAX_COLUMNS} columns: no table has more")
    aggregates = []
    for message in request.aggregates:
        if not 1 <= len(message.functions) <= len(_FUNCTIONS):
            raise InvalidRequest(
                f'column "{message.column}": 1 to {len(_FUNCTIONS)} functions must be named, each once'
            )
        for number in message.functions:
            if number not in _FUNCTIONS:
                raise InvalidRequest(f'column "{message.column}": this server has no function {number}')
            aggregates.append(Aggregate(message.column, _FUNCTIONS[number]))
    return aggregates


def ipc_of(rows: pa.RecordBatch) -> pa.Buffer:
    """Serializes the rows of a result. Raises RequestTooLarge if they exceed the limit of a response."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data = sink.getvalue()
    if data.size > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the answer has {data.size:,} bytes; the limit is {MAX_REQUEST_BYTES:,}: ask for fewer rows or columns"
        )
    return data
