"""`ScanService`: one server stream for one scan.

The producer serializes the messages itself, so the service registers its own handlers instead of the generated ones.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from scankv.model.limits import DEFAULT_LOG_CHUNK_ROWS
from scankv.model.names import tablet_number
from scankv.v1 import scan_pb2
from streaming_server.current_call import CALL_METADATA, count_waiting
from streaming_server.engine.snapshots.part_ids import shown_id
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.scan.admission.live_scans import RegisteredScan, part_id
from streaming_server.scan.changes.change_stream import ChangeStream
from streaming_server.scan.divided_token import DividedTokens
from streaming_server.scan.execution.producer import FIRST_CHUNK_ROWS, stream_messages, unchanged_messages
from streaming_server.scan.versions import version_of
from streaming_server.services.errors import map_errors
from streaming_server.services.flow_control import Send, one_in_flight
from streaming_server.services.log_request import log_plan
from streaming_server.services.parked_scans import ParkedScan, ParkedScans, gone
from streaming_server.services.reading import (
    borrow_view,
    current_view_of,
    definition_of,
    explain_if_slow,
    live_table_of,
    open_view,
)
from streaming_server.services.scan_request import chunk_spec, chunk_spec_of_base, heartbeat_seconds, read_plan
from streaming_server.services.tablets.changes import DividedChanges
from streaming_server.services.tablets.drops import naming_drops
from streaming_server.services.tablets.tablet_calls import TabletCalls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from streaming_server.engine.changelog.consumer_registry import OpensChanges
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry
    from streaming_server.scan.changes.log_plan import LogPlan, OpenedLog
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.execution.producer import ChunkSpec
    from streaming_server.scan.queries.result_cache import ResultCache
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.services.forwarding import Workers
    from streaming_server.services.guarded_method import GuardedServer


class ScanService:
    """Serves `ScanKv` and `ExplainScan`. See `protos/scankv/v1/scan.proto` for the contract.

    Args:
        tables: The tables of the server.
        registry: Admits, lists and ends the scans.
        results: Counts the scans that are answered with `unchanged`.
        incarnation: This start of the server.
        workers: The workers of the server, which own the tablets of tables.
        chunk_bytes: The most stored bytes of a chunk, for requests that do not set it.
        heartbeat_seconds: The interval of heartbeats of a scan that finds no rows to return.
        follow_heartbeat_seconds: The interval of heartbeats of a stream of changes that waits for changes.
    """

    def __init__(
        self,
        tables: Tables,
        registry: ScanRegistry,
        results: ResultCache,
        incarnation: str,
        workers: Workers,
        *,
        chunk_bytes: int,
        heartbeat_seconds: float,
        follow_heartbeat_seconds: float,
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._results = results
        self._incarnation = incarnation
        self._workers = workers
        self._chunk_bytes = chunk_bytes
        self._heartbeat_seconds = heartbeat_seconds
        self._follow_heartbeat_seconds = follow_heartbeat_seconds
        self._parked = ParkedScans()
        self._serving = DetachedTasks()

    def add_to_server(self, server: GuardedServer) -> None:
        """Registers the service, once, before the server starts."""
        read_request = scan_pb2.ScanKvRequest.FromString
        handlers = {
            "ScanKv": grpc.unary_stream_rpc_method_handler(self.ScanKv, read_request, None),
            "ExplainScan": grpc.unary_unary_rpc_method_handler(
                self.ExplainScan, read_request, scan_pb2.ExplainScanResponse.SerializeToString
            ),
        }
        name = scan_pb2.DESCRIPTOR.services_by_name["ScanService"].full_name
        server.add_registered_method_handlers(name, handlers)

    async def ScanKv(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes],
    ) -> None:
        """Opens the view and sends its messages. Releases the view however the call ends."""
        started = time.monotonic()
        async with map_errors(request, context):
            if request.HasField("log"):
                await self._follow(request, context, started)
                return
            if request.HasField("claim"):
                # The work is counted for the call that has opened the view.
                with count_waiting():
                    await self._parked.find(request.claim.ticket).read(context, request.claim.token_head)
                return
            plan, chunk = read_plan(request), chunk_spec(request, self._chunk_bytes)
            async with borrow_view(self._tables, request):
                await self._read(request, context, plan, chunk, started)

    async def _read(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes],
        plan: ReadPlan,
        chunk: ChunkSpec,
        started: float,
    ) -> None:
        """Streams the rows of a table or of a snapshot."""
        table, definition = live_table_of(self._tables, request), definition_of(self._tables, request)
        # Refuse an invalid request before it waits for admission, even if nothing has changed.
        plan = plan.bind(definition.schema)
        if request.HasField("if_changed_since") and (
            messages := await self._unchanged_messages(request, plan, started)
        ):
            for message in messages:
                await context.write(message)
            return
        tablet = tablet_number(request.table)
        scan = RegisteredScan(
            table=request.table,
            buckets=tuple(sorted(plan.buckets or definition.own_buckets)),
            snapshot_id=request.snapshot.snapshot_id,
            peer=context.peer(),
            scan_id=part_id(self._workers.scan_of(CALL_METADATA.get()), tablet),
            # The streams of tablets wait for each other, and the owner of the table for its client.
            may_wait=tablet is not None,
        )
        with self._registry.call(scan):
            explain_if_slow(self._tables, request, plan)
            async with one_in_flight(context, scan) as send, self._registry.admit(scan):
                async with open_view(self._tables, table, request, plan) as opened:
                    scan.hold(opened.source)
                    if opened.large_chunks:
                        chunk = chunk_spec_of_base(request, chunk, partial(self._registry.may_have_large_chunk, scan))
                    heartbeat = heartbeat_seconds(request, self._heartbeat_seconds)

                    def stream(opened: OpenedScan) -> Iterator[bytes | None]:
                        return stream_messages(opened, chunk, self._incarnation, scan, started, heartbeat)

                    if ticket := self._workers.ticket_of(CALL_METADATA.get()):
                        await self._serve_parked(ticket, opened, scan, stream, send)
                    else:
                        await self._send_all(stream(opened), scan, send)

    async def ExplainScan(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, scan_pb2.ExplainScanResponse],
    ) -> scan_pb2.ExplainScanResponse:
        """Explains what a scan would read. Reads at most index entries, and keeps none, so it needs no admission."""
        async with map_errors(request, context):
            plan = read_plan(request)
            table, snapshot_id = live_table_of(self._tables, request), request.snapshot.snapshot_id
            if table is not None:
                return await table.reads.explain(plan)
            async with borrow_view(self._tables, request):
                definition_of(self._tables, request)
                async with self._tables.snapshots.reading(snapshot_id, request.table, plan.buckets) as reader:
                    answer = await reader.explain(plan)
            answer.snapshot_id = shown_id(snapshot_id)
            return answer
        raise AssertionError("map_errors ends the call")

    async def _unchanged_messages(
        self, request: scan_pb2.ScanKvRequest, plan: ReadPlan, started: float
    ) -> Iterator[bytes] | None:
        """Returns the messages of an unchanged result; None if something has changed. Reads nothing."""
        definition, view = await current_view_of(self._tables, request, plan.buckets)
        if request.if_changed_since != version_of(definition, view.log_offsets, view.micros, view.rows):
            return None
        if tablet_number(request.table) is None:
            self._results.unchanged += 1
        columns = definition.schema.select(plan.columns)
        scan_id = uuid.uuid4().hex
        return unchanged_messages(definition, columns, view, plan.limit, self._incarnation, scan_id, started)

    async def _follow(
        self,
        request: scan_pb2.ScanKvRequest,
        context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes],
        started: float,
    ) -> None:
        """Streams changes as they are committed."""
        plan, chunk = log_plan(request), chunk_spec(request, self._chunk_bytes, DEFAULT_LOG_CHUNK_ROWS)
        heartbeat = heartbeat_seconds(request, self._follow_heartbeat_seconds)
        table = self._tables.table(request.table)
        scan = RegisteredScan(
            table=request.table,
            buckets=tuple(sorted(table.definition.read_buckets if plan.buckets is None else plan.buckets)),
            snapshot_id="",
            peer=context.peer(),
            follows=True,
            is_part=table.definition.tablet is not None,
        )
        changes: OpensChanges = table.changes
        if table.definition.is_divided:
            changes = DividedChanges(TabletCalls(self._workers, self._tables, table, context), request, heartbeat)
        with self._registry.call(scan):
            drops = naming_drops(self._tables, table.definition)
            async with drops, one_in_flight(context, scan) as send, self._registry.admit(scan):
                async with self._open_log(changes, plan, scan) as opened:
                    scan.hold(opened.source)
                    stream = ChangeStream(opened, chunk, self._incarnation, scan, started, heartbeat)
                    for message in stream.messages():
                        if isinstance(message, bytes):
                            await send(message)
                        elif not message:
                            await asyncio.sleep(0)
                        else:
                            await opened.source.wait(message)
                        if scan.rows_scanned > FIRST_CHUNK_ROWS:
                            await self._registry.turns.wait()

    @asynccontextmanager
    async def _open_log(self, changes: OpensChanges, plan: LogPlan, scan: RegisteredScan) -> AsyncIterator[OpenedLog]:
        """Opens a stream of changes for the length of the block, for a consumer if the plan names one."""
        if plan.consumer_id:
            end = partial(self._registry.end, scan)
            async with self._tables.consumers.stream(changes, plan, scan.scan_id, end) as opened:
                yield opened
            return
        opened = await changes.open(plan, scan.scan_id)
        with closing(opened.source):
            yield opened

    async def _serve_parked(
        self,
        ticket: str,
        opened: OpenedScan,
        scan: RegisteredScan,
        stream: Callable[[OpenedScan], Iterator[bytes | None]],
        send: Send,
    ) -> None:
        """Sends the header to the call that has opened the view, the rows to another call, and the trailer to both."""
        with self._parked.park(ticket, opened.source) as parked:
            scan.hold(parked)
            await send(next(message for message in stream(opened) if message is not None))
            scan.parked_since = asyncio.get_running_loop().time()
            with count_waiting():
                reader = await parked.wait_for_reader()
            scan.parked_since = None
            scan.may_wait, scan.progress_at = False, asyncio.get_running_loop().time()
            messages = stream(replace(opened, tokens=DividedTokens(opened.tokens, parked.token_head)))
            next(messages)
            serving = self._serving.start(self._serve_reader(parked, reader, messages, scan))
            try:
                await send(await parked.last_message())
            except asyncio.CancelledError:
                serving.cancel()
                raise

    async def _serve_reader(
        self,
        parked: ParkedScan,
        reader: grpc.aio.ServicerContext[Any, Any],
        messages: Iterator[bytes | None],
        scan: RegisteredScan,
    ) -> None:
        """Sends all messages to the reader of a parked scan. Ends the reader's call after them, or with an error."""
        error: Exception | None = gone()
        last = b""

        async def send_on(message: bytes) -> None:
            nonlocal last
            last = message
            await send_to_reader(message)

        try:
            async with one_in_flight(reader, scan) as send_to_reader:
                await self._send_all(messages, scan, send_on)
            error = None
        except Exception as failure:
            error = failure
        finally:
            parked.end(error, last)

    async def _send_all(self, messages: Iterator[bytes | None], scan: RegisteredScan, send: Send) -> None:
        spent, began = 0.0, time.perf_counter()
        for message in messages:
            spent += time.perf_counter() - began
            if message is None:
                await asyncio.sleep(0)
            else:
                self._registry.chunk_seconds.observe(spent)
                spent = 0.0
                await send(message)
            # The first chunks are small. Without a wait, they arrive soon.
            if scan.rows_scanned > FIRST_CHUNK_ROWS:
                await self._registry.turns.wait()
            began = time.perf_counter()
