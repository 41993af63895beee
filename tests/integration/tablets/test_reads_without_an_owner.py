"""Reads of tables with tablets while the owner of a tablet is dead or frozen: an error, never a part of the answer."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.storage.tables.placement import Placement
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES, scores
from tests.support.wire import Wire, refusal_of
from tests.support.workers import freeze, kill_worker, processes_of, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

NAME = "faults.scores"
LARGE = pa.schema([pa.field("player", pa.string(), nullable=False), ("data", pa.string())])


@pytest.mark.breadth
def test_queries_fail_while_the_owner_of_a_tablet_is_dead_or_frozen(tmp_path: Path) -> None:
    # The supervisor must not kill a frozen worker, however slow the host is.
    settings = ("--workers", "2", "--set", "worker_timeout_seconds=3600")
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tmp_path / "data", *settings))
        with sync.connect(server.url) as client:
            table = client.create_table(NAME, SCORES, primary_key=["player"], buckets=6, tablets=3)
            wire = stack.enter_context(Wire(f"127.0.0.1:{table.owner_port}"))
            table.upsert(scores([f"p{number}" for number in range(100)], range(100)))
        other = 1 - Placement(0, 2).owner_of(NAME)
        requests: list[tuple[Any, Any]] = [
            (wire.lookups.Count, lookup_pb2.CountRequest(table=NAME)),
            (wire.lookups.Aggregate, lookup_pb2.AggregateRequest(table=NAME, group_by=["score"])),
            (wire.lookups.TopN, lookup_pb2.TopNRequest(table=NAME, by="score", n=4)),
        ]
        before = [call(request).version for call, request in requests]
        with freeze(processes_of(server)[other]):
            for call, request in requests:
                with pytest.raises(grpc.RpcError) as caught:
                    call(request, timeout=60)
                refusal = refusal_of(caught.value)
                assert refusal.code == "UNAVAILABLE"
                assert f"worker {other} of the server, which owns tablet 1 of {NAME}, does not" in refusal.message
        kill_worker(server, other)
        for call, request in requests:
            # The worker may be back already.
            with suppress(grpc.RpcError):
                assert call(request, timeout=5).version in before
        wait_for_worker(server, other)
        assert [call(request).version for call, request in requests] == before


@pytest.mark.breadth
def test_scans_fail_if_the_owner_of_a_tablet_ends_in_the_middle(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, Wire(server.url) as wire:
        with sync.connect(server.url) as client:
            table = client.create_table(NAME, LARGE, primary_key=["player"], buckets=6, tablets=3)
            data = pa.array(["x" * 3000] * 2000)
            for start in range(0, 10_000, 2000):
                players = pa.array([f"p{number}" for number in range(start, start + 2000)])
                table.upsert(pa.RecordBatch.from_arrays([players, data], schema=LARGE))
        other = 1 - Placement(0, 2).owner_of(NAME)
        for ordered in (False, True):
            stream = wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=NAME, ordered=ordered), timeout=60)
            assert next(stream).HasField("header")
            kill_worker(server, other)
            messages = []
            with pytest.raises(grpc.RpcError) as caught:
                messages += stream
            assert not any(each.HasField("trailer") for each in messages)
            # The connection may be to the worker that was killed, which then sends no reason.
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            wait_for_worker(server, other)
        rows = sum(each.chunk.row_count for each in wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=NAME), timeout=60))
        assert rows == 10_000
