"""A framed chunk or response is the protobuf message of the same fields."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scankv.v1 import lookup_pb2, scan_pb2
from streaming_server.scan.framing import ROWS_ALIGNMENT, frame_answer, frame_chunk


@given(st.integers(0, 1023), st.integers(0, 70_000), st.integers(1, 65_536))
@example(0, 0, 1)
@example(0, 127, 1)
@example(1, 128, 127)
@example(127, 16_383, 128)
@example(1023, 16_384, 65_536)
@example(5, 3_000_000, 8192)
def test_a_framed_chunk_parses_as_its_fields(bucket: int, size: int, rows: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    chunk = scan_pb2.ScanChunk(bucket=bucket, row_count=rows, resume_token=data[:80], rows_scanned=rows, crc32c=size)
    framed = frame_chunk(chunk, pa.py_buffer(data))
    chunk.record_batch = data
    parsed = scan_pb2.ScanKvResponse.FromString(framed)
    assert set(parsed.chunk.padding) <= {0}
    chunk.padding = parsed.chunk.padding
    assert parsed == scan_pb2.ScanKvResponse(chunk=chunk)


@given(st.binary(max_size=200))
def test_the_rows_of_a_framed_chunk_are_aligned(token: bytes) -> None:
    framed = frame_chunk(scan_pb2.ScanChunk(resume_token=token), pa.py_buffer(b"rows" * 1000))
    assert framed.index(b"rows" * 1000) % ROWS_ALIGNMENT == 0


@pytest.mark.parametrize("size", [0, 1, 127, 128, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 5])
def test_a_framed_answer_parses_as_its_fields(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    response = lookup_pb2.TopNResponse(log_offsets={1: 5, 7: 0}, version=b"version", index=["score"])
    framed = frame_answer(response, pa.py_buffer(data))
    response.rows = data
    assert lookup_pb2.TopNResponse.FromString(framed) == response
