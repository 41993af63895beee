"""Ways in which a scan ends early: each frees the iterators within a second, and has its own error."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from scankv.v1 import admin_pb2, expression_pb2, scan_pb2, table_pb2, write_pb2
from streaming_server.scan.admission.live_scans import MAX_UNREAD_ENDINGS
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.waiting import in_time, wait_until
from tests.support.wire import Refusal, Wire, refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = 30_000
CONNECTIONS = 8
TABLE = "endings.table"


NOBODY = expression_pb2.Predicate(
    text_match=expression_pb2.TextMatch(
        column=expression_pb2.FieldPath(names=["v"]), kind=expression_pb2.MATCH_KIND_CONTAINS, text="nobody"
    )
)


def fill(wire: Wire, name: str = TABLE) -> None:
    """Makes a table of 15 MB, far more than fits between a server and a reader that does not read."""
    wire.create(name, SCHEMA, buckets=3)
    batch = pa.record_batch([list(range(ROWS)), [f"{key:0500}" for key in range(ROWS)]], schema=SCHEMA)
    wire.writes.Upsert(write_pb2.UpsertRequest(table=name, rows=ipc_stream(SCHEMA, batch)), timeout=60)


class Settings:
    """A server with some settings, a filled table, and a connection."""

    def __init__(self, stack: ExitStack, data_dir: Path, *settings: str) -> None:
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self.server = stack.enter_context(ServerProcess(data_dir, *flags))
        self.wire = stack.enter_context(Wire(self.server.url))
        fill(self.wire)
        self._stack = stack

    def scan(self, **fields: Any) -> Any:
        """Starts a scan and reads its first chunk; it cannot end by itself."""
        call = self.wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=TABLE, **fields), timeout=60)
        assert next(call).HasField("header")
        assert next(call).HasField("chunk")
        return call

    def freed(self) -> None:
        """Waits until no scan holds anything."""

        def nothing_is_held() -> bool:
            stats = self.wire.server()
            return stats.live_scans == stats.open_cursors == 0

        wait_until(nothing_is_held, "everything freed")


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda *settings: Settings(stack, tmp_path / "data", *settings)


def ending(call: Any) -> Refusal:
    """Returns how a scan ends if it is read to its end."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return refusal_of(error)
    raise AssertionError("the scan ended in success")


@pytest.mark.breadth
def test_a_reader_that_takes_nothing_loses_its_scan_and_is_told_when_it_reads_on(settings: Any) -> None:
    here = settings("stall_timeout_seconds=0.5")

    def attempt() -> float:
        started = time.monotonic()
        calls = [here.scan() for _ in range(3)]
        here.freed()
        took = time.monotonic() - started
        assert took >= 0.5
        assert here.wire.server().undelivered_errors == 3
        for call in calls:
            assert (ended := ending(call)).reason == "SCAN_STALLED", ended
            assert ended.code == "DEADLINE_EXCEEDED"
            assert "stall_timeout_seconds" in ended.message
        wait_until(lambda: here.wire.server().undelivered_errors == 0, "the endings taken")
        return took

    in_time(attempt, 1.5)


@pytest.mark.breadth
def test_a_slow_reader_that_goes_on_reading_keeps_its_scan(settings: Any) -> None:
    """In total, the scan takes longer than the stall timeout, but each pause is a small part of it."""
    here = settings("stall_timeout_seconds=2")
    started = time.monotonic()
    call = here.scan(chunk=scan_pb2.ChunkBounds(max_rows=1000))
    for _ in range(22):
        read_at = time.monotonic()
        assert next(call).HasField("chunk")
        wait_until(partial(_is_past, read_at + 0.1), "the reader's pause over")
    assert time.monotonic() - started > 2
    *_, last = call
    assert last.trailer.rows_returned == ROWS


@pytest.mark.breadth
def test_a_reader_that_took_everything_keeps_its_scan_while_that_finds_nothing(settings: Any) -> None:
    """The scan takes longer than the stall timeout without anything to send. It reads row by row, for fast machines."""
    here = settings("stall_timeout_seconds=0.5", "heartbeat_seconds=60")
    for rows in (64, 8, 1):
        request = scan_pb2.ScanKvRequest(table=TABLE, chunk=scan_pb2.ChunkBounds(max_rows=rows), where=NOBODY)
        header, trailer = here.wire.scans.ScanKv(request, timeout=600)
        assert header.HasField("header")
        assert (trailer.trailer.rows_scanned, trailer.trailer.rows_returned) == (ROWS, 0)
        if trailer.trailer.elapsed_micros > 1_000_000:
            return
    raise AssertionError("too fast to tell")


def _is_past(instant: float) -> bool:
    return time.monotonic() > instant


@pytest.mark.breadth
def test_a_scan_that_takes_too_long_is_ended_whether_its_reader_reads_or_not(settings: Any) -> None:
    here = settings("max_scan_seconds=2")

    def attempt() -> float:
        started = time.monotonic()
        calls = [here.scan(), here.scan()]
        here.freed()
        took = time.monotonic() - started
        for call in calls:
            assert ending(call).reason == "SCAN_TOO_LONG"
        return took

    in_time(attempt, 3.0)


