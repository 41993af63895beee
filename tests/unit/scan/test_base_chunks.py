"""How large the chunks out of a columnar base are: those of its batches, unless somebody wants smaller ones."""

from __future__ import annotations

import pytest

from protos.scankv.v1.scan_pb2 import ChunkBounds, ScanKvRequest
from streaming_server.scan.base_view import BASE_CHUNK_BYTES, BASE_CHUNK_ROWS
from streaming_server.scan.producer import ChunkSpec
from streaming_server.services.scan_request import chunk_spec, chunk_spec_of_base
from table_model.limits import DEFAULT_CHUNK_BYTES


@pytest.mark.parametrize(
    ("asked", "of_server", "expected"),
    [
        (ChunkBounds(), DEFAULT_CHUNK_BYTES, ChunkSpec(rows=BASE_CHUNK_ROWS, bytes=BASE_CHUNK_BYTES)),
        (ChunkBounds(), 64 << 10, ChunkSpec(rows=BASE_CHUNK_ROWS, bytes=64 << 10)),
        (ChunkBounds(max_rows=10), DEFAULT_CHUNK_BYTES, ChunkSpec(rows=10, bytes=BASE_CHUNK_BYTES)),
        (ChunkBounds(max_bytes=4096), DEFAULT_CHUNK_BYTES, ChunkSpec(rows=BASE_CHUNK_ROWS, bytes=4096)),
    ],
)
def test_chunks_are_as_large_as_batches_unless_the_request_or_the_server_says_less(
    asked: ChunkBounds, of_server: int, expected: ChunkSpec
) -> None:
    request = ScanKvRequest(chunk=asked)
    assert chunk_spec_of_base(request, chunk_spec(request, of_server)) == expected
