"""A scan that is interrupted in any phase, live or pinned, continues, or its error says how to continue."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import grpc
import pytest

from aio_client import (
    DataLoss,
    DeadlineExceeded,
    ProtocolViolation,
    Resume,
    Scan,
    ScanCancelled,
    ScanInterrupted,
    ScanKvError,
    ScanSpec,
    ScanStalled,
    ScanStream,
    ScanTooLong,
    ServerDraining,
    SnapshotLost,
    TooManyScans,
    Unavailable,
    UsageError,
    connect,
)
from scankv.model.counts import counted
from tests.support.waiting import await_until
from tests.unit.client.messages import LOG_OFFSETS, SCHEMA
from tests.unit.client.misbehaving import serving
from tests.unit.client.resumable import CHUNKS, ROWS, Ends, GoesOn, SendsOnlyHeartbeats

pytestmark = pytest.mark.asyncio

CODE = grpc.StatusCode
LIVE = ScanSpec("game.scores")
LATEST = ScanSpec("game.scores", resume=Resume.LATEST)
PINNED = ScanSpec("game.scores", snapshot_id="pin")
PINNED_NEVER = ScanSpec("game.scores", snapshot_id="pin", resume=Resume.NEVER)
ALL_KEYS = list(range(ROWS))
# The messages after which a scan is interrupted: header, chunks, trailer.
AFTER_LAST_ROW = 1 + CHUNKS
FULL = Ends(0, CODE.RESOURCE_EXHAUSTED, "TOO_MANY_SCANS")

CUTS = [
    (CODE.UNAVAILABLE, None),
    (CODE.CANCELLED, None),
    (CODE.OK, None),
    (CODE.UNAVAILABLE, "SERVER_DRAINING"),
    (CODE.DEADLINE_EXCEEDED, "SCAN_STALLED"),
    (CODE.DEADLINE_EXCEEDED, "SCAN_TOO_LONG"),
]


async def drain(stream: ScanStream) -> list[int]:
    return [key async for rows in stream for key in rows["id"].to_pylist()]


async def keys_until(stream: ScanStream, error: type[ScanKvError]) -> tuple[list[int], ScanKvError]:
    """Returns the keys received before the error, and the error."""
    keys: list[int] = []

    async def read() -> None:
        async for rows in stream:
            keys.extend(rows["id"].to_pylist())

    with pytest.raises(error) as caught:
        await read()
    return keys, caught.value


@pytest.mark.parametrize(
    ("spec", "after"),
    # A live scan does not wait for an absent server.
    [(spec, after) for spec in (PINNED, LATEST) for after in range(AFTER_LAST_ROW + 2) if spec is PINNED or after],
    ids=str,
)
@pytest.mark.parametrize(("code", "reason"), CUTS)
@pytest.mark.represented_by(
    "StatusCode.UNAVAILABLE-None-ScanSpec(table='game.scores', snapshot_id='pin')-0",
    "StatusCode.OK-None-ScanSpec(table='game.scores', snapshot_id='pin')-0",
    "StatusCode.DEADLINE_EXCEEDED-SCAN_STALLED-ScanSpec(table='game.scores', snapshot_id='pin')-0",
    "StatusCode.DEADLINE_EXCEEDED-SCAN_TOO_LONG-ScanSpec(table='game.scores', resume=<Resume.LATEST: 'latest'>)-8",
)
async def test_a_cut_at_any_place_loses_and_doubles_nothing(
    after: int, code: grpc.StatusCode, reason: str | None, spec: ScanSpec
) -> None:
    async with serving(server := GoesOn(Ends(after, code, reason))) as url, connect(url) as client:
        stream = client.scan(spec).stream()
        assert await drain(stream) == ALL_KEYS
        # The trailer had arrived, so nothing is missing.
        assert len(server.requests) == (1 if after > AFTER_LAST_ROW else 2)
        statistics = stream.stats()
        assert (statistics.attempts, statistics.chunks) == (len(server.requests), CHUNKS)
        assert statistics.rows_scanned <= ROWS + 1
        assert len(stream.resumptions) == (1 <= after <= AFTER_LAST_ROW)


@pytest.mark.parametrize("spec", [PINNED, LATEST], ids=["pinned", "latest"])
async def test_a_cut_after_every_chunk_takes_one_attempt_each(spec: ScanSpec) -> None:
    async with serving(server := GoesOn(*[Ends(2)] * CHUNKS)) as url, connect(url) as client:
        stream = client.scan(spec).stream()
        assert await drain(stream) == ALL_KEYS
        assert [request.resume_token for request in server.requests] == [
            b"",
            *(b"after %d" % key for key in range(4, ROWS, 5)),
        ]
        assert stream.stats().rows_scanned == ROWS + 1


async def test_a_pinned_scan_says_where_it_went_on() -> None:
    async with serving(GoesOn(Ends(3), Ends(2))) as url, connect(url) as client:
        stream = client.scan(PINNED).stream()
        assert stream.consistency == "pinned"
        before = datetime.now(UTC)
        await drain(stream)
        first, second = stream.resumptions
        assert (first.rows, second.rows) == (10, 15)
        assert isinstance(first.cause, Unavailable)
        assert before <= first.resumed_at <= second.resumed_at <= datetime.now(UTC)
        assert first.from_log_offsets == first.to_log_offsets == LOG_OFFSETS == stream.log_offsets


async def test_a_live_scan_says_from_which_view_to_which() -> None:
    async with serving(GoesOn(Ends(3), Ends(2))) as url, connect(url) as client:
        async with client.scan(LATEST).stream() as stream:
            assert stream.log_offsets == {**LOG_OFFSETS, 0: 1}
            await drain(stream)
            assert [
                (resumption.rows, resumption.from_log_offsets[0], resumption.to_log_offsets[0])
                for resumption in stream.resumptions
            ] == [(10, 1, 2), (15, 2, 3)]
            assert stream.log_offsets == {**LOG_OFFSETS, 0: 3}
            assert stream.consistency == "table"


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (CODE.UNAVAILABLE, None, ScanInterrupted),
        (CODE.UNAVAILABLE, "SERVER_DRAINING", ServerDraining),
        (CODE.DEADLINE_EXCEEDED, "SCAN_STALLED", ScanStalled),
        (CODE.DEADLINE_EXCEEDED, "SCAN_TOO_LONG", ScanTooLong),
        (CODE.DEADLINE_EXCEEDED, None, DeadlineExceeded),
        (CODE.OK, None, ProtocolViolation),
    ],
)
@pytest.mark.parametrize("spec", [LIVE, PINNED_NEVER], ids=["live", "never"])
async def test_a_cut_where_nobody_asked_is_raised_with_the_token_of_what_was_returned(
    spec: ScanSpec, code: grpc.StatusCode, reason: str | None, error: type[ScanKvError]
) -> None:
    async with serving(server := GoesOn(Ends(3, code, reason))) as url, connect(url) as client:
        stream = client.scan(spec).stream()
        keys, raised = await keys_until(stream, error)
        assert type(raised) is error or error is ProtocolViolation
        assert keys == ALL_KEYS[:10]
        assert raised.resume_token == stream.resume_token == b"after 9"
        assert len(server.requests) == 1
        assert "after 9" not in str(raised)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (CODE.DATA_LOSS, "DATA_LOSS", DataLoss),
        (CODE.ABORTED, "SCAN_CANCELLED", ScanCancelled),
        (CODE.FAILED_PRECONDITION, "SNAPSHOT_LOST", SnapshotLost),
    ],
)
@pytest.mark.parametrize("attempt", [0, 1])
async def test_what_is_no_cut_ends_every_scan_with_its_token(
    code: grpc.StatusCode, reason: str, error: type[ScanKvError], attempt: int
) -> None:
    script = [Ends(2)] * attempt + [Ends(2, code, reason)]
    async with serving(server := GoesOn(*script)) as url, connect(url) as client:
        keys, raised = await keys_until(client.scan(PINNED).stream(), error)
        assert keys == ALL_KEYS[: 5 * (1 + attempt)]
        assert raised.resume_token == b"after %d" % keys[-1]
        assert len(server.requests) == 1 + attempt


async def test_a_token_goes_on_in_another_client() -> None:
    async with serving(server := GoesOn(Ends(3))) as url:
        async with connect(url) as client:
            _, error = await keys_until(client.scan(LIVE).stream(), ScanInterrupted)
        assert error.resume_token is not None
        async with connect(url) as client:
            stream = client.scan(LIVE).resume_from(error.resume_token).stream()
            assert stream.resume_token == b"after 9"
            assert await drain(stream) == ALL_KEYS[10:]
        (resumption,) = stream.resumptions
        assert (resumption.rows, resumption.cause) == (0, None)
        assert (resumption.from_log_offsets[0], resumption.to_log_offsets[0]) == (1, 2)
        assert server.requests[1].resume_token == b"after 9"


async def test_a_scan_from_a_token_waits_for_its_server_and_is_interrupted_as_any_other() -> None:
    async with serving(server := GoesOn(Ends(0), Ends(0), Ends(2))) as url, connect(url) as client:
        keys, error = await keys_until(client.scan(LIVE).resume_from(b"after 9").stream(), ScanInterrupted)
        assert keys == ALL_KEYS[10:15]
        assert error.resume_token == b"after 14"
        assert [request.resume_token for request in server.requests] == [b"after 9"] * 3


async def test_an_error_before_the_first_chunk_keeps_the_token_that_was_given() -> None:
    async with serving(GoesOn(Ends(0, CODE.DATA_LOSS, "DATA_LOSS"))) as url, connect(url) as client:
        _, error = await keys_until(client.scan(LIVE).resume_from(b"after 9").stream(), DataLoss)
        assert error.resume_token == b"after 9"


@pytest.mark.parametrize("token", [b"", b"after 4"], ids=["from the beginning", "from a token"])
@pytest.mark.parametrize("spec", [LIVE, LATEST, PINNED, PINNED_NEVER], ids=["live", "latest", "pinned", "never"])
async def test_a_limit_reached_at_a_cut_needs_no_further_call(spec: ScanSpec, token: bytes) -> None:
    first = 5 if token else 0
    async with serving(server := GoesOn(Ends(3))) as url, connect(url) as client:
        scan = client.scan(spec).limit(first + 10)
        stream = (scan.resume_from(token) if token else scan).stream()
        assert await drain(stream) == ALL_KEYS[first : first + 10]
        assert len(server.requests) == 1


async def test_a_limit_of_nothing_needs_no_trailer() -> None:
    async with serving(server := GoesOn(Ends(1))) as url, connect(url) as client:
        async with client.scan(PINNED).limit(0).stream() as stream:
            assert stream.schema == SCHEMA
            assert await drain(stream) == []
        assert len(server.requests) == 1


async def test_a_resumed_scan_keeps_the_limit_of_the_whole() -> None:
    async with serving(server := GoesOn(Ends(2))) as url, connect(url) as client:
        assert await drain(client.scan(PINNED).limit(10).stream()) == ALL_KEYS[:10]
        assert [request.limit for request in server.requests] == [10, 10]


@pytest.mark.breadth
@pytest.mark.parametrize("spec", [LIVE, PINNED, PINNED_NEVER], ids=["live", "pinned", "never"])
async def test_a_full_server_is_asked_until_it_admits(spec: ScanSpec) -> None:
    async with serving(server := GoesOn(FULL, FULL, FULL)) as url, connect(url) as client:
        stream = client.scan(spec).stream()
        assert await drain(stream) == ALL_KEYS
        assert stream.stats().attempts == len(server.requests) == 4
        assert stream.resumptions == ()


async def test_a_server_that_stays_full_is_an_error_after_the_operation_timeout() -> None:
    async with serving(server := GoesOn(*[FULL] * 1000)) as url, connect(url, operation_timeout=1) as client:
        # The timeout may end in the middle of an attempt, whether or not the server received it.
        with pytest.raises((TooManyScans, DeadlineExceeded)) as caught:
            await client.scan(LIVE).to_arrow()
        assert (asked := len(server.requests)) > 1
        assert caught.value.__notes__[0] in [
            f"{counted(attempts, 'attempt')} before this one failed as well:" for attempts in (asked - 1, asked)
        ]


async def test_a_live_scan_fails_at_once_where_nobody_listens(unused_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_port}") as client:
        started = time.monotonic()
        for spec in (LIVE, LATEST):
            with pytest.raises(Unavailable):
                await client.scan(spec).to_arrow()
        assert time.monotonic() - started < client.config.operation_timeout / 2


async def test_a_pinned_scan_waits_for_its_server(unused_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_port}") as client:
        reader = asyncio.create_task(client.scan(PINNED).to_arrow())
        await asyncio.wait({reader}, timeout=0.1)
        async with serving(GoesOn(), port=unused_port):
            assert (await reader).num_rows == ROWS


async def test_a_header_alone_is_no_progress() -> None:
    async with serving(server := GoesOn(*[Ends(1)] * 100)) as url, connect(url, operation_timeout=1) as client:
        # The time may run out in the middle of an attempt, too.
        with pytest.raises((Unavailable, DeadlineExceeded)) as caught:
            await client.scan(PINNED).to_arrow()
        assert 1 < len(server.requests) < 100
        assert caught.value.resume_token is None
        assert caught.value.__notes__


@pytest.mark.breadth
async def test_a_chunk_renews_the_time_for_all_attempts() -> None:
    # Four waits of 0.6 s exceed the timeout, but each single wait does not.
    slow = Ends(2, CODE.UNAVAILABLE, "SERVER_DRAINING", retry_after=0.6)
    async with serving(GoesOn(*[slow] * 4)) as url, connect(url, operation_timeout=2) as client:
        started = time.monotonic()
        assert await drain(client.scan(PINNED).stream()) == ALL_KEYS
        assert time.monotonic() - started > 2.4


@pytest.mark.breadth
async def test_a_stall_is_a_cut() -> None:
    async with serving(server := GoesOn(Ends(3, stalls=True))) as url, connect(url, next_chunk_timeout=1) as client:
        stream = client.scan(PINNED).stream()
        assert await drain(stream) == ALL_KEYS
        assert isinstance(stream.resumptions[0].cause, DeadlineExceeded)
        # The end of the first scan arrives over its own connection.
        await _ended(server, len(server.requests))


@pytest.mark.breadth
async def test_heartbeats_keep_a_scan_alive_and_move_its_token() -> None:
    timeouts = {"operation_timeout": 1.5, "next_chunk_timeout": 1.5}
    async with serving(SendsOnlyHeartbeats(20)) as url, connect(url, **timeouts) as client:  # type: ignore[arg-type]
        async with client.scan(LIVE).stream() as stream:
            assert stream.resume_token is None
            assert await drain(stream) == []
            assert stream.resume_token == b"heartbeat 20"


async def test_dropping_a_resumed_stream_ends_the_call_at_once(no_cycles: None) -> None:
    async with serving(server := GoesOn(FULL, Ends(2), Ends(2, stalls=True))) as url, connect(url) as client:
        stream = client.scan(PINNED).stream()
        await anext(stream)
        await anext(stream)
        assert len(stream.resumptions) == 1
        assert server.ended == 2
        del stream
        await _ended(server, 3)


async def test_a_cancelled_read_keeps_the_token() -> None:
    async with serving(server := GoesOn(Ends(3, stalls=True))) as url, connect(url) as client:
        stream = client.scan(PINNED).stream()
        assert [await anext(stream), await anext(stream)]
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.1)
            assert stream.resume_token == b"after 9"
        assert len(server.requests) == 1
        await stream.aclose()
        await _ended(server, 1)


# The server asks for a long pause, so the reader is certainly waiting for its next attempt.
LATER = Ends(0, CODE.RESOURCE_EXHAUSTED, "TOO_MANY_SCANS", retry_after=30)


async def _pausing(server: GoesOn, scan: Scan) -> tuple[ScanStream, asyncio.Task[list[int]]]:
    """Returns a stream whose reader waits to make another attempt."""
    stream = scan.stream()
    reader = asyncio.create_task(drain(stream))
    await server.called.wait()

    async def pausing() -> bool:
        return stream._pausing is not None

    await await_until(pausing, "waiting to try again")
    return stream, reader


async def test_closing_a_stream_ends_its_pause() -> None:
    async with serving(server := GoesOn(LATER)) as url, connect(url) as client:
        stream, reader = await _pausing(server, client.scan(LIVE))
        await stream.aclose()
        with pytest.raises(UsageError, match="closed while it was being read"):
            await asyncio.wait_for(reader, 30)
        assert len(server.requests) == 1


async def test_closing_the_client_ends_a_pause() -> None:
    async with serving(server := GoesOn(LATER)) as url, connect(url) as client:
        _, reader = await _pausing(server, client.scan(LIVE))
        await client.aclose()
        with pytest.raises(UsageError, match=f"the client of {url} was closed"):
            await asyncio.wait_for(reader, 30)


async def test_cancelling_the_reader_ends_a_pause() -> None:
    async with serving(server := GoesOn(LATER)) as url, connect(url) as client:
        stream, reader = await _pausing(server, client.scan(LIVE))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await stream.aclose()
        assert len(server.requests) == 1


async def test_entering_a_stream_rides_through_as_reading_does() -> None:
    async with serving(server := GoesOn(FULL, Ends(0), Ends(1))) as url, connect(url) as client:
        async with client.scan(PINNED).stream() as stream:
            assert stream.stats().attempts == 3
            assert await drain(stream) == ALL_KEYS
        assert len(server.requests) == 4


async def _ended(server: GoesOn, calls: int) -> None:
    async def ended() -> bool:
        return server.ended == calls

    await await_until(ended, f"the end of {calls} calls")
