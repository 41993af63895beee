"""Spans of a client and a server in one process, with the SDK of OpenTelemetry: their parents and attributes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from opentelemetry import trace

from aio_client import PermissionDenied, SnapshotLost, TableNotFound, connect, sync
from aio_client._transport.call_traces import method_of
from aio_client.testing import Fault, FaultProxy
from scankv.model.tracing import find_tracer
from scankv.v1 import scan_pb2
from streaming_server.config import ServerConfig
from streaming_server.server import Server
from tests.support.secured import METHODS, TokenIssuer, request_type
from tests.support.traces import FinishedSpans, attributes_of, is_child, traced_process
from tests.support.waiting import await_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Client, Table

SCHEMA = pa.schema([("k", pa.int64()), ("secret", pa.string())])
ROWS = 20_000
SECRET = "hunter2"
GET = "scankv.v1.LookupService/Lookup"
UPSERT = "scankv.v1.WriteService/Upsert"
SCAN = "scankv.v1.ScanService/ScanKv"


@pytest.fixture
def spans() -> Iterator[FinishedSpans]:
    with traced_process() as spans:
        yield spans


@asynccontextmanager
async def serve(tmp_path: Path, rows: int = 10) -> AsyncIterator[tuple[Server, Client, Table]]:
    async with Server(ServerConfig(data=tmp_path / "data", port=0)) as server, connect(server.address) as client:
        table = await client.create_table("traced.rows", SCHEMA, primary_key=["k"], buckets=2)
        if rows:
            await table.upsert(pa.table({"k": range(rows), "secret": [SECRET + "x" * 50] * rows}))
        yield server, client, table


async def ended(spans: FinishedSpans, name: str, count: int = 1) -> None:
    """Waits until the server has ended its spans, which may be after the client has its answer."""

    async def have_ended() -> bool:
        return len(spans.named(name, "SERVER")) >= count

    await await_until(have_ended, f"{count} spans of {name}")


@pytest.mark.whole_tables  # Each tablet has a span of its own.
@pytest.mark.asyncio
async def test_a_get_and_an_upsert_are_one_span_each_at_the_client_and_at_the_server(
    tmp_path: Path, spans: FinishedSpans
) -> None:
    tracer = trace.get_tracer("test")
    async with serve(tmp_path, rows=0) as (server, _, table):
        with tracer.start_as_current_span("request"):
            await table.upsert([{"k": 7, "secret": SECRET}])
            assert await table.get(7) is not None
        await ended(spans, GET)
    request = spans.one("request")
    for name in (UPSERT, GET):
        client, service = spans.one(name, "CLIENT"), spans.one(name, "SERVER")
        assert is_child(client, request)
        assert is_child(service, client)
        host, _, port = server.address.rpartition(":")
        assert attributes_of(client) == {
            "rpc.system.name": "grpc",
            "rpc.method": name,
            "rpc.response.status_code": "OK",
            "db.system.name": "scankv",
            "db.collection.name": "traced.rows",
            "server.address": host,
            "server.port": int(port),
            "scankv.attempts": 1,
        }
        assert attributes_of(service) == {
            "rpc.system.name": "grpc",
            "rpc.method": name,
            "rpc.response.status_code": "OK",
            "db.system.name": "scankv",
            "db.collection.name": "traced.rows",
        }
    assert SECRET not in spans.text()


@pytest.mark.asyncio
async def test_the_blocking_client_continues_the_trace_of_its_caller(tmp_path: Path, spans: FinishedSpans) -> None:
    def work(url: str) -> None:
        with trace.get_tracer("test").start_as_current_span("request"), sync.connect(url) as client:
            table = client.table("traced.rows")
            table.get(3)
            assert sum(rows.num_rows for rows in table.scan()) == 10

    async with serve(tmp_path) as (server, _, _):
        await asyncio.to_thread(work, server.address)
    request = spans.one("request")
    assert is_child(spans.one(GET, "CLIENT"), request)
    assert is_child(spans.one(SCAN, "CLIENT"), request)


@pytest.mark.whole_tables  # Each tablet has a span of its own.
@pytest.mark.asyncio
async def test_a_scan_is_one_span_that_ends_with_the_stream(tmp_path: Path, spans: FinishedSpans) -> None:
    async with serve(tmp_path, rows=ROWS) as (_, _, table):
        with trace.get_tracer("test").start_as_current_span("request"):
            stream = table.scan(where=f"secret > '{SECRET}'").stream()
            await anext(stream)
        assert spans.named(SCAN) == []
        rest = [rows async for rows in stream]
        assert spans.one(SCAN, "CLIENT").name
        await ended(spans, SCAN)
        scanned = stream.stats()
        scan_id = stream.scan_id
    found, service = spans.one(SCAN, "CLIENT"), spans.one(SCAN, "SERVER")
    assert is_child(found, spans.one("request"))
    assert is_child(service, found)
    assert len(rest) == scanned.chunks - 1 > 0
    wanted = {
        "rpc.response.status_code": "OK",
        "db.collection.name": "traced.rows",
        "scankv.attempts": 1,
        "scankv.scan.id": scan_id,
        "scankv.scan.rows": ROWS,
        "scankv.scan.rows_scanned": ROWS,
        "scankv.scan.bytes": scanned.bytes_returned,
        "scankv.scan.chunks": scanned.chunks,
        "scankv.scan.resumptions": 0,
    }
    assert attributes_of(found).items() >= wanted.items()
    assert (
        attributes_of(service).items()
        >= {
            "scankv.scan.id": scan_id,
            "scankv.scan.rows_scanned": ROWS,
            "scankv.scan.bytes": scanned.bytes_returned,
        }.items()
    )
    assert SECRET not in spans.text()


@pytest.mark.asyncio
async def test_a_resumed_scan_is_one_span_with_an_event_for_each_failure_and_resumption(
    tmp_path: Path, spans: FinishedSpans
) -> None:
    async with (
        serve(tmp_path, rows=ROWS) as (server, _, table),
        FaultProxy(server.address) as proxy,
        connect(proxy.address, read_ahead_bytes=64 << 10) as cut_client,
        table.snapshot() as snapshot,
    ):
        scan = table.scan().as_of(snapshot).with_chunk(rows=500)
        stream = cut_client.scan(scan.spec).stream()
        rows, cuts = 0, 0
        async for batch in stream:
            rows += batch.num_rows
            # Batches that had arrived before the last cut come before its resumption.
            if len(stream.resumptions) == cuts < 2:
                proxy.apply(Fault("reset"))
                cuts += 1
        attempts = stream.stats().attempts
        await ended(spans, SCAN, 3)
    found = spans.one(SCAN, "CLIENT")
    assert rows == ROWS
    values = attributes_of(found)
    assert values["scankv.attempts"] == attempts >= 3
    assert values["scankv.scan.resumptions"] == len(stream.resumptions) == 2
    assert values["scankv.scan.rows"] == ROWS
    events = [event.name for event in found.events]
    assert events.count("resumed") == 2
    assert events.count("attempt failed") == attempts - 1
    assert [dict(event.attributes or {})["error.type"] for event in found.events if event.name != "resumed"] == [
        "UNAVAILABLE"
    ] * (attempts - 1)
    services = spans.named(SCAN, "SERVER")
    assert len(services) >= 3
    assert all(is_child(service, found) for service in services)
    assert SECRET not in spans.text()


@pytest.mark.asyncio
async def test_a_scan_that_is_closed_dropped_or_fails_ends_its_span(tmp_path: Path, spans: FinishedSpans) -> None:
    async with serve(tmp_path, rows=ROWS) as (_, _, table):
        async with table.scan().with_chunk(rows=500).stream() as stream:
            await anext(stream)
        (closed,) = spans.named(SCAN, "CLIENT")
        async for _ in table.scan().with_chunk(rows=500).stream():
            break
        gc.collect()
        _, dropped = spans.named(SCAN, "CLIENT")
        snapshot = await table.snapshot()
        await snapshot.release()
        with pytest.raises(SnapshotLost):
            await table.scan().as_of(snapshot).to_arrow()
        *_, lost = spans.named(SCAN, "CLIENT")
    for span in (closed, dropped):
        assert attributes_of(span)["rpc.response.status_code"] == "CANCELLED"
        assert span.status.status_code is trace.StatusCode.UNSET
    assert attributes_of(lost)["error.type"] == "SNAPSHOT_LOST"
    assert lost.status.status_code is trace.StatusCode.ERROR
    assert lost.status.description is None


@pytest.mark.asyncio
async def test_the_calls_of_a_transaction_belong_to_the_trace_of_its_caller(
    tmp_path: Path, spans: FinishedSpans
) -> None:
    async with serve(tmp_path) as (_, client, table):
        with trace.get_tracer("test").start_as_current_span("request"):
            async with client.transaction() as transaction:
                await transaction.upsert(table, [{"k": 1, "secret": SECRET}])
        await ended(spans, "scankv.v1.TransactionService/CommitTransaction")
    request = spans.one("request")
    for name in (
        "scankv.v1.TransactionService/BeginTransaction",
        "scankv.v1.TransactionService/CommitTransaction",
    ):
        client_span, service = spans.one(name, "CLIENT"), spans.one(name, "SERVER")
        assert is_child(client_span, request)
        assert is_child(service, client_span)
    assert [is_child(span, request) for span in spans.named(UPSERT, "CLIENT")] == [False, True]


@pytest.mark.asyncio
async def test_a_refused_call_has_its_status_and_no_message(tmp_path: Path, spans: FinishedSpans) -> None:
    async with serve(tmp_path) as (_, client, _table):
        with pytest.raises(TableNotFound):
            await client.table("traced.absent")
        await ended(spans, "scankv.v1.TableService/GetTable")
    found, service = (spans.one("scankv.v1.TableService/GetTable", kind) for kind in ("CLIENT", "SERVER"))
    assert (
        attributes_of(found).items()
        >= {"rpc.response.status_code": "NOT_FOUND", "error.type": "TABLE_NOT_FOUND"}.items()
    )
    assert found.status.status_code is trace.StatusCode.ERROR
    assert attributes_of(service)["rpc.response.status_code"] == "NOT_FOUND"
    assert service.status.status_code is trace.StatusCode.UNSET
    assert [event.name for event in found.events] == ["attempt failed"]
    assert "did you mean" not in spans.text()


@pytest.mark.whole_tables  # The keys of each tablet share a call.
@pytest.mark.asyncio
async def test_concurrent_gets_that_share_a_call_appear_in_the_trace_of_the_first(
    tmp_path: Path, spans: FinishedSpans
) -> None:
    tracer = trace.get_tracer("test")

    async def get(table: Table, key: int) -> None:
        with tracer.start_as_current_span(f"request {key}"):
            await table.get(key)

    async with serve(tmp_path) as (_, _, table):
        # The first goes out alone, and the others together. Later ones do not continue the trace of those.
        await asyncio.gather(*(get(table, key) for key in range(4)))
        await get(table, 5)
    calls = spans.named(GET, "CLIENT")
    assert [is_child(call, spans.one(f"request {key}")) for call, key in zip(calls, (0, 1, 5), strict=True)] == [
        True
    ] * 3


@pytest.mark.whole_tables  # Each tablet has a span of its own.
@pytest.mark.asyncio
async def test_tokens_are_sent_with_the_trace_context_and_are_in_no_span(tmp_path: Path, spans: FinishedSpans) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    reader = issuer.create("read:traced.*")
    config = ServerConfig(data=tmp_path / "data", port=0, tokens=str(issuer.path))
    async with Server(config) as server:
        async with connect(server.address, token=issuer.root) as client:
            await client.create_table("traced.rows", SCHEMA, primary_key=["k"])
        async with connect(server.address, token=reader) as client:
            table = await client.table("traced.rows")
            assert await table.get(1) is None
            assert (await table.scan().to_arrow()).num_rows == 0
            with pytest.raises(PermissionDenied):
                await client.drop_table("traced.rows")
            await ended(spans, "scankv.v1.TableService/DropTable")
    for name in (GET, SCAN):
        assert is_child(spans.one(name, "SERVER"), spans.one(name, "CLIENT"))
    refused = spans.one("scankv.v1.TableService/DropTable", "SERVER")
    assert attributes_of(refused)["rpc.response.status_code"] == "PERMISSION_DENIED"
    text = spans.text()
    assert not any(part in text for token in (issuer.root, reader) for part in token.split("_", 2)[1:])


@pytest.mark.whole_tables  # Each tablet has a span of its own.
@pytest.mark.asyncio
async def test_a_trace_context_that_is_not_valid_begins_a_new_trace(tmp_path: Path, spans: FinishedSpans) -> None:
    def work(url: str) -> None:
        with Wire(url) as wire:
            for given in ("", "00-zz-11-01", "x" * 5000, f"00-{'0' * 32}-{'1' * 16}-01"):
                metadata = (("traceparent", given), ("tracestate", "=" * 600))
                list(wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="traced.rows"), timeout=60, metadata=metadata))

    async with serve(tmp_path) as (server, _, _):
        await asyncio.to_thread(work, server.address)
        await ended(spans, SCAN, 4)
    assert [span.parent for span in spans.named(SCAN, "SERVER")] == [None] * 4


def test_a_program_without_a_provider_has_no_tracer() -> None:
    assert find_tracer() is None


def test_nothing_of_opentelemetry_is_imported_for_a_program_that_does_not_use_it() -> None:
    code = (
        "import asyncio, sys\n"
        "from scankv import connect\n"
        "async def main():\n"
        "    async with connect('localhost:1') as client:\n"
        "        print(client._transport.tracer)\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines() == ["None", "[]"]


def test_the_type_of_a_request_tells_its_method() -> None:
    found = {name: method_of(request_type(name), streams=each.server_streaming) for name, each in METHODS.items()}
    assert found == {name: name for name in METHODS}
