"""Floods of connections, calls, pings and frames, slow readers and slow writers, during which others are served.

docs/operations/limits.md lists the bounds, each with its test.
"""

from __future__ import annotations

import socket
import struct
import time
import zlib
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import Tls, sync
from scankv.v1 import lookup_pb2
from tests.support import http2
from tests.support.http2 import Http2Connection, begin_call, frame, header_block, send_message
from tests.support.processes import forget_peak, peak_resident_bytes, resident_bytes
from tests.support.server_process import ServerProcess
from tests.support.tls_server import TlsServer
from tests.support.waiting import in_time, wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEBIBYTE = 1 << 20
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.binary())])
LOOKUP = "/scankv.v1.LookupService/Lookup"
PROMPT_SECONDS = 2.0
"""Within this time another client's `get` is answered during a flood, on a busy machine."""


@contextmanager
def served(server: ServerProcess, memory: int = 200 * MEBIBYTE) -> Iterator[sync.Table]:
    """Gives another client's table of one row, and checks that the server keeps its bound of memory."""
    with sync.connect(server.url, operation_timeout=60) as client:
        table = client.create_table("test.t", SCHEMA, primary_key=["k"])
        table.upsert([{"k": 1, "v": b"one"}])
        check_get(table)
        pid = server.process.pid
        idle = resident_bytes(pid)
        forget_peak(pid)
        yield table
        check_get(table)
        table.upsert([{"k": 2, "v": b"two"}])
        assert peak_resident_bytes(pid) - idle < memory
        assert "Traceback" not in server.log


def check_get(table: sync.Table) -> None:
    """Asserts that a lookup is answered promptly."""

    def get() -> float:
        began = time.monotonic()
        assert table.get(1) == {"k": 1, "v": b"one"}
        return time.monotonic() - began

    in_time(get, PROMPT_SECONDS)


def open_sockets(stack: ExitStack, server: ServerProcess, number: int) -> list[socket.socket]:
    host, _, port = server.url.rpartition(":")
    return [stack.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(number)]


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection. Reads what it has sent before."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def test_connections_over_the_limit_are_closed_and_others_are_served(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--set", "max_connections=100") as server,
        served(server) as table,
        ExitStack() as stack,
    ):
        flood = open_sockets(stack, server, 2000)
        wait_until(lambda: sum(map(is_closed, flood)) >= 1900, "closed")
        check_get(table)
        for connection in flood:
            connection.close()
        with sync.connect(server.url) as client:
            assert client.table("test.t").count() == 1


