"""A running scan: how it ends, how it fails, and that it leaves nothing at the server."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import grpc
import pyarrow as pa
import pytest

from aio_client import (
    DataLoss,
    DeadlineExceeded,
    InternalError,
    ProtocolViolation,
    RequestTooLarge,
    Scan,
    ScanInterrupted,
    ScanKvError,
    ScanSpec,
    ServerDraining,
    TooManyScans,
    Unavailable,
    UsageError,
    connect,
)
from aio_client._transport.retry import with_retries
from tests.support.streams import read_all
from tests.unit.client.messages import LOG_OFFSETS, SCHEMA, batch
from tests.unit.client.misbehaving import (
    EndsWith,
    KeepsItsContract,
    NeverEnds,
    SendsNothing,
    SendsNoTrailer,
    SendsUnreadableMessages,
    SendsWrongChecksum,
    StallsAfterFirstChunk,
    StallsAfterHeader,
    StallsAfterTrailer,
    StallsBeforeHeader,
    serving,
)

pytestmark = pytest.mark.asyncio

SPEC = ScanSpec("game.scores")
SOON = 30.0
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def read(scan: Scan) -> list[pa.RecordBatch]:
    return [rows async for rows in scan.stream()]


async def test_a_whole_scan_comes_in_order() -> None:
    async with serving(KeepsItsContract()) as url, connect(url) as client:
        async with client.scan(SPEC).stream() as stream:
            assert stream.schema == SCHEMA
            assert stream.log_offsets == LOG_OFFSETS
            assert stream.scan_id == "scan-1"
            assert stream.incarnation == "server-1"
            assert stream.consistency == "table"
            assert (stream.resume_token, stream.resumptions) == (None, ())
            batches = [rows async for rows in stream]
        assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([batch(0, 15)]))


async def test_statistics_grow_and_then_stay() -> None:
    async with serving(KeepsItsContract()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        assert (stream.stats().attempts, stream.stats().elapsed) == (0, 0.0)
        await anext(stream)
        first = stream.stats()
        assert (first.rows_scanned, first.rows_returned, first.chunks, first.attempts) == (5, 5, 1, 1)
        assert first.elapsed > 0
        assert [rows.num_rows async for rows in stream] == [5, 5]
        last = stream.stats()
        assert (last.rows_scanned, last.rows_returned, last.chunks, last.attempts) == (16, 15, 3, 1)
        assert last.bytes_returned > first.bytes_returned
        assert stream.stats() == last


async def test_the_end_is_the_end_however_often_it_is_read() -> None:
    async with serving(KeepsItsContract()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        assert len([rows async for rows in stream]) == 3
        assert [rows async for rows in stream] == []
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("what", ["schema", "log_offsets", "scan_id", "incarnation"])
async def test_what_the_header_says_is_refused_before_the_start(what: str) -> None:
    async with serving(KeepsItsContract()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        with pytest.raises(UsageError, match=f"{what} is known once the scan has started: enter `async with"):
            getattr(stream, what)
        await anext(stream)
        assert getattr(stream, what)


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        (SendsNoTrailer, ProtocolViolation, "none after 15 rows in 3 chunks"),
        (SendsWrongChecksum, ProtocolViolation, "CRC32C"),
        (SendsNothing, ProtocolViolation, "none after 0 rows"),
        (SendsUnreadableMessages, ProtocolViolation, "cannot be read"),
        (lambda: EndsWith(UNAVAILABLE), Unavailable, "no ScanKV server answers at 127.0.0.1"),
        (lambda: EndsWith(UNAVAILABLE, after=2), ScanInterrupted, "broke off after 5 rows, before its end"),
        (lambda: EndsWith(grpc.StatusCode.CANCELLED, after=1), ScanInterrupted, "broke off after 0 rows"),
        (
            lambda: EndsWith(grpc.StatusCode.INTERNAL, after=4),
            ScanInterrupted,
            r"continue .* scan\.resume_from\(error\.resume_token\)",
        ),
        (lambda: EndsWith(grpc.StatusCode.UNKNOWN, after=2), InternalError, "what the server says"),
        (lambda: EndsWith(grpc.StatusCode.RESOURCE_EXHAUSTED, after=2), RequestTooLarge, "over its limit"),
        (lambda: EndsWith(grpc.StatusCode.UNIMPLEMENTED), ProtocolViolation, "a ScanKV server of this version"),
        (lambda: EndsWith(grpc.StatusCode.DATA_LOSS, after=3, reason="DATA_LOSS"), DataLoss, "what the server says"),
        (lambda: EndsWith(UNAVAILABLE, after=2, reason="SERVER_DRAINING"), ServerDraining, "what the server says"),
    ],
)
async def test_a_broken_scan_is_an_error_that_stays(
    server: type[KeepsItsContract], error: type[ScanKvError], message: str
) -> None:
    # A scan that is dropped before it has begun is retried, so it fails with the operation timeout.
    async with serving(server()) as url, connect(url, operation_timeout=0.5) as client:
        stream = client.scan(SPEC).stream()
        with pytest.raises(error, match=message) as first:
            async for _ in stream:
                pass
        with pytest.raises(error) as second:
            await anext(stream)
        assert second.value is first.value
        with pytest.raises(error):
            await client.scan(SPEC).to_arrow()


async def test_an_interrupted_scan_says_where_and_how_far_it_came() -> None:
    async with serving(EndsWith(UNAVAILABLE, after=3)) as url, connect(url) as client:
        with pytest.raises(ScanInterrupted) as caught:
            await read(client.scan(SPEC))
        assert caught.value.details == {"table": "game.scores", "rows": "10", "address": url}
        assert isinstance(caught.value.__cause__, Unavailable)


async def test_a_typed_error_keeps_its_details_and_its_time() -> None:
    refusal = EndsWith(grpc.StatusCode.RESOURCE_EXHAUSTED, reason="TOO_MANY_SCANS", retry_after=1.5)
    async with serving(refusal) as url, connect(url, operation_timeout=1.0) as client:
        with pytest.raises(TooManyScans) as caught:
            await read(client.scan(SPEC))
        assert caught.value.retry_after == 1.5
        assert caught.value.details == {"table": "game.scores"}


async def test_a_stall_before_the_header_ends_with_the_attempt_timeout() -> None:
    async with serving(server := StallsBeforeHeader()) as url, connect(url, attempt_timeout=1) as client:
        with pytest.raises(DeadlineExceeded, match=rf"{url} sent nothing for (1|0\.\d+) s") as caught:
            await read(client.scan(SPEC))
        assert caught.value.details["address"] == url
        await asyncio.wait_for(server.ended.wait(), SOON)


@pytest.mark.parametrize("timeout", ["operation_timeout", "next_chunk_timeout"])
@pytest.mark.parametrize(("server", "token"), [(StallsAfterHeader, None), (StallsAfterFirstChunk, b"after 4")])
@pytest.mark.breadth
async def test_a_stall_in_the_middle_ends_with_the_shorter_timeout(
    server: type[KeepsItsContract], token: bytes | None, timeout: str
) -> None:
    timeouts: dict[str, Any] = {timeout: 1}
    async with serving(stalling := server()) as url, connect(url, **timeouts) as client:
        with pytest.raises(DeadlineExceeded, match=r"sent nothing for (1|0\.\d+) s") as caught:
            await read(client.scan(SPEC))
        assert caught.value.resume_token == token
        await asyncio.wait_for(stalling.ended.wait(), SOON)


@pytest.mark.breadth
async def test_a_stall_after_the_trailer_is_a_good_end() -> None:
    async with serving(server := StallsAfterTrailer()) as url, connect(url, next_chunk_timeout=1) as client:
        assert (await client.scan(SPEC).to_arrow()).num_rows == 15
        await asyncio.wait_for(server.ended.wait(), SOON)


async def test_the_time_that_the_reader_takes_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, passed = time.monotonic, 0.0

    def monotonic() -> float:
        return real() + passed

    # The deadlines of operations and messages, and the timers of the event loop.
    monkeypatch.setattr("aio_client._scan.stream.with_retries", partial(with_retries, clock=monotonic))
    monkeypatch.setattr(time, "monotonic", monotonic)
    async with serving(KeepsItsContract()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        rows = (await anext(stream)).num_rows
        passed = 2 * max(client.config.operation_timeout, client.config.next_chunk_timeout)
        rows += sum([each.num_rows async for each in stream])
        assert rows == 15


async def test_a_break_ends_the_call_at_once(no_cycles: None) -> None:
    async with serving(server := NeverEnds()) as url, connect(url) as client:
        async for _ in client.scan(SPEC).stream():
            break
        await asyncio.wait_for(server.ended.wait(), SOON)


@pytest.mark.parametrize("server", [StallsAfterFirstChunk, NeverEnds])
async def test_dropping_the_stream_ends_the_call_at_once(no_cycles: None, server: type[KeepsItsContract]) -> None:
    async with serving(running := server()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        await anext(stream)
        del stream
        await asyncio.wait_for(running.ended.wait(), SOON)


async def test_dropping_the_stream_in_another_thread_ends_the_call_at_once(no_cycles: None) -> None:
    async with serving(server := NeverEnds()) as url, connect(url) as client:
        streams = [client.scan(SPEC).stream()]
        await anext(streams[0])
        thread = threading.Thread(target=streams.clear)
        thread.start()
        thread.join()
        await asyncio.wait_for(server.ended.wait(), SOON)


async def test_an_exception_in_the_loop_ends_the_call(no_cycles: None) -> None:
    async with serving(server := NeverEnds()) as url, connect(url) as client:

        async def fail() -> None:
            async for _ in client.scan(SPEC).stream():
                raise LookupError

        with pytest.raises(LookupError):
            await fail()
        await asyncio.wait_for(server.ended.wait(), SOON)


@pytest.mark.parametrize("server", [StallsAfterHeader, StallsAfterFirstChunk, StallsAfterTrailer, NeverEnds])
async def test_leaving_async_with_ends_the_call(server: type[KeepsItsContract]) -> None:
    async with serving(running := server()) as url, connect(url) as client:
        async with client.scan(SPEC).stream() as stream:
            pass
        await asyncio.wait_for(running.ended.wait(), SOON)
        with pytest.raises(UsageError, match="closed before its end"):
            await anext(stream)


@pytest.mark.parametrize(
    "server", [StallsBeforeHeader, StallsAfterHeader, StallsAfterFirstChunk, StallsAfterTrailer, NeverEnds]
)
async def test_cancelling_a_task_that_reads_ends_the_call_although_the_task_is_kept(
    server: type[KeepsItsContract], no_cycles: None
) -> None:
    async with serving(running := server()) as url, connect(url) as client:

        async def read_on() -> None:
            async for _ in client.scan(SPEC).stream():
                pass

        reader = asyncio.create_task(read_on())
        await running.begun.wait()
        await asyncio.wait({reader}, timeout=0.1)
        reader.cancel()
        await asyncio.wait({reader})
        assert reader.cancelled()
        await asyncio.wait_for(running.ended.wait(), SOON)


@pytest.mark.parametrize("server", [StallsBeforeHeader, StallsAfterHeader, StallsAfterFirstChunk, StallsAfterTrailer])
async def test_closing_while_another_task_reads_ends_both(server: type[KeepsItsContract]) -> None:
    async with serving(running := server()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        reader = asyncio.create_task(read_all(stream))
        await running.begun.wait()
        await asyncio.wait({reader}, timeout=0.1)
        await stream.aclose()
        with pytest.raises(UsageError, match="closed while it was being read"):
            await reader
        await asyncio.wait_for(running.ended.wait(), SOON)


@pytest.mark.parametrize("server", [StallsBeforeHeader, StallsAfterFirstChunk])
async def test_closing_the_client_ends_its_scans(server: type[KeepsItsContract]) -> None:
    async with serving(running := server()) as url, connect(url) as client:
        reader = asyncio.create_task(read_all(client.scan(SPEC).stream()))
        await running.begun.wait()
        await asyncio.wait({reader}, timeout=0.1)
        await client.aclose()
        with pytest.raises(UsageError, match="closed while it was being read"):
            await reader
        await asyncio.wait_for(running.ended.wait(), SOON)
        with pytest.raises(UsageError, match=f"the client of {url} is closed"):
            await read(client.scan(SPEC))


async def test_a_server_that_stops_interrupts_the_scan() -> None:
    async with serving(server := StallsAfterFirstChunk()) as url:
        client = await connect(url)
        stream = client.scan(SPEC).stream()
        assert (await anext(stream)).num_rows == 5
    with pytest.raises(ScanInterrupted, match="broke off after 5 rows"):
        await anext(stream)
    with pytest.raises(Unavailable, match=f"no ScanKV server answers at {url}"):
        await read(client.scan(SPEC))
    assert server.ended.is_set()
    await client.aclose()


async def test_two_tasks_cannot_read_one_stream() -> None:
    async with serving(StallsAfterFirstChunk()) as url, connect(url) as client:
        stream = client.scan(SPEC).stream()
        await anext(stream)
        reader = asyncio.create_task(read_all(stream))
        await asyncio.wait({reader}, timeout=0.05)
        with pytest.raises(UsageError, match="being read by another task"):
            await anext(stream)
        assert not reader.done()
        await stream.aclose()
        with pytest.raises(UsageError):
            await reader


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("read_ahead_bytes", "read_ahead_chunks", "chunk_bytes", "window"),
    [(64 << 10, 2, None, 64 << 10), (1 << 20, 2, None, 1 << 20), (2 << 20, 2, 64 << 10, 128 << 10)],
)
async def test_a_reader_that_stops_stops_the_server_within_the_window(
    read_ahead_bytes: int, read_ahead_chunks: int, chunk_bytes: int | None, window: int
) -> None:
    async with (
        serving(server := NeverEnds()) as url,
        connect(url, read_ahead_bytes=read_ahead_bytes, read_ahead_chunks=read_ahead_chunks) as client,
    ):
        stream = client.scan(SPEC).with_chunk(bytes=chunk_bytes).stream()
        for _ in range(100):
            await anext(stream)
        await asyncio.wait_for(server.stalled.wait(), 30)
        ahead = server.sent - 1 - 100
        # The window, what gRPC adds to it as messages are taken (half of it was seen), what the sender's transport
        # buffers, and the message that is stuck in between. Left to itself, gRPC makes tens of MiB of it.
        assert ahead * len(server.chunk.record_batch) < 2 * window + (512 << 10)


async def test_a_scan_can_be_started_many_times_at_once() -> None:
    async with serving(KeepsItsContract()) as url, connect(url) as client:
        scan = client.scan(SPEC)
        results = await asyncio.gather(*(scan.to_arrow() for _ in range(20)))
        assert {table.num_rows for table in results} == {15}
