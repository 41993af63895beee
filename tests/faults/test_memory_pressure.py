"""A server with little memory is not killed under load: it slows down or refuses calls with typed errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pytest

from aio_client import ScanKvError, ServerBusy, StartFrom, StopAt, TooManyScans, sync
from scankv.model.rows.key_values import KeyValues
from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.config import SHARES_OF_MEMORY, load_config
from tests.support.http2 import Http2Connection, begin_call, send_message
from tests.support.memory_groups import limited_memory
from tests.support.processes import peak_resident_bytes
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEBIBYTE: Final = 1 << 20
BUDGET: Final = 1024 * MEBIBYTE
LIMIT: Final = BUDGET * 3 // 2
FITTED: Final = load_config({"data": "x"}, memory_bytes=BUDGET)
SETTINGS: Final = tuple(f"--set={name}={getattr(FITTED, name)}" for name in (*SHARES_OF_MEMORY, "max_live_scans"))
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.binary())])
ROWS: Final = 300
VALUE_BYTES: Final = 100_000
REFUSALS: Final = (ServerBusy, TooManyScans)


def rows(writer: int, round_: int) -> pa.Table:
    """Returns 10 MB of rows that do not compress."""
    random = np.random.default_rng(1000 * writer + round_)
    keys = range(1000 * writer, 1000 * writer + 100)
    return pa.table({"k": keys, "v": [random.bytes(VALUE_BYTES) for _ in keys]}, SCHEMA)


def take_answers_and_read_none(stack: ExitStack, url: str) -> None:
    """Begins lookups of 30 MB and scans, on several connections that read nothing."""
    keys = KeyValues([pa.int64()])
    lookup = lookup_pb2.LookupRequest(table="test.t", encoded_keys=[keys.encode([k]) for k in range(ROWS)])
    scan = scan_pb2.ScanKvRequest(table="test.t")
    for path, request in (
        ("/scankv.v1.LookupService/Lookup", lookup),
        ("/scankv.v1.ScanService/ScanKv", scan),
    ):
        for _ in range(4):
            connection = stack.enter_context(Http2Connection(url))
            for number in range(40):
                call = send_message(2 * number + 1, request.SerializeToString())
                connection.send(begin_call(2 * number + 1, path) + call)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_server_with_little_memory_refuses_calls_and_is_not_killed(tmp_path: Path, rounds: int) -> None:
    with (
        limited_memory(LIMIT) as wrapper,
        ServerProcess(tmp_path / "data", *SETTINGS, wrapper=wrapper) as server,
        ExitStack() as stack,
        sync.connect(server.url, operation_timeout=120) as client,
    ):
        table = client.create_table("test.t", SCHEMA, primary_key=["k"], buckets=2, columnar_base="off")
        random = np.random.default_rng(5)
        for start in range(0, ROWS, 100):
            values = [random.bytes(VALUE_BYTES) for _ in range(100)]
            table.upsert(pa.table({"k": range(start, start + 100), "v": values}, SCHEMA))
        acknowledged: dict[int, int] = {}
        refused: list[ScanKvError] = []

        def write(writer: int) -> None:
            for round_ in range(rounds):
                table.upsert(rows(writer, round_))
                acknowledged[writer] = round_

        def scan(_: int) -> None:
            for _ in range(rounds):
                for batch in table.scan(columns=["k", "v"]).stream():
                    assert batch.num_rows

        def follow(_: int) -> None:
            changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST)
            for _ in range(rounds):
                for batch in changes.stream():
                    assert batch.num_rows

        def look_up(_: int) -> None:
            for _ in range(rounds):
                assert len(table.lookup(list(range(ROWS)))) == ROWS

        def attempt(work: Callable[[int], Any], number: int) -> None:
            try:
                work(number)
            except REFUSALS as error:
                refused.append(error)

        take_answers_and_read_none(stack, server.url)
        work = [(each, number) for number in range(4) for each in (write, scan, follow, look_up)]
        with ThreadPoolExecutor(len(work)) as threads:
            for done in [threads.submit(attempt, each, number + 1) for each, number in work]:
                done.result()
        assert server.process.poll() is None
        assert peak_resident_bytes(server.process.pid) < LIMIT
        for writer, round_ in acknowledged.items():
            expected = rows(writer, round_)
            found = table.lookup(expected["k"].to_pylist()).sort_by("k")
            assert found.equals(expected)
        assert set(acknowledged) == {1, 2, 3, 4}
        stack.close()
        assert server.stop() == 0
    assert "Traceback" not in server.log
