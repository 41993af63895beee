"""The request of a scan, and the refusal of every answer that breaks the contract of `scan.proto`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import ProtocolViolation, ScanSpec
from aio_client._scan.protocol import ScanLedger, scan_request
from scankv.model.changes.change_columns import CHANGE_FIELDS, ChangeColumns
from scankv.model.changes.log_positions import LogSpec, StartFrom
from scankv.v1.scan_pb2 import ScanChunk, ScanKvResponse
from tests.unit.client.messages import (
    LOG_OFFSETS,
    SCHEMA,
    batch,
    checksum,
    chunk,
    chunks,
    header,
    heartbeat,
    received,
    trailer,
    whole_scan,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.v1.scan_pb2 import ScanHeader, ScanTrailer

SPEC = ScanSpec("game.scores")


def read(
    messages: Iterable[ScanKvResponse | ScanHeader | ScanChunk | ScanTrailer], spec: ScanSpec = SPEC
) -> tuple[ScanLedger, list[pa.RecordBatch]]:
    ledger = ScanLedger(spec)
    booked = [ledger.book(received(part)) for part in messages]
    ledger.close()
    return ledger, [rows for rows in booked if rows is not None]


def test_rows_without_columns_keep_their_number() -> None:
    spec = ScanSpec("game.scores", columns=())
    sent = [chunk(batch(0, 4).select([]))]
    _, batches = read([header(pa.schema([])), *sent, trailer(sent)], spec)
    assert [rows.num_rows for rows in batches] == [4]


def of_changes(changes: bytes) -> list[ScanHeader | ScanChunk | ScanTrailer]:
    """Returns the messages of a stream with three inserts, described by these bytes."""
    sent = chunk(batch(0, 3))
    sent.changes = changes
    sent.crc32c = checksum(sent.record_batch, changes)
    end = trailer([sent])
    end.crc32c = sent.crc32c
    return [header(pa.schema([*CHANGE_FIELDS, *SCHEMA])), sent, end]


LOG_SPEC = ScanSpec("game.scores", log=LogSpec(start=StartFrom.EARLIEST))


def test_changes_precede_their_rows() -> None:
    columns = ChangeColumns(np.zeros(3, np.uint8), np.arange(5, 8), np.full(3, 9))
    ledger, (rows,) = read(of_changes(columns.to_bytes()), LOG_SPEC)
    assert rows.schema == ledger.schema
    assert rows.column("_log_offset").to_pylist() == [5, 6, 7]
    assert rows.select(SCHEMA.names) == batch(0, 3)


@pytest.mark.parametrize("changes", [b"", b"\xff", ChangeColumns.of_table(2).to_bytes() + b"\x0a\x02\0\0"])
def test_changes_that_are_not_of_all_rows_do_not_pass(changes: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="the change columns of 3 rows"):
        read(of_changes(changes), LOG_SPEC)


def test_changes_of_another_checksum_do_not_pass() -> None:
    messages = of_changes(ChangeColumns.of_table(3).to_bytes())
    assert isinstance(messages[1], ScanChunk)
    messages[1].changes = ChangeColumns(np.full(3, 3, np.uint8), None, None).to_bytes()
    with pytest.raises(ProtocolViolation, match="CRC32C"):
        read(messages, LOG_SPEC)


def test_a_message_of_a_newer_server_is_passed_over() -> None:
    unknown = ScanKvResponse.FromString(b"\x2a\x02\x08\x01")  # field 5
    first, *rest = whole_scan()
    ledger, batches = read([first, unknown, *rest])
    assert len(batches) == 3
    assert ledger.trailer is not None


@pytest.mark.parametrize("end", range(5))
def test_a_stream_that_ends_early_is_no_success(end: int) -> None:
    with pytest.raises(ProtocolViolation, match="expected a trailer at the end of the stream, got none after"):
        read(whole_scan()[:end])


@given(st.data())
def test_a_chunk_lost_doubled_or_in_another_place_is_noticed(data: st.DataObject) -> None:
    sent = chunks()
    received = data.draw(st.lists(st.sampled_from(sent), max_size=5))
    messages: list[ScanHeader | ScanChunk | ScanTrailer] = [header(), *received, trailer(sent)]
    if received == sent:
        read(messages)
    else:
        with pytest.raises(ProtocolViolation):
            read(messages)


@given(st.integers(0, 2), st.data())
def test_a_flipped_bit_of_arrow_data_is_noticed(index: int, data: st.DataObject) -> None:
    sent = chunks()
    end = trailer(sent)
    spoiled = bytearray(sent[index].record_batch)
    bit = data.draw(st.integers(0, len(spoiled) * 8 - 1))
    spoiled[bit // 8] ^= 1 << bit % 8
    sent[index].record_batch = bytes(spoiled)
    with pytest.raises(ProtocolViolation):
        read([header(), *sent, end])


SENT = chunks()


def changed(sent: ScanChunk, **fields: Any) -> ScanChunk:
    for name, value in fields.items():
        setattr(sent, name, value)
    return sent


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([*SENT, trailer(SENT)], "expected the header first, got chunk"),
        ([trailer(SENT)], "expected the header first, got trailer"),
        ([header(), header()], "expected one header, got a second one"),
        ([header(), trailer([]), SENT[0]], "expected nothing after the trailer, got chunk"),
        ([header(), trailer([]), trailer([])], "expected nothing after the trailer, got trailer"),
        ([header(), trailer([]), header()], "expected nothing after the trailer, got header"),
        ([header(), *SENT[:2], trailer(SENT)], "expected 15 rows, as the trailer says, got 10"),
        ([header(), *SENT, trailer(SENT, [0, 1])], r"the buckets of the trailer to be \[0, 1, 2\], got \[0, 1\]"),
        ([header(), *SENT, trailer(SENT, [0, 1, 1, 2])], r"the trailer to be \[0, 1, 2\], got \[0, 1, 1, 2\]"),
        ([header(log_offsets={0: 1, 2: 1})], r"the buckets of the header to be \[0, 1\], got \[0, 2\]"),
        ([header(log_offsets={})], "at least one bucket in the header, got none"),
        ([header(), chunk(batch(0, 1), bucket=3)], "chunks of the buckets in the header, got one of bucket 3"),
        ([header(), chunk(batch(0, 0))], "a chunk of 0 rows, at least 1, got one of 0"),
        ([header(resumed_from={0: 1})], "expected a scan from its beginning, got the opposite"),
        ([header(), heartbeat(b"", 1)], "a resume token in every chunk and heartbeat, got one without"),
        ([header(), changed(chunk(batch(0, 4)), resume_token=b"")], "a resume token in every chunk"),
        ([header(), changed(chunk(batch(0, 4)), row_count=5)], "expected a chunk of 5 rows, at least 1, got one of 4"),
    ],
)
def test_a_broken_contract_is_named(messages: list[ScanHeader | ScanChunk | ScanTrailer], expected: str) -> None:
    with pytest.raises(ProtocolViolation, match=expected):
        read(messages)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        ("rows_returned", "expected 16 rows, as the trailer says, got 15"),
        ("chunks", "expected 4 chunks, as the trailer says, got 3"),
        ("bytes_returned", "bytes of Arrow data, as the trailer says, got"),
        ("crc32c", "expected the CRC32C .* of the trailer, got"),
    ],
)
def test_a_total_of_the_trailer_that_differs_is_named(total: str, expected: str) -> None:
    end = trailer(SENT)
    setattr(end, total, getattr(end, total) + 1)
    with pytest.raises(ProtocolViolation, match=expected):
        read([header(), *SENT, end])


@pytest.mark.parametrize("index", range(3))
def test_a_running_checksum_that_differs_is_noticed_at_its_chunk(index: int) -> None:
    sent = chunks()
    sent[index].crc32c ^= 1
    ledger = ScanLedger(SPEC)
    ledger.book(received(header()))
    for each in sent[:index]:
        ledger.book(received(each))
    with pytest.raises(ProtocolViolation, match="of a chunk and those before it"):
        ledger.book(received(sent[index]))
    assert (ledger.rows, ledger.chunks) == (5 * index, index)
    assert ledger.token == (sent[index - 1].resume_token if index else None)


def test_a_resumed_scan_that_began_anew_is_refused() -> None:
    ledger = ScanLedger(SPEC, token=b"after 4")
    with pytest.raises(ProtocolViolation, match="expected a scan that resumes from the token, got the opposite"):
        ledger.book(received(header()))


def test_a_ledger_knows_the_last_position() -> None:
    ledger = ScanLedger(SPEC, token=b"given")
    ledger.book(received(header(resumed_from=LOG_OFFSETS)))
    assert (ledger.token, ledger.rows_scanned) == (b"given", 0)
    ledger.book(received(SENT[0]))
    assert (ledger.token, ledger.rows_scanned) == (b"after 4", 5)
    ledger.book(received(heartbeat(b"farther", 1000)))
    assert (ledger.token, ledger.rows_scanned) == (b"farther", 1000)
    assert (ledger.rows, ledger.chunks) == (5, 1)


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 100])
def test_data_that_is_not_arrow_is_named(data: bytes) -> None:
    spoiled = chunk(batch(0, 4))
    spoiled.record_batch = data
    spoiled.crc32c = checksum(data)
    with pytest.raises(ProtocolViolation, match="expected an Arrow record batch"):
        read([header(), spoiled])
    first = header()
    first.arrow_schema = data
    with pytest.raises(ProtocolViolation, match="expected an Arrow schema in the header"):
        read([first])


def test_the_chunks_of_an_ordered_scan_are_of_no_bucket() -> None:
    sent = [chunk(batch(0, 3), bucket=9)]
    ledger, _ = read([header(), *sent, trailer(sent)], ScanSpec("game.scores", ordered=True))
    assert ledger.rows == 3


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"buckets": (2,)}, r"the buckets of the header to be \[2\], got \[0, 1, 2\]"),
        ({"columns": ("name", "id")}, r"expected the columns \['name', 'id'\], got \['id', 'name'\]"),
        ({"limit": 14}, "expected at most 14 rows, got 15"),
    ],
)
def test_an_answer_to_another_scan_is_named(asked: dict[str, Any], expected: str) -> None:
    with pytest.raises(ProtocolViolation, match=expected):
        read(whole_scan(), ScanSpec("game.scores", **asked))


def test_a_scan_asks_for_changes_from_its_beginning_alone() -> None:
    spec = ScanSpec("game.scores", if_changed_since=b"v1")
    assert scan_request(spec).if_changed_since == b"v1"
    assert not scan_request(spec, b"token").HasField("if_changed_since")
    assert not scan_request(SPEC).HasField("if_changed_since")


def unchanged(version: bytes = b"v1") -> ScanHeader:
    message = header()
    message.version, message.unchanged = version, True
    return message


def test_that_nothing_has_changed_is_a_whole_answer() -> None:
    ledger, batches = read([unchanged(), trailer([])], ScanSpec("game.scores", if_changed_since=b"v1"))
    assert batches == []
    assert ledger.header is not None
    assert ledger.header.unchanged


@pytest.mark.parametrize(
    ("since", "messages"),
    [
        (None, [unchanged(), trailer([])]),
        (b"v2", [unchanged(), trailer([])]),
        (b"v1", [unchanged(), *chunks(1), trailer(chunks(1))]),
    ],
    ids=["not asked", "another version", "rows all the same"],
)
def test_that_nothing_has_changed_is_refused_where_it_cannot_be(
    since: bytes | None, messages: list[ScanHeader | ScanChunk | ScanTrailer]
) -> None:
    with pytest.raises(ProtocolViolation, match="changed"):
        read(messages, ScanSpec("game.scores", if_changed_since=since))