def test_a_scan_cancelled_by_an_operator_is_gone_when_that_is_answered(settings: Any) -> None:
    here = settings()
    call = here.scan()
    (live,) = here.wire.admin.ListScans(admin_pb2.ListScansRequest()).scans
    assert (live.table, list(live.buckets), live.snapshot_id) == (TABLE, [0, 1, 2], "")
    assert live.rows_scanned >= 256
    assert live.bytes_returned > 0
    assert "127.0.0.1" in live.peer
    here.wire.admin.CancelScan(admin_pb2.CancelScanRequest(scan_id=live.scan_id))
    stats = here.wire.server()
    assert (stats.live_scans, stats.open_cursors) == (0, 0)
    assert (ended := ending(call)).reason == "SCAN_CANCELLED", ended
    assert refusal(here.wire.admin.CancelScan, admin_pb2.CancelScanRequest(scan_id=live.scan_id)).reason == (
        "SCAN_NOT_FOUND"
    )


@pytest.mark.breadth
def test_a_scan_that_is_idle_says_since_when_and_one_that_was_read_says_so(settings: Any) -> None:
    here = settings()
    call = here.scan()

    def idle() -> int:
        (live,) = here.wire.admin.ListScans(admin_pb2.ListScansRequest()).scans
        assert live.idle_millis <= live.age_millis
        return int(live.idle_millis)

    wait_until(lambda: idle() >= 300, "idle for some time")
    read_at = time.monotonic()
    for _ in range(3):
        next(call)
    wait_until(lambda: idle() <= (time.monotonic() - read_at) * 1000, "idle since it was read")
    call.cancel()
    here.freed()


@pytest.mark.breadth
def test_a_deadline_frees_the_scan(settings: Any) -> None:
    here = settings()

    def attempt() -> float:
        call = here.wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=TABLE), timeout=3)
        next(call)
        wait_until(lambda: not call.is_active(), "the deadline over")
        with pytest.raises(grpc.RpcError, match="Deadline Exceeded"):
            list(call)
        began = time.monotonic()
        here.freed()
        return time.monotonic() - began

    in_time(attempt, 1.0)


READER = """
import sys, time, grpc
from scankv.v1 import scan_pb2, scan_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1], [("grpc.http2.bdp_probe", 0)])
call = scan_pb2_grpc.ScanServiceStub(channel).ScanKv(scan_pb2.ScanKvRequest(table=sys.argv[2]))
next(call)
print("reading", flush=True)
sys.stdin.readline()
"""


@pytest.mark.breadth
def test_the_scan_of_a_killed_reader_is_freed_within_a_second(settings: Any) -> None:
    here = settings("stall_timeout_seconds=600")
    in_time(partial(seconds_until_freed, here, signal.SIGKILL), 1.0)


@pytest.mark.breadth
def test_the_scan_of_a_frozen_reader_is_freed_by_the_stall_timeout(settings: Any) -> None:
    in_time(partial(seconds_until_freed, settings("stall_timeout_seconds=1"), signal.SIGSTOP), 2.0)


def seconds_until_freed(here: Settings, how: signal.Signals) -> float:
    """Kills or freezes a reader; returns how long its scan stayed live."""
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, here.server.url, TABLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        assert here.wire.server().live_scans == 1
        os.kill(reader.pid, how)
        began = time.monotonic()
        here.freed()
        return time.monotonic() - began
    finally:
        reader.kill()
        reader.communicate()


@pytest.mark.breadth
def test_scans_that_outlast_the_drain_are_told_that_the_server_shuts_down(settings: Any) -> None:
    here = settings("drain_seconds=1")
    call = here.scan()
    here.server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "SERVER_DRAINING" in here.server.log, "the scan ended")
    assert (ended := ending(call)).reason == "SERVER_DRAINING", ended
    assert here.server.process.wait(60) == 0


@pytest.mark.breadth
def test_a_second_signal_ends_the_server_at_once_and_loses_nothing(settings: Any) -> None:
    here = settings("drain_seconds=600")
    held = here.scan()
    here.server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining" in here.server.log, "draining")
    assert held.is_active()
    here.server.process.send_signal(signal.SIGTERM)
    assert here.server.process.wait(60) == 128 + signal.SIGTERM
    here.server.restart()
    with Wire(here.server.url) as wire:
        assert sum(bucket.rows for bucket in wire.statistics(TABLE)) == ROWS


