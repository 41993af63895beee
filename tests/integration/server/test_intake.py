"""The cost of floods of large and malformed requests, during which other clients are served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.v1 import write_pb2
from tests.support.processes import forget_peak, peak_resident_bytes, resident_bytes
from tests.support.secured import METHODS
from tests.support.server_process import ServerProcess
from tests.support.wire import Wire, refusal_of

if TYPE_CHECKING:
    from pathlib import Path

MEBIBYTE = 1 << 20
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.binary())])


def test_a_message_that_cannot_be_parsed_is_the_clients_fault_in_every_method(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        for path, method in METHODS.items():
            for requests in ([b"\xff\xff\xff"], []):
                if not requests and method.client_streaming:
                    continue
                error = failure(wire, f"/{path}", requests)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (path, error)
                assert refusal_of(error).reason == "INVALID_REQUEST", path
    assert server.stop() == 0
    assert "Traceback" not in server.log
    assert len(server.log.splitlines()) < 20


def failure(wire: Wire, path: str, requests: list[bytes]) -> Any:
    channel: Any = wire.channel
    with pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(path)(iter(requests), timeout=60))
    return caught.value


def test_a_message_over_the_limit_is_refused(server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        error = failure(wire, "/scankv.v1.WriteService/Upsert", [b"\xff" * (40 * MEBIBYTE)])
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert wire.server().request_bytes_in_flight == 0


@pytest.mark.represented_by("no Arrow data")
@pytest.mark.parametrize("bogus", ["no Arrow data", "no message"])
def test_a_flood_of_bogus_requests_is_bounded_in_memory_and_others_are_served(
    server: ServerProcess, bogus: str
) -> None:
    request = write_pb2.UpsertRequest(table="test.t", rows=b"\xff" * (20 * MEBIBYTE)).SerializeToString()
    if bogus == "no message":
        request = b"\xff" * (20 * MEBIBYTE)
    with sync.connect(server.url) as client, Wire(server.url) as wire:
        table = client.create_table("test.t", SCHEMA, primary_key=["k"])
        table.upsert([{"k": 1, "v": b"one"}])
        pid = server.process.pid
        idle = resident_bytes(pid)
        forget_peak(pid)
        channel: Any = wire.channel
        upsert = channel.unary_unary("/scankv.v1.WriteService/Upsert")
        calls = [upsert.future(request, timeout=120) for _ in range(40)]
        assert table.get(1) == {"k": 1, "v": b"one"}
        reasons = {refusal_of(each.exception()).reason for each in calls}
        assert reasons <= {"SERVER_BUSY", "INVALID_REQUEST"}
        # 40 of them are 800 MiB, and would be in memory in several copies.
        assert peak_resident_bytes(pid) - idle < 600 * MEBIBYTE
        stats = client.stats()
        assert stats.request_bytes_in_flight == 0
        assert ("SERVER_BUSY" in reasons) == (stats.refused_requests > 0)


@pytest.mark.breadth
@pytest.mark.timeout(180)  # 40 large writes at once
def test_large_writes_of_many_callers_are_all_applied(tmp_path: Path) -> None:
    value = np.random.default_rng(5).bytes(MEBIBYTE)
    settings = "--set", f"max_request_bytes_in_flight={66 * MEBIBYTE}"
    with ServerProcess(tmp_path / "data", *settings) as server, sync.connect(server.url) as client:
        table = client.create_table("test.t", SCHEMA, primary_key=["k"])

        def write(start: int) -> None:
            table.upsert(pa.table({"k": range(start, start + 7), "v": [value] * 7}, schema=SCHEMA))

        with ThreadPoolExecutor(24) as threads:
            list(threads.map(write, range(0, 24 * 7, 7)))
        assert table.count() == 24 * 7
        assert client.stats().request_bytes_in_flight == 0
