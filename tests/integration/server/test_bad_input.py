"""Bad input is refused whole: with the column, the row and the reason, and nothing written.

Everything is sent past the client library, which would find most of it first.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import Unavailable, connect
from scankv.model.limits import MAX_KEY_BYTES, MAX_ROW_BYTES
from scankv.v1 import lookup_pb2, scan_pb2, table_pb2, write_pb2
from tests.support.tables import ipc_stream
from tests.support.wire import Refusal, Wire, refusal

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema(
    [
        pa.field("player", pa.string(), nullable=False),
        pa.field("level", pa.int32(), nullable=False),
        ("score", pa.int64()),
        ("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
        ("data", pa.binary()),
    ]
)


@pytest.fixture(scope="module")
def table(shared_server: ServerProcess) -> str:
    """Makes a table of 300 rows, keyed by player, which no test here changes."""
    rows = [row(player=f"p{i}") for i in range(300)]
    with Wire(shared_server.url) as wire:
        wire.create("server.bad_input", SCHEMA)
        wire.writes.Upsert(upsert("server.bad_input", pa.RecordBatch.from_pylist(rows, schema=SCHEMA)))
    return "server.bad_input"


def row(**values: Any) -> dict[str, Any]:
    return {"player": "p0", "level": 1, "score": 5, "tags": ["a"], "data": b""} | values


def upsert(table: str, batch: pa.RecordBatch) -> write_pb2.UpsertRequest:
    return write_pb2.UpsertRequest(table=table, rows=ipc_stream(batch.schema, batch))


def among_good(bad: dict[str, Any]) -> pa.RecordBatch:
    """Returns a batch of new rows for all buckets, in which row 70 is bad."""
    rows = [row(player=f"new {i}") for i in range(100)]
    rows[70] |= bad
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([(field.name, field.type) for field in SCHEMA]))


def refused_without_a_trace(wire: Wire, table: str, batch: pa.RecordBatch) -> Refusal:
    """Sends an upsert that must be refused; checks that it wrote no row and used no offset."""
    before = wire.written(table)
    found = refusal(wire.writes.Upsert, upsert(table, batch))
    after = wire.written(table)
    assert after == before
    assert sum(rows for rows, _, _ in after) == 300
    keys = pa.record_batch({"player": [f"new {i}" for i in range(100)]})
    answer = wire.lookups.Lookup(lookup_pb2.LookupRequest(table=table, keys=ipc_stream(keys.schema, keys)))
    assert not any(answer.found)
    assert (found.code, found.reason) != ("INTERNAL", "INTERNAL")
    return found


@pytest.mark.parametrize(("column", "path"), [("player", "player"), ("level", "level")])
def test_a_null_where_none_is_allowed(wire: Wire, table: str, column: str, path: str) -> None:
    found = refused_without_a_trace(wire, table, among_good({column: None}))
    assert found.reason in ("SCHEMA_MISMATCH", "INVALID_KEY")
    assert (found.details["column"], found.details["row"]) == (column, "70")
    assert path in found.message
    assert "null" in found.message.lower()


def test_a_null_below_a_column(wire: Wire, table: str) -> None:
    type_ = SCHEMA.field("tags").type
    tags = pa.array([["a"]] * 70 + [["a", None]] + [["a"]] * 29, pa.list_(pa.string()))
    forced = pa.Array.from_buffers(type_, 100, tags.buffers()[:2], children=[tags.values])
    found = refused_without_a_trace(wire, table, among_good({}).set_column(3, pa.field("tags", type_), forced))
    assert (found.reason, found.details["column"], found.details["row"]) == ("SCHEMA_MISMATCH", "tags", "70")
    assert "tags[]" in found.message


def test_a_wrong_type(wire: Wire, table: str) -> None:
    batch = among_good({})
    for other in (pa.int32(), pa.float64(), pa.string(), pa.timestamp("s")):
        wrong = batch.set_column(2, "score", pa.array([None] * 100, other))
        found = refused_without_a_trace(wire, table, wrong)
        assert (found.reason, found.details["column"]) == ("SCHEMA_MISMATCH", "score")
        assert "int64" in found.message
        assert str(other) in found.message


def test_a_missing_column(wire: Wire, table: str) -> None:
    for column in ("score", "player"):
        found = refused_without_a_trace(wire, table, among_good({}).drop_columns([column]))
        assert (found.reason, found.details["column"]) == ("SCHEMA_MISMATCH", column)


def test_an_unknown_column_names_the_near_ones(wire: Wire, table: str) -> None:
    batch = among_good({}).rename_columns(["player", "level", "scores", "tags", "data"])
    found = refused_without_a_trace(wire, table, batch)
    assert (found.reason, found.details["column"]) == ("SCHEMA_MISMATCH", "scores")
    assert '"score"' in found.message


def test_a_column_too_many(wire: Wire, table: str) -> None:
    batch = among_good({}).append_column("extra", pa.nulls(100, pa.int8()))
    found = refused_without_a_trace(wire, table, batch)
    assert (found.reason, found.details["column"]) == ("SCHEMA_MISMATCH", "extra")


def test_a_key_over_its_limit(wire: Wire, table: str) -> None:
    found = refused_without_a_trace(wire, table, among_good({"player": "k" * MAX_KEY_BYTES}))
    assert (found.reason, found.details["row"]) == ("INVALID_KEY", "70")
    assert "16,384" in found.message or "16384" in found.message


def test_a_row_over_its_limit(wire: Wire, table: str) -> None:
    found = refused_without_a_trace(wire, table, among_good({"data": b"x" * MAX_ROW_BYTES}))
    assert (found.code, found.reason, found.details["row"]) == ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE", "70")


def test_a_request_over_its_limit(wire: Wire, table: str) -> None:
    batch = pa.RecordBatch.from_pylist([row(player=f"new {i}", data=b"x" * 2**20) for i in range(33)], schema=SCHEMA)
    found = refused_without_a_trace(wire, table, batch)
    assert found.code == "RESOURCE_EXHAUSTED"


@pytest.mark.one_process  # A worker does not know the tables of others.
def test_an_unknown_table_names_the_near_ones(wire: Wire, table: str) -> None:
    near = table.replace("input", "inputs")
    assert f'"{table}"' in refusal(wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=near)).message
    assert f'"{table}"' in refusal(wire.writes.Upsert, upsert(near, among_good({}))).message
    assert f'"{table}"' in refusal(wire.lookups.Count, lookup_pb2.CountRequest(table=near)).message


def test_an_unknown_column_of_a_scan_or_lookup_names_the_near_ones(wire: Wire, table: str) -> None:
    columns = scan_pb2.ColumnNames(names=["player", "scor"])
    keys = pa.record_batch({"player": ["p1"]})
    calls = [
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table, columns=columns)),
        (
            wire.lookups.Lookup,
            lookup_pb2.LookupRequest(table=table, keys=ipc_stream(keys.schema, keys), columns=columns),
        ),
    ]
    for method, request in calls:
        found = refusal(method, request)
        assert (found.reason, found.details["column"]) == ("SCHEMA_MISMATCH", "scor")
        assert '"score"' in found.message


def test_a_duplicate_create_changes_nothing(wire: Wire, table: str) -> None:
    before = wire.tables.GetTable(table_pb2.GetTableRequest(name=table)).table
    other = pa.schema([("x", pa.int8())]).serialize().to_pybytes()
    found = refusal(
        wire.tables.CreateTable, table_pb2.CreateTableRequest(name=table, arrow_schema=other, primary_key=["x"])
    )
    assert (found.code, found.reason) == ("ALREADY_EXISTS", "TABLE_EXISTS")
    assert wire.tables.GetTable(table_pb2.GetTableRequest(name=table)).table == before


def test_a_bad_option_names_the_near_ones(wire: Wire, name: str) -> None:
    found = refusal(
        wire.tables.CreateTable,
        table_pb2.CreateTableRequest(
            name=name,
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            primary_key=["player"],
            options={"compresion": "lz4"},
        ),
    )
    assert (found.reason, found.details["option"]) == ("INVALID_OPTION", "compresion")
    assert '"compression"' in found.message


@pytest.mark.parametrize(
    "added",
    [
        pa.schema([("score", pa.int8())]),
        pa.schema([pa.field("fresh", pa.int8(), nullable=False)]),
        pa.schema([("fresh", pa.int8()), ("fresh", pa.int8())]),
        pa.schema([("fresh", pa.duration("s"))]),
        pa.schema([]),
        pa.schema([(f"c{i}", pa.int8()) for i in range(996)]),
    ],
    ids=["taken", "not null", "twice", "duration", "none", "too many"],
)
def test_columns_that_cannot_be_added_change_nothing(wire: Wire, table: str, added: pa.Schema) -> None:
    before = wire.tables.GetTable(table_pb2.GetTableRequest(name=table)).table
    request = table_pb2.AlterTableRequest(name=table, add_columns=added.serialize().to_pybytes())
    assert refusal(wire.tables.AlterTable, request).reason == "SCHEMA_MISMATCH"
    assert wire.tables.GetTable(table_pb2.GetTableRequest(name=table)).table == before


def test_more_keys_than_a_lookup_takes(wire: Wire, table: str) -> None:
    keys = pa.record_batch({"player": [str(i) for i in range(100_001)]})
    found = refusal(wire.lookups.Lookup, lookup_pb2.LookupRequest(table=table, keys=ipc_stream(keys.schema, keys)))
    assert (found.code, found.reason) == ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE")


@pytest.mark.breadth
def test_a_lookup_of_more_than_an_answer_holds(wire: Wire, name: str) -> None:
    wire.create(name, pa.schema([("k", pa.int64()), ("v", pa.binary())]))
    for k in range(5):
        batch = pa.record_batch({"k": [k], "v": pa.array([bytes(8 << 20)])})
        wire.writes.Upsert(upsert(name, batch))
    keys = pa.record_batch({"k": range(5)})
    request = lookup_pb2.LookupRequest(table=name, keys=ipc_stream(keys.schema, keys))
    found = refusal(wire.lookups.Lookup, request)
    assert (found.code, found.reason) == ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE")
    keys = pa.record_batch({"k": range(3)})
    request = lookup_pb2.LookupRequest(table=name, keys=ipc_stream(keys.schema, keys))
    assert list(wire.lookups.Lookup(request).found) == [1, 1, 1]


@pytest.mark.asyncio
async def test_a_server_that_is_down_is_named_within_the_timeout() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(Unavailable, match=address):
            async with connect(address, attempt_timeout=5.0) as client:
                await asyncio.wait_for(client.tables(), 20)
        assert time.monotonic() - started < 10
