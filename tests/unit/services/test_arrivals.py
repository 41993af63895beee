"""When a connection counts as one that has received more than its messages may have."""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from streaming_server.services.arrivals import Arrivals
from streaming_server.services.intake import MAX_MESSAGE_BYTES, WINDOW_BYTES

MIB: Final = 1 << 20


def test_what_a_connection_may_receive_beside_its_messages_does_not_grow_while_they_overlap() -> None:
    received, seconds, size = 0, 0.0, MAX_MESSAGE_BYTES
    arrivals = Arrivals(lambda _: received, lambda: seconds)
    latest = arrivals.begin("c0", WINDOW_BYTES)
    for _ in range(800):  # 25 GiB in 4 minutes
        large = arrivals.begin("c0", size)
        received += size
        assert not large.is_exceeded
        large.end(size)
        former, latest = latest, arrivals.begin("c0", WINDOW_BYTES)
        former.end(0)
        seconds += 0.3
    # 64 KiB for each of 0.3 s, and one part in 64 of the message that has arrived.
    received += 2 * MIB + 64 * 1024 + size // 64 + WINDOW_BYTES
    assert latest.is_exceeded


def test_a_message_that_takes_long_stays_expected() -> None:
    received, seconds, size = 0, 0.0, MAX_MESSAGE_BYTES
    arrivals = Arrivals(lambda _: received, lambda: seconds)
    slow = arrivals.begin("c0", size)
    for _ in range(4):
        received += size // 4
        seconds += 25
        assert not slow.is_exceeded
    other = arrivals.begin("c0", WINDOW_BYTES)
    slow.end(size)
    assert not other.is_exceeded
    received += 2 * MIB + 2 * WINDOW_BYTES
    assert other.is_exceeded


def test_a_connection_that_has_received_too_much_is_looked_at_anew_in_time() -> None:
    received, seconds = 0, 0.0
    arrivals = Arrivals(lambda _: received, lambda: seconds)
    message = arrivals.begin("c0", WINDOW_BYTES)
    received = 10 * MIB
    assert message.is_exceeded
    seconds = 29
    assert message.is_exceeded
    seconds = 31
    later = arrivals.begin("c0", WINDOW_BYTES)
    assert not later.is_exceeded
    received += 3 * MIB
    assert later.is_exceeded


def test_the_bytes_of_an_ended_connection_from_the_same_address_hide_none_of_the_other() -> None:
    received = 1_000 * MIB
    arrivals = Arrivals(lambda _: received, lambda: 0.0)
    message = arrivals.begin("c0", WINDOW_BYTES)
    assert not message.is_exceeded
    received = 1 * MIB
    assert not message.is_exceeded
    received += 3 * MIB
    assert message.is_exceeded


def test_what_may_have_been_frames_before_a_message_began_is_bounded() -> None:
    received, seconds, size = 0, 0.0, MAX_MESSAGE_BYTES
    arrivals = Arrivals(lambda _: received, lambda: seconds)
    former = arrivals.begin("c0", size)
    received += size
    for _ in range(40):  # There is always a message of which all has been received.
        for _ in range(30):
            seconds += 1
            assert not former.is_exceeded
        latest = arrivals.begin("c0", size)
        received += size
        assert not latest.is_exceeded
        former.end(size)
        former = latest
    hidden = arrivals.begin("c0", WINDOW_BYTES)
    received += 2 * MIB + 30 * 64 * 1024 + 2 * WINDOW_BYTES + size // 64
    assert hidden.is_exceeded


def test_a_message_may_have_little_more_than_announced_however_long_others_have_overlapped_with_it() -> None:
    received, seconds = 0, 0.0
    arrivals = Arrivals(lambda _: received, lambda: seconds)
    other = arrivals.begin("c0", WINDOW_BYTES)
    seconds = 29.0
    hidden = arrivals.begin("c0", WINDOW_BYTES)
    other.end(0)
    for _ in range(60):
        seconds += 0.5
        while not deepcopy(hidden).is_exceeded:
            received += 32 * 1024
        received -= 32 * 1024
        assert not hidden.is_exceeded
    expected = WINDOW_BYTES + 2 * MIB + 30 * 64 * 1024
    assert expected - MIB // 8 < received <= expected


def test_frames_of_a_client_that_reads_streams_add_up_to_nothing_while_messages_overlap() -> None:
    received, seconds = 0, 0.0
    arrivals = Arrivals(lambda _: received, lambda: seconds)
    latest = arrivals.begin("c0", WINDOW_BYTES)
    for _ in range(600):
        received += 60 * 1024
        seconds += 1
        assert not latest.is_exceeded
        former, latest = latest, arrivals.begin("c0", WINDOW_BYTES)
        former.end(0)
