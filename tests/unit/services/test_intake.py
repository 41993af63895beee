"""How requests get in: what is claimed for them, who is refused, and that nothing stays claimed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from scankv.model.errors import InvalidRequest, ServerBusy
from streaming_server.services.intake import MAX_MESSAGE_BYTES, WINDOW_BYTES, Intake
from tests.support.waiting import await_until

pytestmark = pytest.mark.asyncio


class Arrives:
    """A call whose message is there when the test says so."""

    def __init__(self, message: object = None) -> None:
        self.message = asyncio.get_running_loop().create_future()
        if message is not None:
            self.message.set_result(message)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        return await self.message


def intake(messages: int = 2, receive_seconds: float = 3600.0) -> Intake:
    return Intake(messages * MAX_MESSAGE_BYTES, receive_seconds)


def receive(intake: Intake, call: Arrives) -> asyncio.Task[tuple[bytes | None, int]]:
    return asyncio.ensure_future(intake.receive(call))  # type: ignore[arg-type]  # of a context, it is what is read


async def until_claimed(intake: Intake, size: int) -> None:
    async def is_claimed() -> bool:
        return intake.claimed_bytes == size

    await await_until(is_claimed, f"{size} bytes claimed")


async def test_small_messages_claim_nothing_and_large_ones_their_size() -> None:
    door = intake()
    assert await receive(door, Arrives(b"x" * WINDOW_BYTES)) == (b"x" * WINDOW_BYTES, 0)
    _, claimed = await receive(door, Arrives(b"x" * (WINDOW_BYTES + 1)))
    assert claimed == door.claimed_bytes == WINDOW_BYTES + 1
    door.release(claimed)
    assert door.claimed_bytes == 0


async def test_the_end_of_a_call_is_no_message() -> None:
    door = intake()
    end = grpc.aio.EOF  # type: ignore[attr-defined]  # not in its stub
    assert await receive(door, Arrives(end)) == (None, 0)


async def test_a_message_that_is_late_claims_that_of_the_largest_until_its_size_is_known() -> None:
    door, call = intake(), Arrives()
    late = receive(door, call)
    await until_claimed(door, MAX_MESSAGE_BYTES)
    call.message.set_result(b"x" * 100_000)
    assert (await late)[1] == door.claimed_bytes == 100_000


async def test_a_late_message_without_room_is_refused_and_small_ones_still_get_in() -> None:
    door = intake(messages=2)
    late = [receive(door, Arrives()) for _ in range(2)]
    await until_claimed(door, 2 * MAX_MESSAGE_BYTES)
    with pytest.raises(ServerBusy, match="of other requests in memory") as caught:
        await receive(door, Arrives())
    assert caught.value.retry_after
    assert door.refused == 1
    assert await receive(door, Arrives(b"small")) == (b"small", 0)
    with pytest.raises(ServerBusy):
        await receive(door, Arrives(b"x" * 100_000))
    for each in late:
        each.cancel()
    await asyncio.wait(late)
    assert door.claimed_bytes == 0


async def test_a_message_is_not_late_when_it_was_the_event_loop_that_stalled() -> None:
    door, call = intake(messages=0), Arrives()
    receiving = receive(door, call)
    await asyncio.sleep(0)
    stalled_until = time.monotonic() + 0.1
    while time.monotonic() < stalled_until:
        pass
    for _ in range(3):
        await asyncio.sleep(0)  # The timer is called here.
    call.message.set_result(b"small")
    assert await receiving == (b"small", 0)


async def test_uploads_that_never_end_take_no_turn_of_others() -> None:
    door = intake(messages=1)
    slow = [receive(door, Arrives()) for _ in range(50)]
    await asyncio.wait(slow, timeout=None, return_when=asyncio.FIRST_COMPLETED)
    assert await receive(door, Arrives(b"small")) == (b"small", 0)
    for each in slow:
        each.cancel()
    ended = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(each) for each in ended} <= {ServerBusy, asyncio.CancelledError}
    assert door.claimed_bytes == 0


async def test_a_message_that_does_not_arrive_in_time_is_refused() -> None:
    door = intake(receive_seconds=0.05)
    with pytest.raises(InvalidRequest, match=r"did not arrive within 0\.05 s"):
        await receive(door, Arrives())
    assert door.claimed_bytes == 0


async def test_a_client_that_goes_leaves_nothing_claimed() -> None:
    door = intake()
    tasks = [receive(door, Arrives()) for _ in range(6)]
    await until_claimed(door, 2 * MAX_MESSAGE_BYTES)
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    assert door.claimed_bytes == 0
    call = Arrives()
    call.message.set_exception(grpc.aio.UsageError("the call is over"))
    with pytest.raises(asyncio.CancelledError):
        await receive(door, call)
    assert door.claimed_bytes == 0
