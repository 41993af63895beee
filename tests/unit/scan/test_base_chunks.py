"""Chunks from a columnar base are as large as its batches, unless a scan asks for smaller ones."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from scankv.model.limits import DEFAULT_CHUNK_BYTES
from scankv.v1.scan_pb2 import ChunkBounds, ScanKvRequest
from streaming_server.scan.admission.admission import Admission, AdmissionLimits
from streaming_server.scan.admission.live_scans import (
    MAX_LARGE_CHUNKS,
    MAX_UNPROVEN_LARGE_CHUNKS,
    PROVEN_BYTES,
    RegisteredScan,
    ScanRegistry,
)
from streaming_server.scan.columnar.base_view import BASE_CHUNK_BYTES, BASE_CHUNK_ROWS
from streaming_server.services.scan_request import chunk_spec, chunk_spec_of_base


@pytest.mark.parametrize(
    ("asked", "of_server", "expected"),
    [
        (ChunkBounds(), DEFAULT_CHUNK_BYTES, (BASE_CHUNK_ROWS, BASE_CHUNK_BYTES)),
        (ChunkBounds(), 64 << 10, (BASE_CHUNK_ROWS, 64 << 10)),
        (ChunkBounds(max_rows=10), DEFAULT_CHUNK_BYTES, (10, BASE_CHUNK_BYTES)),
        (ChunkBounds(max_bytes=4096), DEFAULT_CHUNK_BYTES, (BASE_CHUNK_ROWS, 4096)),
        (ChunkBounds(max_rows=10, max_bytes=4096), DEFAULT_CHUNK_BYTES, (10, 4096)),
    ],
)
def test_chunks_are_as_large_as_batches_unless_the_request_or_the_server_says_less(
    asked: ChunkBounds, of_server: int, expected: tuple[int, int]
) -> None:
    request = ScanKvRequest(chunk=asked)
    found = chunk_spec_of_base(request, chunk_spec(request, of_server), lambda: True)
    assert (found.rows, found.bytes) == expected


def live_scan() -> RegisteredScan:
    return RegisteredScan(table="t.t", buckets=(0,), snapshot_id="", peer="")


def registry() -> ScanRegistry:
    nobody = Admission(AdmissionLimits(live=1, live_per_bucket=1, waiting=0, wait_seconds=0))
    return ScanRegistry(nobody, following=nobody, stall_timeout=1, max_scan=1)


def test_large_chunks_are_for_a_few_scans_whose_readers_take_them_at_once() -> None:
    scans, live = registry(), [live_scan() for _ in range(MAX_LARGE_CHUNKS + 2)]
    with ExitStack() as calls:
        ends = [calls.enter_context(ExitStack()) for _ in live]
        for end, scan in zip(ends, live, strict=True):
            end.enter_context(scans.call(scan))
        # The readers of the other scans have not proven that they read promptly.
        few = [True] * MAX_UNPROVEN_LARGE_CHUNKS
        assert [scans.may_have_large_chunk(scan) for scan in live] == few + [False] * (len(live) - len(few))
        for scan in live:
            scan.bytes_returned = PROVEN_BYTES
        for _ in range(2):
            assert [scans.may_have_large_chunk(scan) for scan in live] == [True] * MAX_LARGE_CHUNKS + [False] * 2
        # A reader that pauses gives back its place, and so does a scan that ends.
        live[0].last_took = 2.0
        assert not scans.may_have_large_chunk(live[0])
        assert scans.may_have_large_chunk(live[-1])
        assert not scans.may_have_large_chunk(live[-2])
        ends[3].close()
        assert scans.may_have_large_chunk(live[-2])
        live[0].last_took = 0.0
        assert not scans.may_have_large_chunk(live[0])
