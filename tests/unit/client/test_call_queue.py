"""The limit on a client's calls in flight, the order of waiting calls, and calls that were dropped on the way."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from aio_client import DeadlineExceeded, ScanSpec, Unavailable, UsageError, connect
from aio_client._transport.call_queue import LONG_CALLS, SHORT_CALLS, STREAMS_PER_CONNECTION, CallQueue
from scankv.model.limits import MIN_CALLS_PER_CONNECTION
from tests.support.waiting import await_until
from tests.unit.client.misbehaving import AnswersTogether, NeverEnds, ShedsTables, serving

CODE = grpc.StatusCode
LATER = 3600.0


def test_what_a_client_puts_on_a_connection_is_what_every_server_takes() -> None:
    assert SHORT_CALLS + LONG_CALLS + STREAMS_PER_CONNECTION <= MIN_CALLS_PER_CONNECTION


@pytest.mark.asyncio
async def test_turns_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    queue, turns = CallQueue(1), list[int]()

    async def call(number: int) -> None:
        await queue.enter(time.monotonic() + LATER)
        turns.append(number)
        await asyncio.sleep(0)
        queue.leave()

    await asyncio.gather(*(call(number) for number in range(20)))
    assert turns == list(range(20))


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    queue = CallQueue(1)
    await queue.enter(time.monotonic() + LATER)
    waiting = [asyncio.create_task(queue.enter(time.monotonic() + LATER)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    queue.leave()
    waiting[1].cancel()  # The call may already have its turn.
    await asyncio.wait(waiting[:2])
    if not waiting[1].cancelled():
        queue.leave()
    await asyncio.wait_for(waiting[2], LATER)


@pytest.mark.asyncio
async def test_a_call_that_gets_no_turn_in_time_says_that_it_was_not_sent() -> None:
    queue = CallQueue(1)
    await queue.enter(time.monotonic() + LATER)
    with pytest.raises(DeadlineExceeded, match=r"the call was not sent: it waited .* while 1 calls"):
        await queue.enter(time.monotonic() + 0.05)
    queue.leave()
    await queue.enter(time.monotonic() + 0.05)


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_no_more_calls_are_in_flight_than_the_bound_and_all_are_answered() -> None:
    server = AnswersTogether(SHORT_CALLS)
    async with serving(server) as url, connect(url) as client:
        await asyncio.gather(*(client.tables() for _ in range(3 * SHORT_CALLS)))
    assert server.most == SHORT_CALLS


@pytest.mark.asyncio
async def test_waiting_for_a_turn_is_no_part_of_the_attempt() -> None:
    server = AnswersTogether(10 * SHORT_CALLS)
    async with serving(server) as url, connect(url, attempt_timeout=2.0) as client:
        first = [asyncio.create_task(client.tables()) for _ in range(SHORT_CALLS)]
        await await_until(server.is_full, "all turns taken")
        late = asyncio.create_task(client.tables())
        # The calls in flight end with their attempt timeout. The call that waited still has its full attempt timeout.
        assert {type(each) for each in await asyncio.gather(*first, return_exceptions=True)} == {DeadlineExceeded}
        server.release.set()
        assert await late == []


@pytest.mark.asyncio
async def test_a_client_that_is_closed_ends_the_calls_that_wait() -> None:
    server = AnswersTogether(10 * SHORT_CALLS)
    async with serving(server) as url:
        async with connect(url) as client:
            calls = [asyncio.create_task(client.tables()) for _ in range(2 * SHORT_CALLS)]
            await await_until(server.is_full, "all turns taken")
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in ended} == {UsageError}
        server.release.set()


@pytest.mark.parametrize("code", [CODE.CANCELLED, CODE.UNAVAILABLE, CODE.INTERNAL])
@pytest.mark.asyncio
async def test_a_read_that_is_dropped_on_the_way_is_made_again(code: grpc.StatusCode) -> None:
    server = ShedsTables(code, sheds=2)
    async with serving(server) as url, connect(url) as client:
        assert await client.tables() == []
    assert server.calls == 3


@pytest.mark.parametrize("code", [CODE.CANCELLED, CODE.UNAVAILABLE])
@pytest.mark.asyncio
async def test_a_call_that_must_not_be_carried_out_twice_is_not_made_again(code: grpc.StatusCode) -> None:
    server = ShedsTables(code, sheds=1)
    async with serving(server) as url, connect(url) as client:
        with pytest.raises(Unavailable) as caught:
            await client.drop_table("game.scores")
        assert caught.value.shed
    assert server.calls == 1


@pytest.mark.asyncio
async def test_calls_that_are_dropped_until_the_end_fail_with_the_operation() -> None:
    server = ShedsTables(CODE.CANCELLED, sheds=1000)
    async with serving(server) as url, connect(url, operation_timeout=0.5) as client:
        with pytest.raises(Unavailable, match="dropped") as caught:
            await client.tables()
        assert "before this one failed as well" in caught.value.__notes__[0]


@pytest.mark.asyncio
async def test_a_server_that_cannot_be_reached_sheds_nothing(unused_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_port}") as client:
        with pytest.raises(Unavailable) as caught:
            await client.tables()
        assert not caught.value.shed


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_streams_that_never_end_leave_room_for_calls_and_for_further_streams() -> None:
    scans = NeverEnds()
    many = STREAMS_PER_CONNECTION + 20
    # So many streams may take a busy machine longer to open than a client waits for one.
    async with serving(scans, AnswersTogether(1)) as url, connect(url, attempt_timeout=60) as client:
        spec = ScanSpec("game.scores")
        streams = [client.scan(spec).stream() for _ in range(many)]
        await asyncio.gather(*(stream.__anext__() for stream in streams))
        assert await client.tables() == []
        transport = client._transport
        assert [each.streams for each in transport._connections[transport._window]] == [STREAMS_PER_CONNECTION, 20]
        await asyncio.gather(*(stream.aclose() for stream in streams))

        async def no_streams() -> bool:
            return not any(each.streams for each in transport._connections[transport._window])

        await await_until(no_streams, "all streams over")
        async with client.scan(spec).stream():
            assert len(transport._connections[transport._window]) == 1
