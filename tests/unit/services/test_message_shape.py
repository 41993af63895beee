"""Messages are bounded in what parsing them can cost, whatever they are made of."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, UnknownField
from scankv.v1 import expression_pb2, lookup_pb2, scan_pb2, table_pb2, transaction_pb2, write_pb2
from streaming_server.services.message_shape import MAX_OTHER_BYTES, check_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

MEBIBYTE = 1 << 20


def check(message: Message) -> None:
    check_shape(message.SerializeToString(), type(message))


def wrapped(field: int, data: bytes) -> bytes:
    """A field with a length, as it is on the wire."""
    size, lengths = len(data), b""
    while size >= 0x80:
        lengths += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([field << 3 | 2]) + lengths + bytes([size]) + data


MANY_VALUES: dict[str, tuple[type[Message], Callable[[], bytes]]] = {
    "numbers for a text": (scan_pb2.ScanKvRequest, lambda: b"\x08\x01" * (12 * MEBIBYTE)),
    "fields of no number that is known": (scan_pb2.ScanKvRequest, lambda: b"\xf8\x3f\x01" * (8 * MEBIBYTE)),
    "fields in a message in it": (scan_pb2.ScanKvRequest, lambda: wrapped(16, b"\x78\x01" * (12 * MEBIBYTE))),
    "small messages with unknown fields": (scan_pb2.ScanKvRequest, lambda: wrapped(16, b"\x78\x01" * 2000) * 6000),
    "empty texts": (write_pb2.UpsertRequest, lambda: b"\x22\x00" * (12 * MEBIBYTE)),
    "empty messages": (table_pb2.CreateTableRequest, lambda: b"\x3a\x00" * (12 * MEBIBYTE)),
    "packed numbers": (scan_pb2.ScanKvRequest, lambda: wrapped(5, b"\x01" * (24 * MEBIBYTE))),
    "one long text": (scan_pb2.ScanKvRequest, lambda: wrapped(1, b"x" * (24 * MEBIBYTE))),
    "a group": (scan_pb2.ScanKvRequest, lambda: b"\x0b" * (24 * MEBIBYTE)),
}
"""Types of messages, and functions that make their bytes, 24 MiB each."""


@pytest.mark.parametrize(("cls", "made"), MANY_VALUES.values(), ids=MANY_VALUES)
@pytest.mark.represented_by("numbers for a text", "a group")
def test_a_message_of_many_small_values_is_refused_at_once(cls: Any, made: Callable[[], bytes]) -> None:
    data = made()
    begun = time.process_time()
    with pytest.raises((InvalidRequest, UnknownField)):
        check_shape(data, cls)
    assert time.process_time() - begun < 1


def test_the_largest_requests_there_are_pass() -> None:
    rows = bytes(32 * MEBIBYTE)
    check(write_pb2.UpsertRequest(table="a.t", rows=rows, columns=[f"column_{n}" for n in range(1000)]))
    check(write_pb2.DeleteRequest(table="a.t", keys=rows))
    check(lookup_pb2.LookupRequest(table="a.t", keys=rows))
    parts = [transaction_pb2.TransactionPartSize(part=f"{n:036}", requests=2**40) for n in range(10_000)]
    check(transaction_pb2.CommitTransactionRequest(token="t" * 128, parts=parts))
    values = expression_pb2.ValueArray(buffers=[b"", bytes(16 * MEBIBYTE)])
    inside = expression_pb2.Predicate(in_list=expression_pb2.InList(values=values))
    check(scan_pb2.ScanKvRequest(table="a.t", where=inside))


def test_a_message_is_refused_for_what_is_beside_its_rows() -> None:
    message = table_pb2.CreateTableRequest(name="a.t", primary_key=["k" * (MAX_OTHER_BYTES + 1)])
    with pytest.raises(InvalidRequest, match="CreateTableRequest has over 1,048,576 bytes besides its rows"):
        check(message)


@given(st.binary(max_size=100), st.sampled_from([scan_pb2.ScanKvRequest, write_pb2.UpsertRequest]))
def test_bytes_that_are_no_message_are_left_to_the_parser(data: bytes, cls: Any) -> None:
    with suppress(InvalidRequest, UnknownField):
        check_shape(b"\x0a\x80\x20" + bytes(4096) + data, cls)


@pytest.mark.parametrize("data", [b"\xff" * 5000, b"\x00" * 5000, b"\x0a\xff\xff\x7f" + b"x" * 5000, b"\x0f" * 5000])
def test_malformed_messages_are_left_to_the_parser(data: bytes) -> None:
    check_shape(data, scan_pb2.ScanKvRequest)
    with pytest.raises(DecodeError):
        scan_pb2.ScanKvRequest.FromString(data)
