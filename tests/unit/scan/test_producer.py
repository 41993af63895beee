"""A scan stream sends growing chunks, tokens, a running checksum, and heartbeats while nothing matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import google_crc32c
import pyarrow as pa
import pytest

from scankv.v1 import scan_pb2
from streaming_server.scan.admission.live_scans import RegisteredScan
from streaming_server.scan.chunk_source import Chunk, ChunkSource, ScanPosition, View
from streaming_server.scan.execution.open_scan import OpenedScan
from streaming_server.scan.execution.producer import ChunkSpec, stream_messages
from streaming_server.scan.resume_token import Fingerprint, TokenWriter, read_token
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.model.errors import ScanKvError

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
DEFINITION = define(SCHEMA)
VIEW = View({0: 10, 1: 0}, 5, 100)
FINGERPRINT = Fingerprint.of(table=["t"], schema=b"", query=[])
WHOLE = ChunkSpec(rows=8192, bytes=1 << 20)


class NumberSource:
    """A selective source of the numbers below `count`, of which it returns the multiples of `every`."""

    schema = SCHEMA
    schema_id = 1
    view = VIEW

    def __init__(self, count: int, every: int = 1) -> None:
        self.rows_scanned = 0
        self.bounds: list[tuple[int, int]] = []
        self._count = count
        self._every = every

    def prefetch(self, max_rows: int, max_bytes: int) -> bool:
        return True

    def next_chunk(self, max_rows: int, max_bytes: int) -> Chunk | None:
        start, stop = self.rows_scanned, min(self.rows_scanned + max_rows, self._count)
        if start == stop:
            return None
        self.bounds.append((max_rows, max_bytes))
        self.rows_scanned = stop
        found = [number for number in range(start, stop) if number % self._every == 0]
        return Chunk(0, pa.record_batch([found], schema=SCHEMA))

    def position(self) -> ScanPosition:
        return ScanPosition(0, str(self.rows_scanned).encode())

    def abort(self, error: ScanKvError) -> None:
        raise AssertionError("nobody ends this one")

    def close(self) -> None:
        pass


def stream(
    source: ChunkSource,
    limit: int | None = None,
    chunk: ChunkSpec = WHOLE,
    *,
    selective: bool = False,
    heartbeat_seconds: float = 60.0,
) -> Iterator[bytes | None]:
    opened = OpenedScan(
        source=source,
        tokens=TokenWriter(FINGERPRINT, VIEW),
        definition=DEFINITION,
        resumed_from=None,
        limit=limit,
        selective=selective,
    )
    scan = RegisteredScan(table="t", buckets=(0, 1), snapshot_id="", peer="")
    return stream_messages(opened, chunk, "s", scan, 0.0, heartbeat_seconds)


def messages(source: ChunkSource, limit: int | None = None, **more: Any) -> list[scan_pb2.ScanKvResponse]:
    return [scan_pb2.ScanKvResponse.FromString(data) for data in stream(source, limit, **more) if data is not None]


def test_chunks_begin_small_and_grow_to_what_was_asked_for() -> None:
    source = NumberSource(5376 + 3 * 8192)
    messages(source)
    rows, sizes = zip(*source.bounds, strict=True)
    assert rows == (256, 1024, 4096, 8192, 8192, 8192)
    assert sizes == (64 << 10, 256 << 10, 1 << 20, 1 << 20, 1 << 20, 1 << 20)


def test_chunks_never_pass_what_was_asked_for() -> None:
    source = NumberSource(1000)
    messages(source, chunk=ChunkSpec(rows=100, bytes=1024))
    assert set(source.bounds) == {(100, 1024)}


@pytest.mark.parametrize("limit", [0, 1, 255, 256, 257, 1280, 5000])
def test_a_limit_reads_not_one_row_more(limit: int) -> None:
    source = NumberSource(100_000)
    *_, trailer = messages(source, limit)
    assert (source.rows_scanned, trailer.trailer.rows_returned) == (limit, limit)


def test_every_chunk_carries_its_token_progress_and_a_checksum_of_all_before_it() -> None:
    source, crc, left, scanned = NumberSource(3000), 0, 3000 - 500, 0
    header, *chunks, trailer = messages(source, left)
    assert header.header.view_micros == VIEW.micros
    for message in chunks:
        chunk = message.chunk
        left, scanned = left - chunk.row_count, scanned + chunk.row_count
        crc = google_crc32c.value(chunk.record_batch + crc.to_bytes(4, "little"))
        point = read_token(chunk.resume_token, FINGERPRINT)
        assert (point.position.key, point.remaining, chunk.rows_scanned) == (str(scanned).encode(), left, scanned)
        assert chunk.crc32c == crc
    assert (left, trailer.trailer.crc32c, trailer.trailer.chunks) == (0, crc, len(chunks))


@pytest.mark.parametrize("limit", [1, 100, 2000])
def test_a_limit_over_a_selective_source_is_exact_and_does_not_shrink_its_steps(limit: int) -> None:
    source = NumberSource(1_000_000, every=3)
    *_, trailer = messages(source, limit, selective=True)
    assert trailer.trailer.rows_returned == limit
    assert [rows for rows, _ in source.bounds] == [256, 1024, 4096, 8192][: len(source.bounds)]
    assert source.rows_scanned <= 3 * limit + source.bounds[-1][0]


def test_a_source_that_finds_nothing_gives_way_to_others_and_is_heard_from_now_and_then() -> None:
    source = NumberSource(200_000, every=200_001)
    sent = list(stream(source, selective=True, heartbeat_seconds=0.0))
    kinds = [scan_pb2.ScanKvResponse.FromString(data).WhichOneof("message") for data in sent if data is not None]
    assert kinds == ["header", "chunk", *["heartbeat"] * (len(source.bounds) - 1), "trailer"]

    steps = list(stream(NumberSource(200_000, every=200_001), selective=True))
    assert steps.count(None) == len(source.bounds) - 1


def test_a_heartbeat_carries_a_token_behind_what_was_looked_at() -> None:
    _, _, *heartbeats, _ = messages(NumberSource(50_000, every=50_001), 5, selective=True, heartbeat_seconds=0.0)
    scanned = [message.heartbeat.rows_scanned for message in heartbeats]
    points = [read_token(message.heartbeat.resume_token, FINGERPRINT) for message in heartbeats]
    assert scanned == sorted(scanned)
    assert scanned[-1] == 50_000
    assert [int(point.position.key) for point in points] == scanned
    assert {point.remaining for point in points} == {4}
