"""The memory of answers that clients have not read: shares, refusals, and which connection is closed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from scankv.model.errors import ServerBusy
from streaming_server.scan.admission.unread_answers import SMALL_BYTES, UnreadAnswer, UnreadAnswers
from streaming_server.services.connections import close_connection

LIMIT = 100 * SMALL_BYTES
LARGE = 10 * SMALL_BYTES


def fill(unread: UnreadAnswers, peer: str, size: int = LARGE) -> list[UnreadAnswer]:
    """Adds answers of a connection until one is refused."""
    answers = []
    with contextlib.suppress(ServerBusy):
        while True:
            answer = unread.answer(peer)
            answer.claim(size)
            answers.append(answer)
    return answers


@pytest.mark.asyncio
async def test_a_connection_gets_half_of_the_memory_and_large_answers_four_fifths() -> None:
    unread = UnreadAnswers(LIMIT, 30)
    assert len(fill(unread, "a")) == 5
    with pytest.raises(ServerBusy, match=r"this connection has 3,276,800 bytes .* of at most 3,276,800") as refused:
        unread.check("a")
    assert refused.value.retry_after
    unread.check("b")
    assert len(fill(unread, "b")) == 3
    with pytest.raises(ServerBusy, match=r"max_unread_answer_bytes"):
        unread.answer("c").claim(LARGE)
    assert len(fill(unread, "c", SMALL_BYTES)) == 20
    assert unread.unread_bytes == LIMIT
    assert unread.refused == 5


@pytest.mark.asyncio
async def test_one_answer_may_exceed_the_share_of_its_connection() -> None:
    unread = UnreadAnswers(LIMIT, 30)
    large = unread.answer("a")
    large.claim(60 * SMALL_BYTES)
    with pytest.raises(ServerBusy):
        unread.answer("a").claim(1)


@pytest.mark.asyncio
async def test_a_claim_follows_the_size_of_its_answer_and_ends_once() -> None:
    unread = UnreadAnswers(LIMIT, 30)
    one, other = unread.answer("a"), unread.answer("a")
    one.claim(LARGE)
    other.claim(LARGE)
    one.claim(5)
    assert unread.unread_bytes == LARGE + 5
    with pytest.raises(ServerBusy):
        one.claim(LIMIT)
    assert one.size == 5
    one.claim(LIMIT, may_refuse=False)
    assert unread.unread_bytes == LARGE + LIMIT
    for each in (one, other, one):
        each.release()
    assert unread.unread_bytes == 0
    unread.check("a")


@pytest.mark.asyncio
async def test_an_answer_is_expected_to_fit_unless_its_connection_or_the_server_has_much_unread() -> None:
    unread = UnreadAnswers(LIMIT, 30)
    unread.answer("a").expect(LIMIT)
    unread.answer("a").claim(LARGE)
    unread.answer("a").expect(4 * LARGE)
    with pytest.raises(ServerBusy):
        unread.answer("a").expect(4 * LARGE + 1)
    unread.answer("b").expect(LIMIT)
    fill(unread, "b")
    with pytest.raises(ServerBusy):
        unread.answer("c").expect(3 * LARGE)


@pytest.mark.asyncio
async def test_the_stalled_connection_with_the_most_bytes_is_closed_when_memory_is_short() -> None:
    closed: list[str] = []

    def close(peer: str) -> bool:
        closed.append(peer)
        return True

    unread = UnreadAnswers(LIMIT, 0, close)
    few = fill(unread, "few")[:2]
    for each in list(unread._connections["few"].answers)[2:]:
        each.release()
    many = fill(unread, "many")
    assert closed == []
    with pytest.raises(ServerBusy):
        unread.answer("c").claim(2 * LARGE)
    assert closed == ["many"]
    for each in many:
        each.release()
    unread.answer("c").claim(2 * LARGE)
    assert [each.size for each in few] == [LARGE, LARGE]
    patient = UnreadAnswers(LIMIT, 3600, close)
    fill(patient, "a")
    fill(patient, "b")
    assert closed == ["many"]


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_connection_is_closed_by_the_name_of_its_peer(host: str) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(serve, host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(host, port)
        other_reader, other_writer = await asyncio.open_connection(host, port)
        ours = writer.get_extra_info("sockname")[1]
        peer = f"ipv6:%5B::1%5D:{ours}" if ":" in host else f"ipv4:{host}:{ours}"
        assert close_connection(peer)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
            await ended.wait()
        assert not other_reader.at_eof()
        for each in (writer, other_writer):
            each.close()
            await each.wait_closed()


@pytest.mark.parametrize("peer", ["", "unix:/tmp/x", "ipv4:127.0.0.1:1", "ipv4:x", "ipv6:%5B::1%5D:none"])
def test_an_unknown_peer_closes_nothing(peer: str) -> None:
    assert not close_connection(peer)
