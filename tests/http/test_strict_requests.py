"""Heads and trailers that arrive in pieces are checked like complete ones, and once."""

from __future__ import annotations

import time

import h11
import pytest

from http_gateway.strict_requests import StrictConnection

HEAD = b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


def receive(*pieces: bytes) -> StrictConnection:
    """Returns a connection that has read pieces of requests, one after another."""
    connection = StrictConnection()
    for piece in pieces:
        connection.receive_data(piece)
        while connection.next_event() is not h11.NEED_DATA:
            if connection.their_state is h11.DONE:
                return connection
    return connection


def seconds_of(start: bytes, length: int) -> float:
    """Returns the processor time of a head or of trailers that arrive byte by byte."""
    tries = []
    for _ in range(3):
        began = time.process_time()
        receive(start, *(b"x" for _ in range(length - 3)))
        tries.append(time.process_time() - began)
    return min(tries)


@pytest.mark.alone
@pytest.mark.parametrize("start", [HEAD + b"X: ", HEAD + b"\r\n0\r\nX: "], ids=["head", "trailers"])
def test_each_byte_of_a_slow_request_costs_the_same_work(start: bytes) -> None:
    # Eight times as many bytes were 50 times as much work.
    assert seconds_of(start, 32_000) < 20 * seconds_of(start, 4_000)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (HEAD + b"X: a\nY: b\r\n\r\n", "a line ends without a carriage return"),
        (HEAD + b"X: a\n\r\n", "a line ends without a carriage return"),
        (HEAD + b"X: a\r\n\tb\r\n\r\n", "a header continues on the next line"),
        (HEAD + b"\r\n0\r\nX: a\n\r\n", "a line ends without a carriage return"),
        (HEAD + b"\r\n1\r\na\r\n0\r\nX: a\r\n b\r\n\r\n", "a header continues on the next line"),
        (HEAD + b"\r\n1\r\na\r\n0\r\nX: a\r\n\r\n", ""),
        (HEAD + b"\r\n1\r\na\r\n0\r\n\r\n", ""),
    ],
)
def test_wherever_a_request_is_divided_the_answer_is_the_same(request_: bytes, reason: str) -> None:
    halves = [(request_[:place], request_[place:]) for place in range(1, len(request_))]
    for pieces in [(request_,), [bytes([each]) for each in request_], *halves]:
        if reason:
            with pytest.raises(h11.RemoteProtocolError, match=reason):
                receive(*pieces)
        else:
            assert receive(*pieces).their_state is h11.DONE


def test_a_head_and_trailers_of_the_greatest_length_are_read_however_they_arrive() -> None:
    for start in (HEAD + b"X: ", HEAD + b"\r\n0\r\nX: "):
        length = 32_768 - len(start.rpartition(b"0\r\n")[2]) - 4
        for rest in (b"x" * length + b"\r\n\r\n", b"x" * (length + 1) + b"\r\n\r\n"):
            for pieces in ((start + rest,), (start, *(bytes([each]) for each in rest))):
                if len(rest) == length + 4:
                    assert receive(*pieces).their_state in (h11.SEND_BODY, h11.DONE)
                    continue
                with pytest.raises(h11.RemoteProtocolError, match="more than 32,768 bytes"):
                    receive(*pieces)
