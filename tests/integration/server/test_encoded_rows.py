"""Encoded rows and keys without the client library: a bad one is refused with its reason, the others are written."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from aio_client.sync import connect
from scankv.model.limits import MAX_ENCODED_ROWS, MAX_KEY_BYTES, MAX_ROW_BYTES
from scankv.model.rows.key_values import KeyValues
from scankv.model.rows.row_values import RowValues
from scankv.model.tables import agg
from scankv.v1 import scan_pb2, table_pb2, write_pb2
from tests.support.examples import FACTOR
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.wire import Wire, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aio_client.sync import Table

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        pa.field("must", pa.int64(), nullable=False),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("real", pa.float64()),
        ("text", pa.string()),
    ]
)
TYPES = SCHEMA.types
# The layout of a row: header 6, bitmap 1, must 8, flag 1, day 4, time 8, real 8, the ends of k and text.
BITMAP, MUST, FLAG, DAY, TIME, REAL, ENDS = 6, 7, 15, 16, 20, 28, 36


@pytest.fixture
def table(shared_server: ServerProcess, wire: Wire) -> Iterator[Table]:
    name = f"server.e{uuid.uuid4().hex}"
    wire.create(name, SCHEMA)
    with connect(shared_server.url) as client:
        yield client.table(name)


@pytest.fixture(params=[["k"], []], ids=["upserts", "appends"])
def either(request: pytest.FixtureRequest, shared_server: ServerProcess) -> Iterator[Table]:
    """A table with a primary key, and one without, whose bucket key is the same column."""
    with connect(shared_server.url) as client:
        name = f"server.e{uuid.uuid4().hex}"
        yield client.create_table(name, SCHEMA, primary_key=request.param, bucket_key=["k"], buckets=3)


def incarnation(wire: Wire, table: Table) -> str:
    return wire.tables.GetTable(table_pb2.GetTableRequest(name=table.name)).table.incarnation


def encode(k: str, *, schema_id: int = 1, **values: Any) -> bytes:
    row = {"k": k, "must": 1, "flag": True, "day": dt.date(2020, 1, 1), "real": 1.5, "text": "t" + k} | values
    return RowValues(schema_id, TYPES).encode([row.get(name) for name in SCHEMA.names])


def patched(row: bytes, place: int, new: bytes) -> bytes:
    return row[:place] + new + row[place + len(new) :]


def upsert(wire: Wire, table: Table, encoded: Sequence[bytes], **fields: Any) -> write_pb2.UpsertRequest:
    fields.setdefault("table_incarnation", incarnation(wire, table))
    fields.setdefault("independent", True)
    return write_pb2.UpsertRequest(table=table.name, encoded_rows=encoded, **fields)


def refused(response: write_pb2.WriteResponse) -> dict[int, str]:
    """Returns the numbers of the refused rows with the reason of each."""

    found: dict[int, str] = {}
    for failure in response.failures:
        info = error_details_pb2.ErrorInfo()
        status_pb2.Status.FromString(failure.status).details[0].Unpack(info)
        found |= dict.fromkeys(failure.rows, info.reason)
    return found


def keys_of(table: Table) -> list[str]:
    rows = table.scan().to_arrow()
    rows.validate(full=True)
    return sorted(rows["k"].to_pylist())


def bad_rows() -> dict[str, tuple[bytes, str]]:
    good = encode("bad")
    null = bytes([good[BITMAP] & ~2])
    return {
        "nothing": (b"", "INVALID_REQUEST"),
        "a byte": (b"\1", "INVALID_REQUEST"),
        "another format": (b"\2" + good[1:], "INVALID_REQUEST"),
        "flags": (patched(good, 1, b"\1"), "INVALID_REQUEST"),
        "a schema that does not exist": (encode("bad", schema_id=7), "INVALID_REQUEST"),
        "a byte too few": (good[:-1], "INVALID_REQUEST"),
        "a byte too many": (good + b"x", "INVALID_REQUEST"),
        "ends that fall": (patched(good, ENDS, (ENDS + 8 + 99).to_bytes(4, "little")), "INVALID_REQUEST"),
        "ends that are huge": (patched(good, ENDS, b"\xff" * 4), "INVALID_REQUEST"),
        "a key that is not text": (good.replace(b"bad", b"b\xffd", 1), "INVALID_REQUEST"),
        "a text that is not text": (good.replace(b"tbad", b"t\xc0\x80d"), "INVALID_REQUEST"),
        "half a surrogate": (good.replace(b"tbad", b"t\xed\xa0\x80"), "INVALID_REQUEST"),
        "a day out of range": (patched(good, DAY, b"\xff\xff\xff\x7f"), "INVALID_REQUEST"),
        "a time out of range": (
            patched(encode("bad", time=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), TIME, b"\xff" * 7 + b"\x7f"),
            "INVALID_REQUEST",
        ),
        "a null that must not be": (patched(good, BITMAP, null), "SCHEMA_MISMATCH"),
        "a null key": (patched(good, BITMAP, bytes([good[BITMAP] & ~1])), "SCHEMA_MISMATCH"),
        "a key too long": (encode("x" * MAX_KEY_BYTES), "INVALID_KEY"),
        "a row too long": (encode("bad", text="x" * MAX_ROW_BYTES), "REQUEST_TOO_LARGE"),
    }


@pytest.mark.parametrize("what", [*bad_rows()])
def test_a_bad_row_is_refused_and_its_neighbours_are_written(wire: Wire, either: Table, what: str) -> None:
    bad, reason = bad_rows()[what]
    response = wire.writes.Upsert(upsert(wire, either, [encode("a"), bad, encode("b")]))
    assert refused(response) == {1: reason}
    assert response.rows == 2
    assert len(response.buckets) == 3
    assert keys_of(either) == ["a", "b"]


@pytest.mark.parametrize("what", [*bad_rows()])
def test_a_bad_row_refuses_all_rows_of_its_call(wire: Wire, either: Table, what: str) -> None:
    bad, reason = bad_rows()[what]
    request = upsert(wire, either, [encode("a"), bad, encode("b")], independent=False)
    assert refusal(wire.writes.Upsert, request).reason == reason
    assert keys_of(either) == []


def test_rows_of_odd_bytes_are_stored_as_the_values_that_they_have(wire: Wire, table: Table) -> None:
    nan = encode("nan", real=float("nan"))
    rows = [
        patched(encode("flag"), FLAG, b"\2"),
        patched(nan, REAL, b"\1\0\0\0\0\0\xf0\x7f"),  # a signalling NaN
        patched(encode("null", flag=None), FLAG, b"\xff"),  # bytes where the row has a null
        patched(encode("unused"), BITMAP, bytes([encode("unused")[BITMAP] | 0x80])),  # a bit of no column
        encode("twice", must=1),
        encode("twice", must=2),
    ]
    response = wire.writes.Upsert(upsert(wire, table, rows))
    assert set(refused(response)) <= {3}
    found = {row["k"]: row for row in table.scan().to_pylist()}
    assert found["flag"]["flag"] is True
    assert found["nan"]["real"] != found["nan"]["real"]
    assert found["null"]["flag"] is None
    assert found["twice"]["must"] == 2
    assert table.get("flag") == found["flag"]


@pytest.mark.seeds
def test_random_bytes_harm_nothing(wire: Wire, table: Table) -> None:
    drawn = random.Random(1)
    for _ in range(min(8 * FACTOR, 80)):
        rows = []
        for number in range(60):
            row = bytearray(encode(f"k{number}", time=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)))
            for _ in range(drawn.randrange(1, 4)):
                row[drawn.randrange(len(row))] = drawn.randrange(256)
            rows.append(bytes(row) if drawn.random() < 0.8 else drawn.randbytes(drawn.randrange(100)))
        response = wire.writes.Upsert(upsert(wire, table, rows))
        assert response.rows + len(refused(response)) == 60
        keys = [drawn.randbytes(drawn.randrange(12)) for _ in range(60)]
        request = write_pb2.DeleteRequest(
            table=table.name, encoded_keys=keys, table_incarnation=incarnation(wire, table), independent=True
        )
        assert set(refused(wire.writes.Delete(request)).values()) <= {"INVALID_KEY"}
    rows = table.scan().to_arrow()
    rows.validate(full=True)
    for key in rows["k"].to_pylist()[:50]:
        assert table.get(key) is not None


@pytest.mark.parametrize(
    "key", [b"", b"\0", b"a", b"a\0", b"a\0\0\0", b"\xff\0\0", b"a\0\1\0\0", b"a\0\0b\0\0", b"x" * MAX_KEY_BYTES]
)
def test_bytes_that_are_no_key_are_refused_and_other_keys_deleted(wire: Wire, table: Table, key: bytes) -> None:
    table.upsert([{"k": k, "must": 1} for k in "abc"])
    keys = KeyValues([pa.string()])
    request = write_pb2.DeleteRequest(
        table=table.name,
        encoded_keys=[keys.encode(["a"]), key, keys.encode(["b"]), keys.encode(["a"])],
        independent=True,
        table_incarnation=incarnation(wire, table),
    )
    assert refused(wire.writes.Delete(request)) == {1: "INVALID_KEY"}
    assert keys_of(table) == ["c"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rows": b"x"}, "INVALID_REQUEST"),
        ({"columns": ["text"]}, "INVALID_REQUEST"),
        ({"mode": write_pb2.WRITE_MODE_OVERWRITE}, "INVALID_REQUEST"),
        ({"unchanged_since": scan_pb2.LogOffsets()}, "INVALID_REQUEST"),
        ({"transaction": write_pb2.StagedAs(token="x", part="p")}, "INVALID_REQUEST"),
        ({"table_incarnation": ""}, "TABLE_RECREATED"),
        ({"table_incarnation": "0" * 32}, "TABLE_RECREATED"),
        ({"column_locks": ["0" * 32]}, "LOCK_LOST"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_requests_that_mix_encoded_rows_with_other_things_are_refused(
    wire: Wire, table: Table, fields: dict[str, Any], reason: str
) -> None:
    request = upsert(wire, table, [encode("a")], **fields)
    if reason == "LOCK_LOST":
        assert refused(wire.writes.Upsert(request)) == {0: reason}
    else:
        assert refusal(wire.writes.Upsert, request).reason == reason
    assert keys_of(table) == []


def test_arrow_data_is_refused_if_it_is_for_another_incarnation(wire: Wire, table: Table) -> None:
    data = ipc_stream(SCHEMA, pa.RecordBatch.from_pylist([{"k": "a", "must": 1}], SCHEMA))
    request = write_pb2.UpsertRequest(table=table.name, rows=data, table_incarnation="0" * 32)
    assert refusal(wire.writes.Upsert, request).reason == "TABLE_RECREATED"
    delete = write_pb2.DeleteRequest(table=table.name, keys=data, table_incarnation="0" * 32)
    assert refusal(wire.writes.Delete, delete).reason == "TABLE_RECREATED"
    assert keys_of(table) == []
    request.table_incarnation = incarnation(wire, table)
    assert wire.writes.Upsert(request).table_incarnation == request.table_incarnation
    assert keys_of(table) == ["a"]


def test_too_many_rows_are_refused(wire: Wire, either: Table) -> None:
    rows = [encode(str(number)) for number in range(MAX_ENCODED_ROWS + 1)]
    assert refusal(wire.writes.Upsert, upsert(wire, either, rows)).reason == "REQUEST_TOO_LARGE"
    assert keys_of(either) == []
    assert wire.writes.Upsert(upsert(wire, either, rows[1:])).rows == MAX_ENCODED_ROWS


def test_a_repeated_request_has_the_same_failures(wire: Wire, either: Table) -> None:
    bad = [bad for bad, _ in list(bad_rows().values())[:-1]]
    request = upsert(wire, either, [encode("a", text="1"), *bad, encode("b")])
    request.writer.id = "w"
    first = wire.writes.Upsert(request)
    if either.primary_key:
        either.upsert([{"k": "a", "must": 2}])
    again = wire.writes.Upsert(request)
    assert refused(first) == refused(again)
    assert (first.log_offsets, first.buckets) == (again.log_offsets, again.buckets)
    assert keys_of(either) == ["a", "b"]
    if either.primary_key:
        assert either.get("a")["must"] == 2  # type: ignore[index]


def test_rows_too_long_for_an_index_are_refused(wire: Wire, shared_server: ServerProcess) -> None:
    name = f"server.e{uuid.uuid4().hex}"
    with connect(shared_server.url) as client:
        table = client.create_table(name, SCHEMA, primary_key=["k"], indexes=["text"], buckets=2)
        rows = [encode("a"), encode("long", text="x" * 2 * MAX_KEY_BYTES), encode("b")]
        response = wire.writes.Upsert(upsert(wire, table, rows))
        assert refused(response) == {1: "REQUEST_TOO_LARGE"}
        assert b"row 1: the columns of index" in response.failures[0].status
        assert keys_of(table) == ["a", "b"]
        assert all(bucket.is_consistent for bucket in client.check_table(name))


def test_a_table_with_nested_columns_takes_no_encoded_rows(
    wire: Wire, table: Table, shared_server: ServerProcess
) -> None:
    with connect(shared_server.url) as client:
        client.alter_table(table.name, add_columns=pa.schema([("more", pa.list_(pa.int8()))]))
    found = refusal(wire.writes.Upsert, upsert(wire, table, [encode("a")]))
    assert (found.reason, found.details["option"]) == ("INVALID_REQUEST", "encoded_rows")
    good = pa.RecordBatch.from_pylist([{"k": "a", "must": 1}], SCHEMA.append(pa.field("more", pa.list_(pa.int8()))))
    wire.writes.Upsert(write_pb2.UpsertRequest(table=table.name, rows=ipc_stream(good.schema, good)))


@pytest.mark.parametrize("shared", [True, False], ids=["with the server", "with the disk"])
def test_a_repeated_request_does_not_write_a_row_that_was_refused(
    shared_server: ServerProcess, tmp_path: Path, shared: bool
) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("total", pa.int8())])
    sums = RowValues(1, schema.types).encode
    with ExitStack() as stack:
        server = shared_server if shared else stack.enter_context(ServerProcess(tmp_path / "data"))
        name = f"server.e{uuid.uuid4().hex}"
        with connect(server.url) as client, Wire(server.url) as wire:
            table = client.create_table(
                name, schema, primary_key=["k"], merge_engine="aggregate", aggregators={"total": agg.sum()}
            )
            table.upsert([{"k": "a", "total": 100}, {"k": "b", "total": 1}])
            rows = [sums(["a", 20]), sums(["a", 30]), sums(["b", 2]), sums(["a", 5]), sums(["a", 127])]
            request = upsert(wire, table, rows)
            request.writer.id = "w"
            first = wire.writes.Upsert(request)
            assert refused(first) == {1: "INVALID_REQUEST", 4: "INVALID_REQUEST"}
            (failure, _) = first.failures
            assert b'column "total", key (a): the sum does not fit int8; the row was not written' in failure.status
            assert first.rows == 3
            # Now both would fit.
            table.upsert([{"k": "a", "total": -125}])
        if not shared:
            server.kill()
            server.restart()
        with connect(server.url) as client, Wire(server.url) as wire:
            again = wire.writes.Upsert(request)
            assert [(each.rows, each.status) for each in again.failures] == [
                (each.rows, each.status) for each in first.failures
            ]
            assert again.log_offsets == first.log_offsets
            found = {row["k"]: row["total"] for row in client.table(name).scan().to_pylist()}
            assert found == {"a": 0, "b": 3}
