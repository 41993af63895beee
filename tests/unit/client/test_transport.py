"""Failures of calls with one answer: every status becomes one of our errors, which names the server."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import anyio
import grpc
import pyarrow as pa
import pytest

from aio_client import (
    Client,
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    RequestTooLarge,
    ScanKvError,
    ScanSpec,
    ServerDraining,
    TableNotFound,
    Unavailable,
    UnknownCall,
    UsageError,
    connect,
)
from tests.unit.client.misbehaving import Context, KeepsItsContract, RefusesTables, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scankv.v1.scan_pb2 import ScanKvResponse

pytestmark = pytest.mark.asyncio

CODE = grpc.StatusCode


class NotesPeers(KeepsItsContract):
    """Answers correctly, and records the connection of each scan."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[str] = []

    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        self.peers.append(context.peer())
        async for message in super().messages(context):
            yield message


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (CODE.UNAVAILABLE, Unavailable, "no ScanKV server answers at ADDRESS: what the server says"),
        (CODE.CANCELLED, Unavailable, "no ScanKV server answers at ADDRESS"),
        (CODE.INTERNAL, Unavailable, "no ScanKV server answers at ADDRESS"),
        (CODE.DEADLINE_EXCEEDED, DeadlineExceeded, r"ADDRESS did not answer within 0\.3 s"),
        (CODE.RESOURCE_EXHAUSTED, RequestTooLarge, "between here and ADDRESS is over its limit"),
        (CODE.INVALID_ARGUMENT, InvalidRequest, "ADDRESS failed: what the server says"),
        (CODE.DATA_LOSS, DataLoss, "ADDRESS failed: what the server says"),
        (CODE.UNIMPLEMENTED, UnknownCall, "is it a ScanKV server of this version"),
        (CODE.UNKNOWN, InternalError, "ADDRESS failed: what the server says"),
        (CODE.NOT_FOUND, InternalError, "ADDRESS failed: what the server says"),
    ],
)
async def test_a_status_without_a_detail_goes_by_its_code(
    code: grpc.StatusCode, error: type[ScanKvError], message: str
) -> None:
    # Reads that were dropped on the way are retried, so they fail with the operation timeout.
    async with serving(RefusesTables(code)) as url, connect(url, operation_timeout=0.3) as client:
        with pytest.raises(error, match=message.replace("ADDRESS", url)) as caught:
            await client.table("game.scores")
        assert type(caught.value) is error
        assert caught.value.details == {"address": url}
        assert isinstance(caught.value.__context__, grpc.aio.AioRpcError)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (CODE.NOT_FOUND, "TABLE_NOT_FOUND", TableNotFound),
        (CODE.UNAVAILABLE, "SERVER_DRAINING", ServerDraining),
        # An unknown reason, as of a newer server, is mapped by its status code.
        (CODE.INVALID_ARGUMENT, "MOON_PHASE", InvalidRequest),
    ],
)
async def test_a_typed_error_is_the_one_that_the_server_raised(
    code: grpc.StatusCode, reason: str, error: type[ScanKvError]
) -> None:
    async with serving(RefusesTables(code, reason, retry_after=0.25)) as url, connect(url) as client:
        with pytest.raises(error, match="what the server says") as caught:
            await client.table("game.scores")
        assert type(caught.value) is error
        if reason != "MOON_PHASE":
            assert caught.value.details == {"table": "game.scores"}
            assert caught.value.retry_after == 0.25


async def test_a_call_that_is_not_answered_ends_with_the_attempt_timeout() -> None:
    async with serving(RefusesTables(CODE.OK)) as url, connect(url, attempt_timeout=0.2) as client:
        with pytest.raises(DeadlineExceeded, match=rf"{url} did not answer within 0\.2 s"):
            await client.tables()


