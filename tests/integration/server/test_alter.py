"""A table that is altered while a scan waits to start: the header has the schema version of the rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

from aio_client import connect
from scankv.v1 import scan_pb2, scan_pb2_grpc
from streaming_server.config import ServerConfig
from streaming_server.server import Server
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.asyncio
async def test_the_header_names_the_schema_that_it_carries(tmp_path: Path) -> None:
    async with Server(ServerConfig(data=tmp_path / "data", port=0)) as server:
        async with connect(server.address) as client, grpc.aio.insecure_channel(server.address) as channel:
            await client.create_table("test.t", pa.schema([("k", pa.int64())]), primary_key=["k"], buckets=1)
            held = server._tables.table("test.t").buckets[0].mutex

            async def scan_waits() -> bool:
                return len(server._registry.live) == 1

            async with held:
                call = scan_pb2_grpc.ScanServiceStub(channel).ScanKv(scan_pb2.ScanKvRequest(table="test.t"))
                first = asyncio.ensure_future(call.read())
                await await_until(scan_waits, "the scan waiting for the bucket")
                await client.alter_table("test.t", add_columns=pa.schema([("added", pa.int8())]))
            message = await first
            assert isinstance(message, scan_pb2.ScanKvResponse)
            header = message.header
            call.cancel()
            columns = pa.ipc.read_schema(pa.py_buffer(header.arrow_schema)).names
            assert (header.schema_id, columns) in [(1, ["k"]), (2, ["k", "added"])]
