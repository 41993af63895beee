"""Clients that ask for large answers and read none of them: the memory is bounded, and others are served."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.rows.key_values import KeyValues
from scankv.v1 import lookup_pb2, scan_pb2
from tests.support.http2 import Http2Connection, begin_call, send_message
from tests.support.processes import forget_peak, peak_resident_bytes, resident_bytes
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client.sync import Client

MEBIBYTE: Final = 1 << 20
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.binary())])
LOOKUP: Final = "/scankv.v1.LookupService/Lookup"
ROWS: Final = 28
LIMIT: Final = 128 * MEBIBYTE
CLOSED: Final = "closed the connection of ipv4:127.0.0.1:"
SETTINGS: Final = ("--set", f"max_unread_answer_bytes={LIMIT}")


def create_table(client: Client) -> sync.Table:
    """Creates a table of rows of 1 MiB, and one small row."""
    random = np.random.default_rng(5)
    table = client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=2, compression="none")
    for k in range(ROWS):
        table.upsert([{"k": k, "v": random.bytes(MEBIBYTE)}])
    table.upsert([{"k": 1000, "v": b"small"}])
    return table


def lookups() -> dict[str, bytes]:
    """Returns requests for all large rows, by kind."""
    keys = KeyValues([pa.int64()])
    of_arrow = pa.RecordBatch.from_pydict({"k": range(ROWS)}, schema=pa.schema([SCHEMA.field("k")]))
    return {
        "encoded keys": lookup_pb2.LookupRequest(
            table="test.t", encoded_keys=[keys.encode([k]) for k in range(ROWS)]
        ).SerializeToString(),
        "Arrow": lookup_pb2.LookupRequest(
            table="test.t", keys=ipc_stream(of_arrow.schema, of_arrow)
        ).SerializeToString(),
    }


def ask(connection: Http2Connection, path: str, request: bytes, calls: int, *, first: int = 0) -> None:
    """Makes calls of which the connection will read no answer. `first`: how many calls it has made already."""
    for number in range(first, first + calls):
        connection.send(begin_call(2 * number + 1, path) + send_message(2 * number + 1, request))


@pytest.mark.breadth
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["encoded keys", "Arrow"])
def test_large_answers_that_no_client_reads_are_bounded_and_others_are_served(tmp_path: Path, kind: str) -> None:
    # On a busy machine, the test may take longer than readers may stall by default.
    patient = (*SETTINGS, "--set", "stall_timeout_seconds=600")
    with ServerProcess(tmp_path / "data", *patient) as server, sync.connect(server.url) as client:
        table = create_table(client)
        assert len(table.lookup(list(range(ROWS)))) == ROWS
        pid = server.process.pid
        idle = resident_bytes(pid)
        forget_peak(pid)
        with ExitStack() as stack:
            for _ in range(4):
                connection = stack.enter_context(Http2Connection(server.url))
                ask(connection, LOOKUP, lookups()[kind], 50)

            def are_answered() -> bool:
                assert table.get(1000) == {"k": 1000, "v": b"small"}
                stats = client.stats()
                return stats.refused_answers >= 150 and stats.unread_answer_bytes >= ROWS * MEBIBYTE

            wait_until(are_answered, "all calls are answered or refused", timeout=120)
            # All of the answers are 5.5 GiB.
            assert client.stats().unread_answer_bytes <= LIMIT
        wait_until(lambda: client.stats().unread_answer_bytes == 0, "released")
        # Some answers are being built while others wait for their reader.
        assert peak_resident_bytes(pid) - idle < LIMIT + 500 * MEBIBYTE
        assert len(table.lookup(list(range(ROWS)))) == ROWS
        assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.mark.breadth
@pytest.mark.timeout(120)
def test_connections_that_read_no_answers_are_closed_when_memory_is_short(tmp_path: Path) -> None:
    settings = (*SETTINGS, "--set", "stall_timeout_seconds=1")
    with (
        ServerProcess(tmp_path / "data", *settings) as server,
        sync.connect(server.url) as client,
        ExitStack() as stack,
    ):
        table = create_table(client)
        silent = [stack.enter_context(Http2Connection(server.url)) for _ in range(3)]
        numbers = itertools.count()

        def is_full() -> bool:
            # Calls that arrive together may refuse each other, so more of them follow. On a busy machine, one of them
            # may already close a connection.
            if CLOSED not in server.log and client.stats().unread_answer_bytes < 3 * ROWS * MEBIBYTE:
                number = next(numbers)
                for connection in silent:
                    with suppress(ConnectionError):
                        ask(connection, LOOKUP, lookups()["encoded keys"], 1, first=number)
                return False
            return True

        wait_until(is_full, "the memory is full")
        # The client repeats a call that finds no room until one of the connections has been closed.
        wait_until(lambda: len(table.lookup(list(range(ROWS)))) == ROWS and CLOSED in server.log, "one is closed")
        assert any(is_closed(connection) for connection in silent)


def is_closed(connection: Http2Connection) -> bool:
    """Whether the server closes a connection. Reads everything first."""
    connection.set_timeout(5)
    try:
        for _ in connection.frames():
            pass
    except TimeoutError:
        return False
    return True


@pytest.mark.breadth
def test_answers_that_are_read_are_not_counted_any_more(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SETTINGS) as server, sync.connect(server.url) as client:
        table = create_table(client)
        for _ in range(5):
            assert len(table.lookup(list(range(ROWS)))) == ROWS
        with Wire(server.url) as wire:
            request = lookup_pb2.LookupRequest.FromString(lookups()["Arrow"])
            running: list[Any] = [wire.lookups.Lookup.future(request, timeout=60) for _ in range(3)]
            for call in running:
                call.cancel()
        with client.transaction() as tx:
            assert len(tx.get_for_update(table, list(range(ROWS)))) == ROWS
        assert len(table.scan().to_arrow()) == ROWS + 1
        wait_until(lambda: client.stats().unread_answer_bytes == 0, "released")
        assert client.stats().refused_answers == 0


@pytest.mark.breadth
def test_the_last_messages_of_ended_scans_count_until_they_are_read(tmp_path: Path) -> None:
    settings = (*SETTINGS, "--set", "stall_timeout_seconds=1")
    with (
        ServerProcess(tmp_path / "data", *settings) as server,
        sync.connect(server.url) as client,
        ExitStack() as stack,
    ):
        create_table(client)
        connection = stack.enter_context(Http2Connection(server.url))
        request = scan_pb2.ScanKvRequest(table="test.t").SerializeToString()
        ask(connection, "/scankv.v1.ScanService/ScanKv", request, 5)
        wait_until(lambda: client.stats().undelivered_errors == 5, "stalled")
        assert client.stats().unread_answer_bytes >= 5 * MEBIBYTE
        connection.close()
        wait_until(lambda: client.stats().unread_answer_bytes == 0, "released")
