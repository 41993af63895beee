"""An interrupted scan continues after its token: over the wire, without the client library."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from scankv.model.limits import MAX_KEY_BYTES, MAX_RESUME_TOKEN_BYTES
from scankv.v1 import scan_pb2, write_pb2
from tests.support.tables import ipc_stream
from tests.support.wire import Wire, refusal

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = 1000
BUCKETS = 3


@pytest.fixture
def table(wire: Wire, request: pytest.FixtureRequest) -> str:
    name = f"resume.{request.node.name.split('[')[0][:60]}_{abs(hash(request.node.name)) % 10**8}"
    wire.create(name, SCHEMA, buckets=BUCKETS)
    write(wire, name, range(0, 2 * ROWS, 2))
    return name


def write(wire: Wire, name: str, keys: range) -> None:
    batch = pa.record_batch([list(keys), [f"value {key}" for key in keys]], schema=SCHEMA)
    wire.writes.Upsert(write_pb2.UpsertRequest(table=name, rows=ipc_stream(SCHEMA, batch)), timeout=30)


def request_for(name: str, **fields: Any) -> scan_pb2.ScanKvRequest:
    return scan_pb2.ScanKvRequest(table=name, chunk=scan_pb2.ChunkBounds(max_rows=100), **fields)


def read(wire: Wire, request: scan_pb2.ScanKvRequest, chunks: int | None = None) -> list[scan_pb2.ScanKvResponse]:
    """Returns some or all of the messages."""
    call, messages = wire.scans.ScanKv(request, timeout=30), []
    for message in call:
        messages.append(message)
        if chunks is not None and sum(each.HasField("chunk") for each in messages) == chunks:
            call.cancel()
            break
    return messages


def keys_of(messages: list[scan_pb2.ScanKvResponse]) -> list[int]:
    keys: list[int] = []
    for message in messages:
        if message.HasField("chunk"):
            data = pa.py_buffer(message.chunk.record_batch)
            keys += pa.ipc.read_record_batch(data, SCHEMA).column(0).to_pylist()
    return keys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "limit",
    [
        None,
        1000,
        1001,
        # A tablet does not know how many rows those before it have returned, and reads complete chunks.
        pytest.param(999, marks=pytest.mark.whole_tables),
        pytest.param(450, marks=pytest.mark.whole_tables),
    ],
)
def test_a_scan_cut_behind_every_chunk_gives_each_row_once_in_the_same_order(
    wire: Wire, table: str, limit: int | None, reverse: bool
) -> None:
    whole = keys_of(read(wire, request_for(table, limit=limit, reverse=reverse)))
    pieces, token, scanned = [], b"", 0
    while True:
        messages = read(wire, request_for(table, limit=limit, resume_token=token, reverse=reverse), chunks=1)
        last = messages[-1]
        if not last.HasField("chunk"):
            assert last.trailer.buckets == list(range(BUCKETS))
            break
        pieces += keys_of(messages)
        token = last.chunk.resume_token
        scanned += last.chunk.rows_scanned
    assert pieces == whole
    assert scanned == len(whole)
    assert len(whole) == min(limit or ROWS, ROWS)


def test_a_resumed_scan_over_the_live_table_shows_the_newer_view_behind_the_cut_and_says_from_where_to_where(
    wire: Wire, table: str
) -> None:
    first = read(wire, request_for(table), chunks=2)
    write(wire, table, range(1, 2 * ROWS, 2))
    second = read(wire, request_for(table, resume_token=first[-1].chunk.resume_token))
    before, after = first[0].header, second[0].header
    assert dict(after.resumed_from.log_offsets) == dict(before.log_offsets)
    assert after.resumed_from.view_micros == before.view_micros < after.view_micros
    assert sum(after.log_offsets.values()) == sum(before.log_offsets.values()) + ROWS
    keys = keys_of(first) + keys_of(second)
    assert len(set(keys)) == len(keys)
    assert set(range(0, 2 * ROWS, 2)) <= set(keys)
    assert any(key % 2 for key in keys_of(second))


def test_a_first_attempt_does_not_claim_to_be_resumed(wire: Wire, table: str) -> None:
    assert not read(wire, request_for(table))[0].header.HasField("resumed_from")


def test_a_scan_resumed_behind_its_last_row_ends_normally_and_reads_nothing(wire: Wire, table: str) -> None:
    *_, last, _trailer = read(wire, request_for(table))
    header, trailer = read(wire, request_for(table, resume_token=last.chunk.resume_token))
    assert header.HasField("header")
    assert (trailer.trailer.rows_scanned, trailer.trailer.rows_returned) == (0, 0)


def test_a_scan_resumed_at_its_limit_ends_normally_and_reads_nothing(wire: Wire, table: str) -> None:
    *_, last, _trailer = read(wire, request_for(table, limit=250))
    _header, trailer = read(wire, request_for(table, limit=250, resume_token=last.chunk.resume_token))
    assert (trailer.trailer.rows_scanned, trailer.trailer.rows_returned) == (0, 0)


def test_rows_behind_the_cut_that_are_gone_by_then_do_not_make_it_start_over(wire: Wire, table: str) -> None:
    token = read(wire, request_for(table), chunks=9)[-1].chunk.resume_token
    keys = pa.record_batch([list(range(0, 2 * ROWS, 2))], schema=pa.schema([SCHEMA.field("k")]))
    request = write_pb2.DeleteRequest(table=table, keys=ipc_stream(keys.schema, keys))
    wire.writes.Delete(request, timeout=30)
    _header, trailer = read(wire, request_for(table, resume_token=token))
    assert trailer.trailer.rows_scanned == 0


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"limit": 700}, "another query"),
        ({"buckets": [0, 1]}, "another query"),
        ({"reverse": True}, "another query"),
        ({"key_range": scan_pb2.KeyRange(start=b"a")}, "another query"),
        ({"columns": scan_pb2.ColumnNames(names=["k"])}, "another query|another schema"),
    ],
)
def test_a_token_of_another_query_is_refused(wire: Wire, table: str, other: dict[str, Any], what: str) -> None:
    token = read(wire, request_for(table), chunks=1)[-1].chunk.resume_token
    said = refusal(wire.scans.ScanKv, request_for(table, resume_token=token, **other))
    assert (said.code, said.reason) == ("INVALID_ARGUMENT", "INVALID_RESUME_TOKEN")
    assert any(part in said.message for part in what.split("|"))


def test_a_token_of_another_table_is_refused_also_of_the_same_name(wire: Wire, table: str) -> None:
    token = read(wire, request_for(table), chunks=1)[-1].chunk.resume_token
    other = f"{table}_2"
    wire.create(other, SCHEMA, buckets=BUCKETS)
    assert "another table" in refusal(wire.scans.ScanKv, request_for(other, resume_token=token)).message


@pytest.mark.parametrize("token", [b"x", b"\x01" * 60, b"x" * (MAX_RESUME_TOKEN_BYTES + 1), bytes(200)])
def test_what_is_no_token_is_refused(wire: Wire, table: str, token: bytes) -> None:
    said = refusal(wire.scans.ScanKv, request_for(table, resume_token=token))
    assert said.reason == "INVALID_RESUME_TOKEN"
    assert len(said.message) < 200


def test_an_empty_key_range_reads_nothing(wire: Wire, table: str) -> None:
    for key_range in (
        scan_pb2.KeyRange(start=b"m", end=b"m"),
        scan_pb2.KeyRange(start=b"m", end=b"a"),
        scan_pb2.KeyRange(end=b""),
    ):
        _header, trailer = read(wire, request_for(table, key_range=key_range))
        assert trailer.trailer.rows_scanned == 0


def test_an_end_that_no_key_can_have_is_refused(wire: Wire, table: str) -> None:
    key_range = scan_pb2.KeyRange(start=bytes(MAX_KEY_BYTES + 2))
    assert refusal(wire.scans.ScanKv, request_for(table, key_range=key_range)).reason == "INVALID_REQUEST"
