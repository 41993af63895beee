"""A change stream sends tokens that lose nothing, heartbeats, and a new header when columns are added."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

from scankv.model.expressions import Predicate, col
from scankv.v1 import scan_pb2
from streaming_server.scan.admission.live_scans import RegisteredScan
from streaming_server.scan.changes.change_rows import ChangeRows
from streaming_server.scan.changes.change_stream import ChangeStream
from streaming_server.scan.changes.log_plan import OpenedLog
from streaming_server.scan.changes.log_source import LogSource
from streaming_server.scan.changes.log_token import LogTokenWriter, read_log_token
from streaming_server.scan.chunk_source import View
from streaming_server.scan.execution.producer import ChunkSpec
from streaming_server.scan.resume_token import Fingerprint
from tests.support.memory_log import MemoryTail, StopsAt
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST = define(pa.schema([pa.field("k", pa.int64(), nullable=False)]))
SECOND = FIRST.add_columns(pa.schema([("more", pa.string())]))
FINGERPRINT = Fingerprint.of(table=["t"], schema=b"", query=[])

Message = scan_pb2.ScanKvResponse


def stream(
    tail: MemoryTail,
    stop: int | None = None,
    *,
    limit: int | None = None,
    where: Predicate | None = None,
    heartbeat_seconds: float = 60.0,
) -> Iterator[Message | float]:
    rows = ChangeRows(FIRST, None, where)
    stops = StopsAt(None if stop is None else {0: stop})
    source = LogSource("reader", rows, {0: tail}, View({0: 0}, 0, 0), stops, lambda: SECOND, now_micros=lambda: 5)
    opened = OpenedLog(
        source=source,
        tokens=LogTokenWriter(FINGERPRINT),
        definition=FIRST,
        resumed_from=None,
        limit=limit,
        selective=rows.selective,
        full=False,
    )
    scan = RegisteredScan(table="t", buckets=(0,), snapshot_id="", peer="", follows=True)
    for message in ChangeStream(opened, ChunkSpec(rows=3, bytes=1 << 20), "s", scan, 0.0, heartbeat_seconds).messages():
        yield Message.FromString(message) if isinstance(message, bytes) else message


def place(token: bytes) -> tuple[int, int | None]:
    """Returns where a token continues in bucket 0, and what remains of the limit."""
    position, left = read_log_token(token, FINGERPRINT)
    return position.offsets[0], left


def sent(messages: Iterator[Message | float], count: int) -> list[Message]:
    """Returns the next messages. When the stream would wait, it continues at once."""
    return list(islice((message for message in messages if isinstance(message, Message)), count))


def kinds(messages: list[Message]) -> list[str | None]:
    return [message.WhichOneof("message") for message in messages]


def test_every_token_goes_on_behind_what_was_sent_so_far() -> None:
    tail = MemoryTail(FIRST)
    tail.put(*range(5))
    messages = sent(stream(tail, stop=5), 5)
    assert kinds(messages) == ["header", "chunk", "chunk", "heartbeat", "trailer"]
    header, first, second, heartbeat, trailer = messages
    tokens = header.header.resume_token, first.chunk.resume_token, second.chunk.resume_token
    assert [place(token) for token in tokens] == [(0, None), (3, None), (5, None)]
    assert (first.chunk.next_offset, second.chunk.next_offset) == (3, 5)
    assert dict(heartbeat.heartbeat.next_offsets) == {0: 5}
    checksum = 0
    for part in (first.chunk, second.chunk):
        checksum = google_crc32c.value(part.record_batch + part.changes + checksum.to_bytes(4, "little"))
        assert part.crc32c == checksum
    assert (trailer.trailer.rows_returned, trailer.trailer.chunks) == (5, 2)
    assert trailer.trailer.crc32c == checksum


def test_what_is_left_out_is_in_the_position_of_the_next_heartbeat() -> None:
    """Otherwise a reader that resumes would make the server read the same changes again and again."""
    tail = MemoryTail(FIRST)
    tail.put(*range(8))
    messages = stream(tail, where=col("k") < 0, heartbeat_seconds=0.0001)
    sent(messages, 1)  # the header
    tokens = [place(message.heartbeat.resume_token)[0] for message in sent(messages, 5)]
    assert tokens == sorted(tokens)
    assert tokens[-1] == 8
