"""The client decodes a message exactly as protobuf does, without copying its rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from aio_client._transport.framing import ScanMessage
from scankv.v1.scan_pb2 import ScanChunk, ScanKvResponse
from streaming_server.scan.framing import frame_chunk
from tests.unit.client.messages import batch, chunk, header, heartbeat, response, trailer


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def as_protobuf_reads(message: bytes) -> tuple[ScanKvResponse, bytes]:
    """Returns the message without its rows, and the rows, as protobuf decodes them."""
    fields = ScanKvResponse.FromString(message)
    rows = fields.chunk.record_batch
    if rows:
        fields.chunk.ClearField("record_batch")
    return fields, rows


def as_it_is_received(message: bytes) -> tuple[ScanKvResponse, bytes]:
    received = ScanMessage.from_bytes(message)
    if received.fields.chunk.record_batch:
        received.fields.chunk.ClearField("record_batch")
    return received.fields, received.record_batch.to_pybytes()


FIELDS = st.one_of(
    st.binary(max_size=300).map(lambda rows: ScanChunk(record_batch=rows).SerializeToString()),
    st.binary(max_size=20).map(lambda token: ScanChunk(resume_token=token).SerializeToString()),
    st.binary(max_size=20).map(lambda padding: ScanChunk(padding=padding).SerializeToString()),
    st.integers(0, 2**32 - 1).map(lambda number: ScanChunk(crc32c=number, row_count=number).SerializeToString()),
    st.integers(0, 2**63 - 1).map(lambda number: ScanChunk(rows_scanned=number).SerializeToString()),
    st.binary(max_size=9),
    st.sampled_from([b"\xf9\x01" + bytes(8), b"\xfb\x01\xfc\x01"]),  # 64 bits, and a group, of an unknown field
)


@given(st.lists(FIELDS, max_size=8).map(b"".join), st.integers(-3, 3))
@example(b"", 0)
@example(b"\x12", 0)
@example(b"\x12\x80", 0)
@example(ScanChunk(record_batch=b"a").SerializeToString() * 2, 0)
def test_whatever_comes_is_what_protobuf_makes_of_it(fields: bytes, off: int) -> None:
    check(b"\x12" + varint(max(0, len(fields) + off)) + fields)


@given(st.binary(max_size=40))
@example(b"\x12" + b"\xff" * 2_000_000)  # a number without an end
def test_any_bytes_are_read_as_by_protobuf(message: bytes) -> None:
    check(message)


def check(message: bytes) -> None:
    """Checks that both decoders return the same, or both refuse the message."""
    try:
        expected = as_protobuf_reads(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            ScanMessage.from_bytes(message)
    else:
        assert as_it_is_received(message) == expected


@pytest.mark.parametrize("part", [header(), heartbeat(b"token", 7), trailer([]), chunk(batch(0, 3))])
def test_every_kind_of_message_keeps_its_fields(part: object) -> None:
    message = response(part).SerializeToString()  # type: ignore[arg-type]
    assert as_it_is_received(message) == as_protobuf_reads(message)


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_rows_stay_where_they_are_in_the_message_of_a_server(rows: int) -> None:
    data = batch(0, rows).serialize()
    for token in range(40):
        message = frame_chunk(ScanChunk(row_count=rows, resume_token=bytes(token)), data)
        received = ScanMessage.from_bytes(message).record_batch
        assert received.equals(data)
        assert received.address - pa.py_buffer(message).address == message.index(data.to_pybytes())
        assert received.address % 16 == 0


def test_rows_that_lie_at_an_odd_place_are_copied() -> None:
    data = batch(0, 100).serialize()
    for token in range(8):
        part = ScanChunk(resume_token=bytes(token + 1), record_batch=data.to_pybytes())
        received = ScanMessage.from_bytes(response(part).SerializeToString()).record_batch
        assert received.equals(data)
        assert received.address % 8 == 0