async def test_a_call_in_a_scope_that_is_cancelled_ends_with_its_scope() -> None:
    async with serving(RefusesTables(CODE.OK)) as url, connect(url) as client:
        with anyio.move_on_after(0.1) as scope:
            await client.tables()
        assert scope.cancelled_caught


async def test_the_operation_timeout_bounds_an_attempt_as_well() -> None:
    async with serving(RefusesTables(CODE.OK)) as url, connect(url, operation_timeout=0.2) as client:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
            await client.drop_table("game.scores")


async def test_no_server_is_an_error_at_once_that_names_the_address(unused_port: int) -> None:
    async with connect(f"localhost:{unused_port}") as client:
        started = time.monotonic()
        with pytest.raises(Unavailable, match=f"no ScanKV server answers at localhost:{unused_port}: "):
            await client.table("game.scores")
        assert time.monotonic() - started < client.config.operation_timeout / 2


async def test_a_host_that_does_not_exist_is_an_error_that_names_it() -> None:
    async with connect("no-such-host.invalid:7070") as client:
        with pytest.raises(Unavailable, match=r"no-such-host\.invalid:7070"):
            await client.tables()


async def test_a_server_that_accepts_and_is_silent_is_an_error_that_names_the_address() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        async with connect(url, attempt_timeout=0.3) as client:
            with pytest.raises(DeadlineExceeded, match=rf"{url} did not answer within 0\.3 s"):
                await client.tables()
            with pytest.raises(DeadlineExceeded, match=rf"{url} was not ready within 0\.2 s"):
                await client.wait_ready(0.2)


async def test_a_server_of_another_kind_is_an_error() -> None:
    async def answer_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_http, "127.0.0.1", 0)
    url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, connect(url) as client:
        with pytest.raises(Unavailable, match=url):
            await client.tables()


async def test_waiting_for_a_server_that_never_comes_ends_with_the_timeout(unused_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_port}") as client:
        with pytest.raises(DeadlineExceeded, match=r"was not ready within 0\.3 s: it does not answer"):
            await client.wait_ready(0.3)


async def test_a_server_that_comes_later_is_found(unused_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_port}") as client:
        with pytest.raises(Unavailable):
            await client.table("game.scores")
        async with serving(RefusesTables(CODE.NOT_FOUND, "TABLE_NOT_FOUND"), port=unused_port):
            with pytest.raises(TableNotFound):
                await _once_connected(client)


async def _once_connected(client: Client) -> None:
    """Calls until the client has connected to the server; it reconnects about every second."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.table("game.scores")
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("buckets", [0, -1, 1.5, "4", True])
async def test_a_number_of_buckets_that_is_none_is_refused_before_it_is_sent(buckets: object) -> None:
    async with connect("localhost:1") as client:
        with pytest.raises(UsageError, match="buckets must be a whole number of at least 1"):
            await client.create_table(
                "a.b",
                pa.schema([("k", pa.int64())]),
                primary_key=["k"],
                buckets=buckets,  # type: ignore[arg-type]
            )


async def test_scans_share_a_connection_for_each_window_and_close_them_all() -> None:
    async with serving(server := NotesPeers()) as url, connect(url, read_ahead_bytes=1 << 20) as client:
        plain = client.scan(ScanSpec("game.scores"))
        small, smaller = plain.with_chunk(bytes=64 << 10), plain.with_chunk(bytes=60_000)
        tiny = plain.with_chunk(bytes=1024)
        # At most 1 MiB is read ahead, so larger chunks use the same window as the default size.
        large = plain.with_chunk(bytes=16 << 20)
        for scan in (plain, small, smaller, tiny, large, plain, small):
            await scan.to_arrow()
        default, two_chunks, least = server.peers[0], server.peers[1], server.peers[3]
        assert len({default, two_chunks, least}) == 3
        assert server.peers == [default, two_chunks, two_chunks, least, default, default, two_chunks]
    with pytest.raises(UsageError, match="is closed"):
        await small.to_arrow()