@pytest.mark.breadth
def test_connections_leave_most_files_to_tables(tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 400; exec "$0" "$@"')
    with (
        ServerProcess(tmp_path / "data", wrapper=limited) as server,
        served(server) as table,
        ExitStack() as stack,
        sync.connect(server.url) as client,
    ):
        client.stats()
        flood = open_sockets(stack, server, 500)
        wait_until(lambda: sum(map(is_closed, flood)) >= 400, "closed")
        check_get(table)
        assert client.stats().open_files < 300
        client.create_table("test.another", SCHEMA, primary_key=["k"]).upsert([{"k": 1, "v": b""}])


def test_a_connection_that_sends_nothing_is_closed(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--set", "request_receive_seconds=1") as server,
        served(server),
        ExitStack() as stack,
    ):
        silent = open_sockets(stack, server, 20)
        wait_until(lambda: all(map(is_closed, silent)), "closed")


def test_a_connection_has_no_more_calls_than_its_limit(server: ServerProcess) -> None:
    with served(server) as table, Http2Connection(server.url) as connection:
        for number in range(1100):
            connection.send(begin_call(2 * number + 1, LOOKUP))
        # gRPC's word for it depends on whether the client has acknowledged the limit.
        errors = {http2.REFUSED_STREAM, http2.ENHANCE_YOUR_CALM}
        refused = (each for each in connection.frames() if each.kind == http2.RST_STREAM and each.error in errors)
        assert len(list(islice(refused, 70))) == 70
        check_get(table)


@pytest.mark.represented_by("1")
@pytest.mark.parametrize("connections", [1, 5])
def test_calls_without_a_message_delay_nobody(server: ServerProcess, connections: int) -> None:
    with served(server, 400 * MEBIBYTE) as table, ExitStack() as stack:
        for _ in range(connections):
            connection = stack.enter_context(Http2Connection(server.url))
            for number in range(1000):
                connection.send(begin_call(2 * number + 1, LOOKUP))
        for _ in range(5):
            check_get(table)


@pytest.mark.breadth
def test_tls_handshakes_that_stop_are_ended_and_others_are_served(tmp_path: Path) -> None:
    client_hello = bytes.fromhex("160301020001000200fc0303") + bytes(32)
    with TlsServer(tmp_path, "--set", "request_receive_seconds=2") as server, ExitStack() as stack:
        for sent in (b"", client_hello[:3], client_hello):
            flood = open_sockets(stack, server.process, 100)
            for connection in flood:
                connection.sendall(sent)
            with sync.connect(server.url, token=server.root, tls=Tls(ca=server.authority.path)) as client:
                assert client.tables() == []
            wait_until(partial(all_closed, flood), "closed")
        assert "Traceback" not in server.process.log


def all_closed(connections: list[socket.socket]) -> bool:
    return all(map(is_closed, connections))


@pytest.mark.parametrize(("encoding", "window_bits"), [("gzip", 31), ("deflate", 15)])
def test_compressed_messages_are_refused_before_they_are_decompressed(
    server: ServerProcess, encoding: str, window_bits: int
) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, window_bits)
    large = lookup_pb2.LookupRequest(table="test.t", keys=bytes(20 * MEBIBYTE)).SerializeToString()
    bomb = compressor.compress(large) + compressor.flush()
    assert len(bomb) < 21_000
    with served(server) as table, ExitStack() as stack:
        # 1.8 GiB in all. Each connection sends as much as its first window allows.
        for _ in range(30):
            connection = stack.enter_context(Http2Connection(server.url))
            for stream in (1, 3, 5):
                begin = begin_call(stream, LOOKUP, {"grpc-encoding": encoding})
                connection.send(begin + send_message(stream, bomb, compressed=True))
        for _ in range(5):
            check_get(table)
        with Wire(server.url) as wire:
            wait_until(lambda: wire.server().request_bytes_in_flight == 0, "all are refused")


def test_a_message_that_arrives_byte_by_byte_is_refused_in_time(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--set", "request_receive_seconds=1") as server,
        served(server) as table,
        Http2Connection(server.url) as connection,
    ):
        connection.send(begin_call(1, LOOKUP) + send_message(1, b"x", size=1000))
        began = time.monotonic()
        for each in connection.frames():
            if each.kind == http2.HEADERS and each.flags & http2.END_STREAM:
                break
        assert 0.9 < time.monotonic() - began < 10
        assert b"INVALID_REQUEST" in each.payload or b"grpc-status" in each.payload
        check_get(table)


@pytest.mark.breadth
def test_pings_in_a_flood_end_their_connection(server: ServerProcess) -> None:
    with served(server) as table, Http2Connection(server.url) as connection:
        connection.send_until_closed(frame(http2.PING, 0, 0, b"12345678") * 100, 200)
        ends = [each for each in connection.frames() if each.kind == http2.GOAWAY]
        assert http2.ENHANCE_YOUR_CALM in [each.error for each in ends]
        check_get(table)


FLOODS = {
    "calls that are cancelled at once": lambda n: (
        begin_call(2 * n + 1, LOOKUP) + frame(http2.RST_STREAM, 0, 2 * n + 1, struct.pack(">I", 8))
    ),
    "settings": lambda n: frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535 + n % 2)),
    "empty data": lambda n: (begin_call(1, LOOKUP) if n == 0 else b"") + frame(http2.DATA, 0, 1),
    "headers without end": lambda n: (
        frame(http2.HEADERS, 0, 1, header_block(LOOKUP))
        if n == 0
        else frame(http2.CONTINUATION, 0, 1, b"\x00\x03x-a\x7f\x00" + b"v" * 127)
    ),
    "large headers": lambda n: begin_call(2 * n + 1, LOOKUP, {"x-large": "v" * 15_000}),
}


@pytest.mark.represented_by("empty data", "settings", "headers without end")
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_frames_is_bounded_and_others_are_served(server: ServerProcess, flood: str) -> None:
    with served(server) as table, Http2Connection(server.url) as connection:
        # The flood does not read, so the server may stop reading, too.
        connection.set_timeout(2)
        for start in range(0, 20_000, 100):
            try:
                connection.send(b"".join(FLOODS[flood](number) for number in range(start, start + 100)))
            except OSError:
                break
            if start % 5000 == 0:
                check_get(table)
        check_get(table)