@pytest.mark.breadth
def test_scans_beyond_the_limit_of_a_bucket_wait_and_are_let_in_or_refused_with_a_time_to_come_back(
    settings: Any,
) -> None:
    here = settings("max_live_scans_per_bucket=1", "admission_wait_seconds=3", "max_waiting_scans=1")
    held = here.scan(buckets=[0])
    here.scan(buckets=[1]).cancel()
    waiting = here.wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=TABLE, buckets=[0, 2]), timeout=60)
    wait_until(lambda: here.wire.server().waiting_scans == 1, "one waiting")
    full = refusal(here.wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=TABLE, buckets=[0]))
    assert (full.code, full.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_SCANS")
    assert "1 more are waiting" in full.message
    late = ending(waiting)
    assert late.reason == "TOO_MANY_SCANS"
    assert "max_live_scans_per_bucket" in late.message
    waiting = here.wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=TABLE, buckets=[0]), timeout=60)
    wait_until(lambda: here.wire.server().waiting_scans == 1, "one waiting")
    held.cancel()
    assert sum(message.chunk.row_count for message in waiting) > 0
    here.freed()


@pytest.mark.breadth
def test_scans_ended_while_their_readers_take_nothing_keep_nobody_out(settings: Any) -> None:
    here = settings("stall_timeout_seconds=2", "max_live_scans=2", "admission_wait_seconds=0")
    calls = [here.scan(), here.scan()]
    here.freed()
    with Wire(here.server.url) as other:
        for _ in range(3):
            *_, last = other.scans.ScanKv(scan_pb2.ScanKvRequest(table=TABLE), timeout=60)
            assert last.trailer.rows_returned == ROWS
    for call in calls:
        assert ending(call).reason == "SCAN_STALLED"
    held = [here.scan(), here.scan()]
    said = refusal(here.wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=TABLE))
    assert "max_live_scans" in said.message, "a place was given back twice"
    for call in held:
        call.cancel()


def test_a_connection_with_too_many_scans_that_it_does_not_read_gets_no_more(settings: Any) -> None:
    """Each scan holds one or two messages, which only reading or the end of the connection frees."""
    here = settings("stall_timeout_seconds=0.2")
    calls = [here.scan() for _ in range(MAX_UNREAD_ENDINGS)]

    def all_are_stalled() -> bool:
        stats = here.wire.server()
        if stats.live_scans == 0 and stats.undelivered_errors < MAX_UNREAD_ENDINGS:
            # gRPC may enlarge a reader's window late, so that it receives its error without reading.
            calls.append(here.scan())
        return bool(stats.undelivered_errors == MAX_UNREAD_ENDINGS)

    wait_until(all_are_stalled, "all stalled")
    said = refusal(here.wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=TABLE))
    assert said.reason == "TOO_MANY_SCANS"
    with Wire(here.server.url) as other:
        assert next(other.scans.ScanKv(scan_pb2.ScanKvRequest(table=TABLE, limit=1))).HasField("header")
    for call in calls:
        assert ending(call).reason == "SCAN_STALLED"
    wait_until(lambda: here.wire.server().undelivered_errors == 0, "the endings taken")
    here.scan().cancel()
    here.freed()


def test_a_table_dropped_under_a_reader_that_takes_nothing_frees_the_iterators_at_once(settings: Any) -> None:
    here = settings()
    call = here.scan()
    here.wire.tables.DropTable(table_pb2.DropTableRequest(name=TABLE))
    assert here.wire.server().open_cursors == 0
    assert ending(call).reason == "TABLE_NOT_FOUND"
    here.freed()


@pytest.mark.breadth
def test_hundreds_of_cancelled_scans_leave_nothing_behind(settings: Any) -> None:
    _cancel_many(settings(), 200)


def _cancel_many(here: Settings, scans: int) -> None:
    """Cancels scans at once, after the header, and after some chunks, over several connections."""

    async def cancel_some(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(here.server.url, options=options) as channel:
            method: Any = channel.unary_stream(
                "/scankv.v1.ScanService/ScanKv",
                request_serializer=scan_pb2.ScanKvRequest.SerializeToString,
                response_deserializer=scan_pb2.ScanKvResponse.FromString,
            )
            for turn in range(number):
                call = method(scan_pb2.ScanKvRequest(table=TABLE))
                for _ in range(turn % 4):
                    await call.read()
                call.cancel()

    async def cancel_all() -> None:
        await asyncio.gather(*(cancel_some(scans // CONNECTIONS) for _ in range(CONNECTIONS)))

    asyncio.run(cancel_all())
    here.freed()
    before = here.wire.server()
    asyncio.run(cancel_all())
    here.freed()

    seen: list[tuple[int, int]] = []

    def as_before() -> bool:
        after = here.wire.server()
        seen.append((after.tasks, after.open_files))
        # The server may notice closed connections a little later.
        return after.tasks <= before.tasks and after.open_files <= before.open_files + 2 * CONNECTIONS

    try:
        wait_until(as_before, "tasks and files as before")
    except AssertionError as error:
        error.add_note(f"before: {before.tasks} tasks, {before.open_files} files; after: {seen[-1]}")
        raise
    assert here.wire.server().undelivered_errors == 0
    assert "Traceback" not in here.server.log
