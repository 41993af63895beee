"""How scans and servers end: tables dropped under fire, draining, and what reflection and health say of a server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from aio_client import (
    Client,
    ScanKvError,
    ServerDraining,
    Table,
    TableNotFound,
    Unavailable,
    connect,
)
from scankv.v1 import scan_pb2
from tests.support.waiting import await_until, wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ROWS = 60_000


async def filled(client: Client, name: str) -> Table:
    """Makes a table of 16 MB, which does not fit into the buffers between server and client."""
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
    await table.upsert(pa.table({"k": range(ROWS), "v": [f"{k:0250}" for k in range(ROWS)]}))
    return table


@pytest_asyncio.fixture
async def own_client(server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(server.url) as client:
        yield client


async def no_scan_is_left(client: Client) -> float:
    """Waits until no scan is live; returns the seconds waited."""

    async def none_is_live() -> bool:
        return (await client.stats()).live_scans == 0

    began = time.monotonic()
    await await_until(none_is_live, "the scan freed")
    return time.monotonic() - began


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_tables_are_dropped_and_made_again_under_fire(own_client: Client, server: ServerProcess) -> None:
    """Writers, readers and drops of one name: each gets its answer or TableNotFound, and the name stays usable."""
    name = "test.contended"
    stop = asyncio.Event()
    answers = {"write": 0, "scan": 0, "count": 0}

    async def again_and_again(what: str) -> None:
        while not stop.is_set():
            try:
                table = await own_client.table(name)
                if what == "write":
                    await table.upsert(pa.table({"k": range(2000), "v": ["x" * 100] * 2000}))
                elif what == "scan":
                    await table.scan().with_chunk(rows=50).to_arrow()
                else:
                    await table.count()
                answers[what] += 1
            except TableNotFound:
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for what in [*answers, *answers, "scan"]:
            group.create_task(again_and_again(what))
        for _ in range(6):
            await own_client.create_table(name, SCHEMA, primary_key=["k"], buckets=4)
            before = dict(answers)

            async def all_went_on(before: dict[str, int] = before) -> bool:
                return all(answers[what] > before[what] for what in answers)

            await await_until(all_went_on, "every kind of call answered")
            await own_client.drop_table(name)
        stop.set()
    await no_scan_is_left(own_client)
    assert not list((server.data_dir / "trash").iterdir())
    assert not (server.data_dir / "tables" / "test" / "contended").exists()
    assert "DATA_LOSS" not in server.log
    assert "incident" not in server.log


def test_a_scan_cancelled_before_its_header_is_freed(shared_server: ServerProcess, name: str) -> None:
    with Wire(shared_server.url) as wire:
        wire.create(name, SCHEMA, buckets=50)
        for _ in range(30):
            wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=name)).cancel()
        wait_until(lambda: wire.server().live_scans == 0, "the scans freed")


@pytest.mark.whole_tables  # The next tablet is read by a new call, which is refused.
@pytest.mark.asyncio
async def test_sigterm_lets_a_running_scan_finish_and_refuses_new_ones(
    own_client: Client, server: ServerProcess
) -> None:
    table = await filled(own_client, "test.drained")
    async with connect(server.url) as reader:
        stream = (await reader.table("test.drained")).scan().with_chunk(rows=500).stream()
        rows = (await anext(stream)).num_rows
        server.process.send_signal(signal.SIGTERM)
        await await_until(lambda: _is_refused(table), "new scans refused")
        assert server.process.poll() is None
        async for batch in stream:
            rows += batch.num_rows
        assert rows == ROWS
    await own_client.aclose()
    assert await asyncio.to_thread(server.process.wait, 60) == 0
    assert "Traceback" not in server.log


async def _is_refused(table: Table) -> bool:
    try:
        await table.scan().limit(1).to_arrow()
    except (ServerDraining, Unavailable):
        return True
    return False


@pytest.mark.asyncio
async def test_every_write_acknowledged_while_draining_is_there_afterwards(server: ServerProcess) -> None:
    acknowledged: list[int] = []

    async def write(client: Client, writer: int) -> None:
        table = await client.table("test.last_words")
        for number in range(10_000):
            try:
                await table.upsert([{"k": writer * 100_000 + number, "v": "x"}])
            except ScanKvError:
                return
            acknowledged.append(writer * 100_000 + number)

    # After the server is gone, the writers give up when the operation timeout ends.
    async with connect(server.url, operation_timeout=5) as client:
        await client.create_table("test.last_words", SCHEMA, primary_key=["k"], buckets=3)
        async with asyncio.TaskGroup() as group:
            for writer in range(8):
                group.create_task(write(client, writer))

            async def some() -> bool:
                return len(acknowledged) > 200

            await await_until(some, "some writes acknowledged")
            assert await asyncio.to_thread(server.stop, 60) == 0
    server.restart()
    async with connect(server.url) as client:
        table = await client.table("test.last_words")
        found = set((await table.scan().to_arrow()).column("k").to_pylist())
        assert set(acknowledged) <= found
        assert {bucket.epoch for bucket in await table.stats()} == {0}


def test_an_interrupt_drains_too(server: ServerProcess) -> None:
    os.kill(server.process.pid, signal.SIGINT)
    assert server.process.wait(60) == 0


@pytest.fixture
def channel(shared_server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(shared_server.url) as channel:
        yield channel


SERVICES = {f"scankv.v1.{name}Service" for name in ("Scan", "Table", "Write", "Lookup", "Admin")}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_and_describes_the_services(channel: grpc.Channel, version: str) -> None:
    reflections = {f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha")}
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    symbols = ["scankv.v1.ScanService", *sorted(reflections)]
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols),
    ]
    listed, scans, *described = call(iter(requests), timeout=60)
    names = {service.name for service in listed.list_services_response.service}
    assert names >= SERVICES | reflections | {"grpc.health.v1.Health"}
    assert b"ScanKvRequest" in scans.file_descriptor_response.file_descriptor_proto[0]
    for each in described:
        assert b"ServerReflectionRequest" in each.file_descriptor_response.file_descriptor_proto[0]


def test_health_is_known_for_each_service(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", *SERVICES):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_health_says_when_the_server_drains(server: ServerProcess) -> None:
    async def fill() -> None:
        async with connect(server.url) as client:
            await filled(client, "test.watched")

    asyncio.run(fill())
    with Wire(server.url) as wire:
        scan = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table="test.watched"), timeout=60)
        next(scan)
        watch = health_pb2_grpc.HealthStub(wire.channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        assert list(scan)[-1].HasField("trailer")
    assert server.process.wait(60) == 0
