"""How requests get in: what is claimed for them, who is refused, and that nothing stays claimed."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from scankv.model.errors import InvalidRequest, RequestTooLarge, ServerBusy
from streaming_server.access.callers import ANYBODY
from streaming_server.services.arrivals import Arrivals
from streaming_server.services.claims import NO_CLAIM, Claims, MemoryClaim, Sender
from streaming_server.services.connection_watch import ConnectionWatch
from streaming_server.services.guarded_method import _ArrivedCall, _sender
from streaming_server.services.intake import MAX_MESSAGE_BYTES, WINDOW_BYTES, Intake, OpenIntake, announced_bytes
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio


NOBODY = Sender()


class Arrives:
    """A call whose message is there when the test says so."""

    def __init__(self, message: object = None, peer: str = "ipv4:127.0.0.1:1") -> None:
        self.message = asyncio.get_running_loop().create_future()
        self._peer = peer
        if message is not None:
            self.message.set_result(message)

    def peer(self) -> str:
        return self._peer

    async def read(self) -> Any:
        return await self.message


def intake(messages: int = 2, receive_seconds: float = 3600.0) -> Intake:
    return Intake(messages * MAX_MESSAGE_BYTES, receive_seconds)


def receive(
    intake: Intake, call: Arrives, announced: int | None = None, sender: Sender = NOBODY
) -> asyncio.Task[tuple[bytes | None, MemoryClaim]]:
    return asyncio.ensure_future(intake.receive(call, sender, announced))  # type: ignore[arg-type]  # of a context, it is what is read


async def until_claimed(intake: Intake, size: int) -> None:
    async def is_claimed() -> bool:
        return intake.claimed_bytes == size

    await await_until(is_claimed, f"{size} bytes claimed")


async def test_small_messages_claim_nothing_and_large_ones_their_size() -> None:
    door = intake()
    assert await receive(door, Arrives(b"x" * WINDOW_BYTES)) == (b"x" * WINDOW_BYTES, NO_CLAIM)
    _, claimed = await receive(door, Arrives(b"x" * (WINDOW_BYTES + 1)))
    assert claimed.size == door.claimed_bytes == WINDOW_BYTES + 1
    door.release(claimed)
    assert door.claimed_bytes == 0


async def test_the_end_of_a_call_is_no_message() -> None:
    door = intake()
    end = grpc.aio.EOF  # type: ignore[attr-defined]  # not in its stub
    assert await receive(door, Arrives(end)) == (None, NO_CLAIM)


async def test_a_message_that_is_late_claims_that_of_the_largest_until_its_size_is_known() -> None:
    door, call = intake(), Arrives()
    late = receive(door, call)
    await until_claimed(door, MAX_MESSAGE_BYTES)
    call.message.set_result(b"x" * 100_000)
    assert (await late)[1].size == door.claimed_bytes == 100_000


async def test_a_late_message_without_room_is_refused_and_small_ones_still_get_in() -> None:
    door = intake(messages=2)
    late = [receive(door, Arrives()) for _ in range(2)]
    await until_claimed(door, 2 * MAX_MESSAGE_BYTES)
    with pytest.raises(ServerBusy, match="of other requests in memory") as caught:
        await receive(door, Arrives())
    assert caught.value.retry_after
    assert door.refused == 1
    assert await receive(door, Arrives(b"small")) == (b"small", NO_CLAIM)
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
    assert await receiving == (b"small", NO_CLAIM)


async def test_uploads_that_never_end_take_no_turn_of_others() -> None:
    door = intake(messages=1)
    slow = [receive(door, Arrives()) for _ in range(50)]
    await asyncio.wait(slow, timeout=None, return_when=asyncio.FIRST_COMPLETED)
    assert await receive(door, Arrives(b"small")) == (b"small", NO_CLAIM)
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


async def test_an_announced_message_claims_its_size_before_it_is_received() -> None:
    door, call = intake(messages=1), Arrives()
    receiving = receive(door, call, announced=600_000)
    await until_claimed(door, 600_000)
    call.message.set_result(b"x" * 500_000)
    _, claimed = await receiving
    assert claimed.size == door.claimed_bytes == 500_000
    with pytest.raises(ServerBusy):
        await receive(door, Arrives(), announced=MAX_MESSAGE_BYTES)


async def test_a_message_that_is_larger_than_announced_is_refused() -> None:
    door = intake()
    for announced in (0, 99_999):
        with pytest.raises(
            InvalidRequest, match=rf"100,000 bytes; its call has announced {announced:,} in scankv-mess"
        ):
            await receive(door, Arrives(b"x" * 100_000), announced=announced)
    with pytest.raises(RequestTooLarge, match="the limit of this call is"):
        await receive(door, Arrives(), announced=MAX_MESSAGE_BYTES + 1)
    assert door.claimed_bytes == 0


async def test_an_announced_message_that_does_not_arrive_in_time_is_refused() -> None:
    door = intake(receive_seconds=0.05)
    with pytest.raises(InvalidRequest, match="did not arrive within"):
        await receive(door, Arrives(), announced=600_000)
    assert door.claimed_bytes == 0


async def test_one_connection_claims_half_and_one_principal_three_quarters() -> None:
    door, size = intake(messages=8), MAX_MESSAGE_BYTES
    arriving = [receive(door, Arrives(), size, Sender(f"c{n // 4}", "etl")) for n in range(4)]
    await until_claimed(door, 4 * size)
    with pytest.raises(ServerBusy, match="this connection has"):
        await receive(door, Arrives(), size, Sender("c0", "other"))
    arriving += [receive(door, Arrives(), size, Sender("c1", "etl")) for _ in range(2)]
    await until_claimed(door, 6 * size)
    with pytest.raises(ServerBusy, match="etl has"):
        await receive(door, Arrives(), size, Sender("c2", "etl"))
    arriving.append(receive(door, Arrives(), size, Sender("c2", "other")))
    await until_claimed(door, 7 * size)
    for each in arriving:
        each.cancel()
    await asyncio.wait(arriving)
    assert door.claimed_bytes == 0


async def test_messages_announced_as_small_that_are_late_wait_in_few_slots_and_then_claim_the_largest() -> None:
    door = intake(messages=8)
    arriving = [Arrives() for _ in range(5)]
    late = [receive(door, each, WINDOW_BYTES, Sender(f"c{n}")) for n, each in enumerate(arriving)]
    await until_claimed(door, 4 * WINDOW_BYTES + MAX_MESSAGE_BYTES)
    arriving[0].message.set_result(b"slow")
    assert await late[0] == (b"slow", NO_CLAIM)
    await until_claimed(door, 4 * MAX_MESSAGE_BYTES)
    for each in late:
        each.cancel()
    await asyncio.wait(late)
    assert (door.claimed_bytes, door._slow_calls) == (0, 0)


@pytest.mark.parametrize("announced", [WINDOW_BYTES, 100_000])
async def test_a_message_claims_the_largest_once_its_connection_has_received_more_than_its_messages_may_have(
    announced: int,
) -> None:
    received = 1_000_000_000  # before
    door = Intake(8 * MAX_MESSAGE_BYTES, 3600.0, received_bytes=lambda _: received)
    connection = Sender("c0", "etl")
    late = [receive(door, Arrives(), announced, connection)]
    await until_claimed(door, announced)
    honest = Arrives()
    late.append(receive(door, honest, 20_000_000, connection))
    await until_claimed(door, announced + 20_000_000)
    received += 22_000_000
    honest.message.set_result(b"x" * 20_000_000)
    door.release((await late.pop())[1])
    # What has arrived counts no more for those that are to come.
    late.append(receive(door, Arrives(), 20_000_000, connection))
    await until_claimed(door, announced + 20_000_000)
    received += 60_000_000
    await until_claimed(door, 2 * MAX_MESSAGE_BYTES)
    for each in late:
        each.cancel()
    await asyncio.wait(late)
    assert (door.claimed_bytes, door._arrivals._connections) == (0, {})


async def test_what_a_connection_has_received_of_given_up_messages_does_not_count_for_later_ones() -> None:
    received: int | None = None
    arrivals = Arrivals(lambda _: received)
    given_up = arrivals.begin("c0", 20_000_000)
    received = 15_000_000  # Of a connection that is not known yet, all counts.
    assert not given_up.is_exceeded
    given_up.end(0)
    later = arrivals.begin("c0", 100_000)
    received += 1_000_000
    assert not later.is_exceeded
    received += 2_000_000
    assert later.is_exceeded
    later.expect(MAX_MESSAGE_BYTES)
    assert not later.is_exceeded
    of_server = arrivals.begin("", 100_000)
    assert not of_server.is_exceeded


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ConnectionWatch, Callable[[int], None], socket.socket, str]]:
    """Yields a running watch, what sends bytes on a connection that it watches, the client's end, and the name."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, (host, port) = listener.accept()
        with accepted:
            watch = ConnectionWatch(3600.0, 100, 1000)
            watch.ports = {listener.getsockname()[1]}
            running = asyncio.create_task(watch.run())

            def send(count: int) -> None:
                for size in (1,) * (count % 1024) + (1024,) * (count // 1024):
                    client.sendall(b"x" * size)
                    accepted.recv(size, socket.MSG_WAITALL)

            client.settimeout(30)
            try:
                yield watch, send, client, f"ipv4:{host}:{port}"
            finally:
                running.cancel()


@pytest.mark.breadth
async def test_health_calls_that_are_refused_end_their_connection() -> None:
    async with connected() as (watch, _, client, peer):
        door = OpenIntake(watch)
        assert await receive(door, Arrives(b"x" * 4096, peer)) == (b"x" * 4096, NO_CLAIM)
        assert watch.ended == 0
        slow = receive(door, Arrives(peer=peer), 1)
        await until_claimed(door, MAX_MESSAGE_BYTES)
        async with connected() as (others, _, other, their_peer):
            door._connections = others
            with pytest.raises(ServerBusy):
                await receive(door, Arrives(peer=their_peer), 1)
            assert await asyncio.to_thread(other.recv, 1) == b""
        door._connections = watch
        with pytest.raises(InvalidRequest):
            await slow
        assert await asyncio.to_thread(client.recv, 1) == b""
        assert door.claimed_bytes == 0
    for call, announced in ((b"x" * 4097, None), (None, 4097)):
        async with connected() as (watch, _, client, peer):
            with pytest.raises(RequestTooLarge):
                await receive(OpenIntake(watch), Arrives(call, peer), announced)
            assert await asyncio.to_thread(client.recv, 1) == b""


async def test_a_health_call_whose_connection_is_not_seen_is_answered_soon() -> None:
    never_runs = ConnectionWatch(3600.0, 100, 1000)
    async with asyncio.timeout(30):
        assert await receive(OpenIntake(never_runs), Arrives(b"x")) == (b"x", NO_CLAIM)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a connection has received")
async def test_a_health_call_is_refused_while_its_message_arrives_once_its_connection_has_sent_too_much() -> None:
    async with connected() as (watch, send, client, peer):
        await watch.wait_until_seen(peer)
        send(4 * WINDOW_BYTES + 1)  # What it has sent before does not count.
        door, call = OpenIntake(watch), Arrives(peer=peer)
        known = receive(door, call)
        await asyncio.sleep(0)  # It begins.
        send(4 * WINDOW_BYTES)
        assert not (await asyncio.wait([known], timeout=0.01))[0]
        send(1)
        with pytest.raises(RequestTooLarge, match="more than 262,144 bytes; the limit of a health call is 4,096"):
            await known
        assert client.recv(1) == b""
        assert (door.claimed_bytes, watch.ended) == (0, 1)
    async with connected() as (watch, send, client, peer):
        watch.record_call(peer)
        send(4 * WINDOW_BYTES + 1)
        assert await receive(OpenIntake(watch), Arrives(b"x", peer)) == (b"x", NO_CLAIM)
    async with connected() as (watch, send, _, peer):
        await watch.wait_until_seen(peer)
        call = Arrives(peer=peer)
        known = receive(OpenIntake(watch), call)
        await asyncio.sleep(0)  # It begins.
        watch.record_call(peer)  # The bytes may be those of this call.
        send(4 * WINDOW_BYTES + 1)
        await asyncio.wait([known], timeout=0.01)
        call.message.set_result(b"x")
        assert await known == (b"x", NO_CLAIM)


async def test_what_another_worker_passes_on_counts_for_its_principal() -> None:
    nowhere: Any = None
    received = _ArrivedCall(None, is_forwarded=True, caller=replace(ANYBODY, principal="etl"))
    assert _sender(received, nowhere, is_forwarded=True) == Sender("", "etl")


@pytest.mark.parametrize("megabytes", [101, 128, 144, 256])
async def test_a_principal_leaves_the_largest_message_to_others(megabytes: int) -> None:
    claims = Claims(megabytes << 20, MAX_MESSAGE_BYTES)
    with suppress(ServerBusy):
        for number in range(10_000):
            claims.claim(100_000, Sender(f"c{number}", "etl"))
    assert claims.refused == 1
    claims.claim(MAX_MESSAGE_BYTES, Sender("c", "other"))


@pytest.mark.parametrize(
    ("given", "found"), [("70000", 70_000), ("0", 0), ("", None), ("-1", None), ("9" * 13, None), (b"7", None)]
)
async def test_what_is_no_number_announces_nothing(given: str | bytes, found: int | None) -> None:
    assert announced_bytes((("scankv-message-bytes", given),)) == found
    assert announced_bytes(()) is None
