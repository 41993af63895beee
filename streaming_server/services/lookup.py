"""`LookupService`: reads by key, and queries over many rows that the server computes."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import grpc
import pyarrow as pa

from scankv.model.errors import InvalidRequest, RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES, MAX_WAIT_MILLIS
from scankv.v1 import lookup_pb2
from streaming_server.scan.chunk_source import total_rows
from streaming_server.scan.framing import frame_answer
from streaming_server.scan.queries.first_rows import collector_of
from streaming_server.scan.queries.result_cache import CachedResult, Computation
from streaming_server.scan.versions import version_of
from streaming_server.services.errors import map_errors
from streaming_server.services.explained_top_n import explain_top_n
from streaming_server.services.indexed_top_n import indexed_top_n
from streaming_server.services.isolation import reads_latest
from streaming_server.services.query_request import bind_aggregate, bind_count, bind_top_n, top_n_of
from streaming_server.services.reading import current_version_of, definition_of, open_complete_view
from streaming_server.services.scan_request import bucket_numbers, column_names
from streaming_server.services.tablets.table_errors import naming_tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.admission.waiting_calls import WaitingCalls
    from streaming_server.scan.queries.aggregation import Aggregation, RowCounter
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.scan.queries.top_n import TopNSpec
    from streaming_server.services.guarded_method import GuardedServer
    from streaming_server.services.indexed_top_n import IndexedAnswer
    from streaming_server.services.query_request import BoundQuery, QueryRequest

_Question = TypeVar("_Question", lookup_pb2.CountRequest, lookup_pb2.AggregateRequest, lookup_pb2.TopNRequest)
_Response = TypeVar("_Response", lookup_pb2.CountResponse, lookup_pb2.AggregateResponse, lookup_pb2.TopNResponse)
_Result = TypeVar("_Result")
_Bind: TypeAlias = "Callable[[_Question, TableDefinition], BoundQuery[_Question, _Result]]"
_Compute: TypeAlias = "Callable[[BoundQuery[_Question, _Result], str, Computation], Awaitable[CachedResult]]"

# The share of the time until its deadline that a call may wait, so that there is time to answer it.
_SHARE_OF_DEADLINE = 0.9
# A longer predicate may take milliseconds to read and bind.
_LONG_PREDICATE_BYTES = 8 * 1024


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
                ("ExplainTopN", self.ExplainTopN, lookup_pb2.ExplainTopNRequest),
            )
        }
        name = lookup_pb2.DESCRIPTOR.services_by_name["LookupService"].full_name
        server.add_registered_method_handlers(name, handlers)

    async def Lookup(
        self, request: lookup_pb2.LookupRequest, context: grpc.aio.ServicerContext[lookup_pb2.LookupRequest, bytes]
    ) -> bytes:
        async with map_errors(request, context):
            columns = column_names(request.columns) if request.HasField("columns") else None
            table, latest = self._tables.table(request.table), reads_latest(request)
            if request.encoded_keys:
                if request.keys or columns is not None:
                    raise InvalidRequest("encoded_keys must come without keys and columns")
                with naming_tables():
                    found_rows = await table.reads.get(request.encoded_keys, latest=latest)
                return lookup_pb2.LookupResponse(
                    encoded_rows=found_rows.rows,
                    found=found_rows.is_there,
                    log_offsets=found_rows.offsets,
                    buckets=found_rows.buckets,
                    schema_id=found_rows.schema_id,
                    table_incarnation=table.definition.table_incarnation,
                ).SerializeToString()
            rows, found, offsets = await table.reads.lookup(request.keys, columns, latest=latest)
            schema_id = table.definition.schema.id  # nothing was awaited after the rows were decoded
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        response = lookup_pb2.LookupResponse(
            rows=sink.getvalue().to_pybytes(),
            found=found,
            log_offsets=offsets,
            table_incarnation=table.definition.table_incarnation,
            schema_id=schema_id,
        )
        return response.SerializeToString()

    async def Count(
        self, request: lookup_pb2.CountRequest, context: grpc.aio.ServicerContext[lookup_pb2.CountRequest, bytes]
    ) -> bytes:
        async with map_errors(request, context):
            if not request.HasField("where") and (counted := await self._count_all(request)) is not None:
                return counted
            return await self._answer(request, context, lookup_pb2.CountResponse, bind_count, self._count)
        raise AssertionError("map_errors ends the call")

    async def Aggregate(
        self,
        request: lookup_pb2.AggregateRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.AggregateRequest, bytes],
    ) -> bytes:
        """Computes functions of columns over all rows, or for groups of rows."""
        async with map_errors(request, context):
            return await self._answer(request, context, lookup_pb2.AggregateResponse, bind_aggregate, self._aggregate)
        raise AssertionError("map_errors ends the call")

    async def TopN(
        self, request: lookup_pb2.TopNRequest, context: grpc.aio.ServicerContext[lookup_pb2.TopNRequest, bytes]
    ) -> bytes:
        async with map_errors(request, context):
            return await self._answer(request, context, lookup_pb2.TopNResponse, bind_top_n, self._top_n)
        raise AssertionError("map_errors ends the call")

    async def ExplainTopN(
        self,
        request: lookup_pb2.ExplainTopNRequest,
        context: grpc.aio.ServicerContext[lookup_pb2.ExplainTopNRequest, bytes],
    ) -> bytes:
        """Explains how `TopN` would find its rows. Creates no iterators, so it needs no admission."""
        async with map_errors(request, context):
            return (await explain_top_n(self._tables, top_n_of(request))).SerializeToString()
        raise AssertionError("map_errors ends the call")

    async def _answer(
        self,
        request: _Question,
        context: grpc.aio.ServicerContext[_Question, bytes],
        response: type[_Response],
        bind: _Bind[_Question, _Result],
        compute: _Compute[_Question, _Result],
    ) -> bytes:
        """Answers a query: unchanged, from the result cache, from a computation in progress, or by computing it.

        Args:
            request: The query.
            context: The context of its call.
            response: The type of the response.
            bind: Binds the query to the columns of its table, or raises if it is not valid for them.
            compute: Computes the result for a client.
        """
        latest = reads_latest(request)
        since = request.if_changed_since if request.HasField("if_changed_since") else None
        request.ClearField("if_changed_since")
        clock = asyncio.get_running_loop().time
        until = clock() + wait_seconds(request, since, context)
        if latest:
            # Without a version, nothing shows whether the result of an earlier call is still the latest.
            uncached = Computation(lambda: None)
            result = await self._compute(request, None, bind, compute, context.peer(), uncached)
            self._results.computed += 1
            return await asyncio.to_thread(b"".join, (result.response, result.first_caller_fields))
        query = query_digest(request)
        while True:
            bound = await self._bind_unless_valid(request, query, bind)
            buckets = bucket_numbers(request.buckets) if isinstance(request, lookup_pb2.CountRequest) else None
            current = await current_version_of(self._tables, request, buckets)
            if since is None or since != current.version:
                compute_bound = partial(self._compute, request, bound, bind, compute, context.peer())
                return await self._results.get_or_compute(query, current.again, compute_bound)
            left = until - clock()
            if left <= 0 or self._waiting.is_full:
                self._results.unchanged += 1
                return response(version=since, unchanged=True).SerializeToString()
            # Many calls may wait. Only the one that computes the next result needs the bound query, and binds it again.
            del bound
            await self._waiting.wait_for_change(current, left)

    async def _bind_unless_valid(
        self, request: _Question, query: bytes, bind: _Bind[_Question, _Result]
    ) -> BoundQuery[_Question, _Result] | None:
        """Binds a query. None: the query is known to be valid for its table, and the cache may have its result."""
        definition = definition_of(self._tables, request)
        if self._results.is_valid(query, definition.incarnation, definition.schema.id):
            return None
        bound = bind(request, definition)
        self._results.remember_valid(query, definition.incarnation, definition.schema.id)
        return bound

    async def _compute(
        self,
        request: _Question,
        bound: BoundQuery[_Question, _Result] | None,
        bind: _Bind[_Question, _Result],
        compute: _Compute[_Question, _Result],
        peer: str,
        computation: Computation,
    ) -> CachedResult:
        definition = definition_of(self._tables, request)
        # The table may have been altered since the query was bound.
        if bound is None or not bound.fits(definition):
            long = request.where.ByteSize() > _LONG_PREDICATE_BYTES
            bound = await asyncio.to_thread(bind, request, definition) if long else bind(request, definition)
        return await compute(bound, peer, computation)

    async def _count_all(self, request: lookup_pb2.CountRequest) -> bytes | None:
        """Answers a count of all rows without reading them. Returns None if the number is unknown."""
        if definition_of(self._tables, request).expiry is not None:
            return None
        if not reads_latest(request) and request.HasField("if_changed_since"):
            current = await current_version_of(self._tables, request, bucket_numbers(request.buckets))
            if request.if_changed_since == current.version:
                self._results.unchanged += 1
                return lookup_pb2.CountResponse(version=current.version, unchanged=True).SerializeToString()
        counted = await self.count_all(request)
        if counted is None:
            return None
        self._results.computed += 1
        return counted.SerializeToString()

    async def count_all(self, request: lookup_pb2.CountRequest) -> lookup_pb2.CountResponse | None:
        """Counts all rows without reading them. Returns None if the number is unknown, or rows may have expired."""
        buckets, table = bucket_numbers(request.buckets), self._tables.table(request.table)
        if definition_of(self._tables, request).expiry is not None:
            return None
        latest = reads_latest(request)
        if request.HasField("snapshot"):
            snapshot_id = request.snapshot.snapshot_id
            async with self._tables.snapshots.reading(snapshot_id, request.table, buckets) as reader:
                definition, offsets = reader.definition, reader.log_offsets
                rows = total_rows(reader.rows.values())
        else:
            rows, offsets = await table.reads.count(buckets, latest=latest)
            definition = table.definition
        if rows is None or definition.expiry is not None:
            return None
        version = b"" if latest else version_of(definition, offsets, 0, rows)  # No row expires.
        return lookup_pb2.CountResponse(rows=rows, log_offsets=offsets, version=version)

    async def _count(
        self, query: BoundQuery[lookup_pb2.CountRequest, RowCounter], peer: str, computation: Computation
    ) -> CachedResult:
        counter = query.result
        async with open_complete_view(
            self._tables, self._registry, query.request, query.plan, peer, computation
        ) as view:
            await view.read(counter)
        response = lookup_pb2.CountResponse(rows=counter.rows, log_offsets=view.log_offsets, version=view.version)
        return CachedResult(view.version, response.SerializeToString())

    async def _aggregate(
        self, query: BoundQuery[lookup_pb2.AggregateRequest, Aggregation], peer: str, computation: Computation
    ) -> CachedResult:
        aggregation = query.result
        async with open_complete_view(
            self._tables, self._registry, query.request, query.plan, peer, computation
        ) as view:
            await view.read(aggregation)

        def respond() -> bytes:
            response = lookup_pb2.AggregateResponse(log_offsets=view.log_offsets, version=view.version)
            return frame_answer(response, ipc_of(aggregation.result()))

        return CachedResult(view.version, await asyncio.to_thread(respond))

    async def _top_n(
        self, query: BoundQuery[lookup_pb2.TopNRequest, TopNSpec], peer: str, computation: Computation
    ) -> CachedResult:
        by_index = await indexed_top_n(self._tables, self._registry, query, peer, computation)
        if by_index is not None:
            return await _indexed_answer(by_index)
        async with open_complete_view(
            self._tables, self._registry, query.request, query.plan, peer, computation
        ) as view:
            top = collector_of(query.result, query.plan, view.definition)
            await view.read(top)
            rows_scanned = view.rows_scanned

        def respond() -> bytes:
            response = lookup_pb2.TopNResponse(log_offsets=view.log_offsets, version=view.version)
            return frame_answer(response, ipc_of(top.result()))

        cost = lookup_pb2.TopNResponse(rows_scanned=rows_scanned)
        response = respond() if top.is_small else await asyncio.to_thread(respond)
        return CachedResult(view.version, response, cost.SerializeToString())


async def _indexed_answer(answer: IndexedAnswer) -> CachedResult:
    found = answer.found

    def respond() -> bytes:
        response = lookup_pb2.TopNResponse(log_offsets=answer.log_offsets, version=answer.version, index=found.index)
        return frame_answer(response, ipc_of(found.result()))

    cost = lookup_pb2.TopNResponse(rows_scanned=found.scanned).SerializeToString()
    return CachedResult(answer.version, respond() if found.is_small else await asyncio.to_thread(respond), cost)


def wait_seconds(request: QueryRequest, since: bytes | None, context: grpc.aio.ServicerContext[Any, Any]) -> float:
    """Returns how long a query may wait for another result, in seconds.

    Removes the wait from the request, because the result does not depend on it.

    Args:
        request: The query.
        since: The version that the client knows. None: it knows no version.
        context: The context of its call.

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
    left = context.time_remaining()
    return millis / 1000 if left is None else min(millis / 1000, _SHARE_OF_DEADLINE * left)


def query_digest(request: Message) -> bytes:
    """Returns a digest of everything that the result of a query depends on, except the state of the table."""
    name = request.DESCRIPTOR.name.encode()
    return hashlib.blake2b(request.SerializeToString(deterministic=True), digest_size=16, key=name).digest()


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
