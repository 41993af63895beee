"""Requests that no valid client sends: each is refused with a typed error, and the server continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scankv.model.limits import MAX_REQUEST_BYTES
from scankv.v1 import (
    admin_pb2,
    expression_pb2,
    lookup_pb2,
    scan_pb2,
    snapshot_pb2,
    table_pb2,
    write_pb2,
)
from tests.support.hostile_requests import (
    SCHEMA,
    binary_bomb,
    bomb_schema,
    bool_bomb,
    good_request,
    hostile_requests,
    many_small_batches,
)
from tests.support.tables import SCORES, ipc_stream
from tests.support.wire import Refusal, Wire, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.server_process import ServerProcess

HOSTILE = hostile_requests()
MEBIBYTE = 1 << 20
REFUSED = {"INVALID_ARGUMENT": {"INVALID_REQUEST", "SCHEMA_MISMATCH", "INVALID_KEY", "INVALID_OPTION"}}
REFUSED["RESOURCE_EXHAUSTED"] = {"REQUEST_TOO_LARGE"}
REFUSED["UNIMPLEMENTED"] = {"UNKNOWN_FIELD"}
REFUSED["NOT_FOUND"] = {"TABLE_NOT_FOUND"}
# By a schema that a table has never had, a restore or a new table of the name is told.
REFUSED["FAILED_PRECONDITION"] = {"TABLE_RECREATED"}

BAD_NAMES = [
    "",
    ".",
    "..",
    "../../x",
    "a/../b.c",
    "a.b/../../c",
    "a.b\x00",
    "a.b\n",
    "ä.b",
    "a.b.c",
    "A" * 200 + ".b",
    "a.-",
]
FIELD_777 = b"\xca\x30\x04junk"


def assert_refused(found: Refusal) -> None:
    """Checks for a typed error that blames the sender and fits into the metadata of any gRPC client."""
    assert found.reason in REFUSED.get(found.code, ()), found
    assert len(found.message.encode()) + sum(len(k) + len(v.encode()) for k, v in found.details.items()) < 4096


@pytest.fixture(scope="module")
def table(shared_server: ServerProcess) -> str:
    """Makes a table of three rows, which no test here changes."""
    with Wire(shared_server.url) as wire:
        wire.create("server.hostile", SCHEMA)
        wire.writes.Upsert(write_pb2.UpsertRequest(table="server.hostile", rows=good_request()))
    return "server.hostile"


@pytest.fixture(autouse=True)
def unharmed(wire: Wire, shared_server: ServerProcess) -> object:
    """Checks after each test that the same process still serves, and has no incident in its log."""
    incarnation, log = wire.server().incarnation, len(shared_server.log)
    yield
    assert shared_server.process.poll() is None
    assert wire.server().incarnation == incarnation
    assert "incident" not in shared_server.log[log:], shared_server.log[log:][-3000:]


@pytest.mark.parametrize("request_name", HOSTILE)
def test_hostile_arrow_data_is_refused_and_nothing_written(wire: Wire, table: str, request_name: str) -> None:
    data = HOSTILE[request_name]
    before = wire.written(table)
    assert_refused(refusal(wire.writes.Upsert, write_pb2.UpsertRequest(table=table, rows=data)))
    assert_refused(refusal(wire.writes.Delete, write_pb2.DeleteRequest(table=table, keys=data)))
    assert_refused(refusal(wire.lookups.Lookup, lookup_pb2.LookupRequest(table=table, keys=data)))
    assert wire.written(table) == before
    assert wire.writes.Upsert(write_pb2.UpsertRequest(table=table, rows=good_request())).rows == 3


@pytest.mark.parametrize(
    ("bomb", "type_"), [(bool_bomb, pa.bool_()), (binary_bomb, pa.binary())], ids=["bool", "binary"]
)
def test_a_short_request_that_means_gigabytes_costs_little(
    server: ServerProcess, bomb: Callable[[], bytes], type_: pa.DataType
) -> None:
    with Wire(server.url) as wire:
        wire.create("test.bombs", bomb_schema(type_))
        idle = wire.server().resident_bytes
        found = refusal(wire.writes.Upsert, write_pb2.UpsertRequest(table="test.bombs", rows=bomb()))
        assert_refused(found)
        assert found.reason == "REQUEST_TOO_LARGE"
        assert wire.server().peak_resident_bytes - idle < 200 * MEBIBYTE


def test_the_most_rows_that_fit_into_a_request_cost_a_bounded_amount(server: ServerProcess) -> None:
    """A bool takes one bit in a request, and far more as a stored row."""
    rows = 25 * MEBIBYTE * 8
    column = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(rows // 8))])
    schema = pa.schema([pa.field("k", pa.bool_(), nullable=False)])
    data = ipc_stream(schema, pa.RecordBatch.from_arrays([column], schema=schema))
    with Wire(server.url) as wire:
        wire.create("test.bits", schema)
        idle = wire.server().resident_bytes
        assert_refused(refusal(wire.writes.Upsert, write_pb2.UpsertRequest(table="test.bits", rows=data)))
        assert wire.server().peak_resident_bytes - idle < 200 * MEBIBYTE


@pytest.mark.breadth
def test_very_many_small_batches_are_taken(wire: Wire, table: str) -> None:
    request = write_pb2.UpsertRequest(table=table, rows=many_small_batches(20_000))
    assert wire.writes.Upsert(request, timeout=60).rows == 20_000


@pytest.mark.parametrize("size", [MAX_REQUEST_BYTES + 1, MAX_REQUEST_BYTES + MEBIBYTE, 40 * MEBIBYTE])
def test_an_oversized_request_is_refused(wire: Wire, table: str, size: int) -> None:
    found = refusal(wire.writes.Upsert, write_pb2.UpsertRequest(table=table, rows=bytes(size)))
    assert found.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_a_name_that_no_table_can_have_is_refused_everywhere(wire: Wire, bad: str) -> None:
    schema = SCORES.serialize().to_pybytes()
    create = table_pb2.CreateTableRequest(name=bad, arrow_schema=schema, primary_key=["player"])
    calls = [
        (wire.tables.CreateTable, create),
        (wire.tables.DropTable, table_pb2.DropTableRequest(name=bad)),
        (wire.tables.GetTable, table_pb2.GetTableRequest(name=bad, statistics=True)),
        (wire.tables.AlterTable, table_pb2.AlterTableRequest(name=bad, add_columns=schema)),
        (wire.writes.Upsert, write_pb2.UpsertRequest(table=bad, rows=good_request())),
        (wire.writes.Delete, write_pb2.DeleteRequest(table=bad, keys=good_request())),
        (wire.lookups.Lookup, lookup_pb2.LookupRequest(table=bad, keys=good_request())),
        (wire.lookups.Count, lookup_pb2.CountRequest(table=bad)),
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=bad)),
    ]
    for method, request in calls:
        assert_refused(refusal(method, request))


def test_no_file_is_made_outside_of_the_tables(wire: Wire, shared_server: ServerProcess) -> None:
    around = set(shared_server.data_dir.parent.iterdir())
    for bad in BAD_NAMES:
        create = table_pb2.CreateTableRequest(
            name=bad, arrow_schema=SCORES.serialize().to_pybytes(), primary_key=["player"]
        )
        refusal(wire.tables.CreateTable, create)
    assert set(shared_server.data_dir.parent.iterdir()) == around
    made = {path.name for path in shared_server.data_dir.iterdir()}
    assert made <= {"LOCK", "bootstraps", "clock.json", "scankv.json", "tables", "transactions", "trash"}


def nested(levels: int) -> pa.Schema:
    type_ = pa.int8()
    for _ in range(levels):
        type_ = pa.list_(type_)
    return pa.schema([("k", pa.int8()), ("v", type_)])


BAD_SCHEMAS = {
    "nothing": b"",
    "garbage": b"garbage" * 100,
    "a cut-off message": SCORES.serialize().to_pybytes()[:40],
    "no columns": pa.schema([]).serialize().to_pybytes(),
    "ten thousand columns": pa.schema([(f"player{i}", pa.int8()) for i in range(10_000)]).serialize().to_pybytes(),
    "a name that is not text": SCORES.serialize().to_pybytes().replace(b"score\x00", b"\xff\xfe\xfd\xfc\xfb\x00"),
    "a name of controls": pa.schema([("player", pa.int8()), ("a\x00b", pa.int8())]).serialize().to_pybytes(),
    "a long odd name": pa.schema([("player", pa.int8()), ("\U0001f600" * 5000, pa.int8())]).serialize().to_pybytes(),
    "a name twice": pa.schema([("player", pa.int8()), ("player", pa.int8())]).serialize().to_pybytes(),
    "forty levels": nested(40).serialize().to_pybytes(),
    "sixty levels": nested(60).serialize().to_pybytes(),
    "a struct of no fields": pa.schema([("player", pa.int8()), ("s", pa.struct([]))]).serialize().to_pybytes(),
    "a type that is not stored": pa.schema([("player", pa.int8()), ("d", pa.duration("s"))]).serialize().to_pybytes(),
    "an extension type": pa.schema([("player", pa.int8()), ("u", pa.uuid())]).serialize().to_pybytes(),
    "a kept name": pa.schema([("player", pa.int8()), ("_log_offset", pa.int8())]).serialize().to_pybytes(),
    "an odd time zone": pa.schema([("player", pa.timestamp("s", "../../etc/passwd\x00"))]).serialize().to_pybytes(),
}


@pytest.mark.parametrize("schema_name", BAD_SCHEMAS)
def test_a_schema_that_no_table_can_have_is_refused(wire: Wire, name: str, table: str, schema_name: str) -> None:
    schema = BAD_SCHEMAS[schema_name]
    create = table_pb2.CreateTableRequest(name=f"{name}x", arrow_schema=schema, primary_key=["player"])
    assert_refused(refusal(wire.tables.CreateTable, create))
    assert refusal(wire.tables.GetTable, table_pb2.GetTableRequest(name=f"{name}x")).reason == "TABLE_NOT_FOUND"
    alter = table_pb2.AlterTableRequest(name=table, add_columns=schema)
    if schema_name not in ("an odd time zone",):
        assert_refused(refusal(wire.tables.AlterTable, alter))
    assert wire.tables.GetTable(table_pb2.GetTableRequest(name=table)).table.schema_id == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("primary_key", ["nobody"]),
        ("primary_key", ["player", "player"]),
        ("primary_key", ["\U0001f600" * 5000]),
        ("bucket_key", ["score"]),
        ("bucket_key", ["player", "player"]),
        ("buckets", 1025),
        ("buckets", 2**32 - 1),
        ("options", {"compresion": "lz4"}),
        ("options", {"compression": "brotli"}),
        ("options", {"\U0001f600" * 5000: "x" * 100_000}),
        ("options", {f"option{i}": "x" for i in range(10_000)}),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_definition_that_no_table_can_have_is_refused(wire: Wire, name: str, field: str, value: object) -> None:
    fields = {"primary_key": ["player"], field: value}
    request = table_pb2.CreateTableRequest(name=name, arrow_schema=SCORES.serialize().to_pybytes(), **fields)  # type: ignore[arg-type]
    assert_refused(refusal(wire.tables.CreateTable, request))
    assert refusal(wire.tables.GetTable, table_pb2.GetTableRequest(name=name)).reason == "TABLE_NOT_FOUND"


# Made by the test, because some are large and every worker collects this module.
SCANS: dict[str, Callable[[], dict[str, Any]]] = {
    "an unknown column": lambda: {"columns": scan_pb2.ColumnNames(names=["k", "nobody"])},
    "a column twice": lambda: {"columns": scan_pb2.ColumnNames(names=["k", "k"])},
    "a long odd column": lambda: {"columns": scan_pb2.ColumnNames(names=["\U0001f600" * 5000])},
    "a hundred thousand columns": lambda: {"columns": scan_pb2.ColumnNames(names=[str(i) for i in range(100_000)])},
    "an unknown bucket": lambda: {"buckets": [3]},
    "a huge bucket": lambda: {"buckets": [2**32 - 1]},
    "a bucket twice": lambda: {"buckets": [1, 1]},
    "millions of buckets": lambda: {"buckets": [0] * 8_000_000},
    "millions of columns": lambda: {"columns": scan_pb2.ColumnNames(names=["k"] * 4_000_000)},
    "too many rows a chunk": lambda: {"chunk": scan_pb2.ChunkBounds(max_rows=65_537)},
    "too few bytes a chunk": lambda: {"chunk": scan_pb2.ChunkBounds(max_bytes=1023)},
    "too many bytes a chunk": lambda: {"chunk": scan_pb2.ChunkBounds(max_bytes=2**32 - 1)},
}


@pytest.mark.parametrize("scan_name", SCANS)
def test_a_scan_that_makes_no_sense_is_refused(wire: Wire, table: str, scan_name: str) -> None:
    request = scan_pb2.ScanKvRequest(table=table, **SCANS[scan_name]())
    assert_refused(refusal(wire.scans.ScanKv, request))
    assert wire.server().live_scans == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"key_range": scan_pb2.KeyRange(start=b"\xff" * 100_000)},
        {"key_range": scan_pb2.KeyRange(end=b"\xff" * 100_000)},
        {"buckets": [0] * 2000},
        {"splits": 1025},
    ],
    ids=["a long start", "a long end", "a bucket very often", "too many splits"],
)
def test_a_split_whose_answer_could_not_be_sent_is_refused(wire: Wire, table: str, asked: dict[str, object]) -> None:
    """Both bounds of a range may be in every split."""
    snapshot = wire.pin(table).snapshot.snapshot_id
    request = snapshot_pb2.SplitSnapshotRequest(snapshot_id=snapshot, **({"splits": 1024} | asked))  # type: ignore[arg-type]
    assert_refused(refusal(wire.snapshots.SplitSnapshot, request))
    wire.snapshots.ReleaseSnapshot(snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=snapshot))


@pytest.mark.parametrize("buckets", [[3], [0, 0], [2**32 - 1]])
def test_a_count_of_no_such_buckets_is_refused(wire: Wire, table: str, buckets: list[int]) -> None:
    assert_refused(refusal(wire.lookups.Count, lookup_pb2.CountRequest(table=table, buckets=buckets)))


def test_a_limit_beyond_all_rows_is_no_limit(wire: Wire, table: str) -> None:
    answers = list(wire.scans.ScanKv(scan_pb2.ScanKvRequest(table=table, limit=2**64 - 1), timeout=60))
    assert answers[-1].trailer.rows_returned == 3


@pytest.mark.parametrize("schema_id", [2, 17, 2**32 - 1])
def test_rows_for_a_schema_that_never_was_are_refused(wire: Wire, table: str, schema_id: int) -> None:
    request = write_pb2.UpsertRequest(table=table, rows=good_request(), schema_id=schema_id)
    assert_refused(refusal(wire.writes.Upsert, request))


def test_a_field_of_the_future_is_refused_in_every_call(wire: Wire, table: str, name: str) -> None:
    create = table_pb2.CreateTableRequest(
        name=f"{name}x", arrow_schema=SCORES.serialize().to_pybytes(), primary_key=["player"]
    )
    columns = scan_pb2.ColumnNames.FromString(scan_pb2.ColumnNames(names=["k"]).SerializeToString() + FIELD_777)
    live = scan_pb2.LiveKv.FromString(FIELD_777)
    calls = [
        (wire.tables.CreateTable, create),
        (wire.tables.DropTable, table_pb2.DropTableRequest(name=table)),
        (wire.tables.AlterTable, table_pb2.AlterTableRequest(name=table)),
        (wire.tables.GetTable, table_pb2.GetTableRequest(name=table)),
        (wire.tables.ListTables, table_pb2.ListTablesRequest()),
        (wire.writes.Upsert, write_pb2.UpsertRequest(table=table, rows=good_request())),
        (wire.writes.Delete, write_pb2.DeleteRequest(table=table)),
        (wire.lookups.Lookup, lookup_pb2.LookupRequest(table=table)),
        (wire.lookups.Count, lookup_pb2.CountRequest(table=table)),
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table)),
        (wire.admin.Stats, admin_pb2.StatsRequest()),
    ]
    operand = expression_pb2.Predicate(
        connective=expression_pb2.CONNECTIVE_NOT, operands=[expression_pb2.Predicate.FromString(FIELD_777)]
    )
    futures = [(method, type(request).FromString(request.SerializeToString() + FIELD_777)) for method, request in calls]
    futures += [
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table, columns=columns)),
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table, live_kv=live)),
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table, chunk=scan_pb2.ChunkBounds.FromString(FIELD_777))),
        (wire.scans.ScanKv, scan_pb2.ScanKvRequest(table=table, where=operand)),
        (wire.lookups.Lookup, lookup_pb2.LookupRequest(table=table, columns=columns)),
    ]
    before = wire.written(table)
    for method, request in futures:
        assert refusal(method, request).reason == "UNKNOWN_FIELD"
    assert wire.written(table) == before


def test_bytes_that_are_no_message_are_refused(wire: Wire) -> None:
    for call in ("ScanService/ScanKv", "WriteService/Upsert", "TableService/CreateTable", "LookupService/Lookup"):
        make = wire.channel.unary_stream if "Scan" in call else wire.channel.unary_unary
        method = make(f"/scankv.v1.{call}", request_serializer=bytes, response_deserializer=bytes)
        assert refusal(method, b"\xff" * 64).code in ("INTERNAL", "INVALID_ARGUMENT", "UNKNOWN")


def test_a_call_that_does_not_exist_is_refused(wire: Wire) -> None:
    method = wire.channel.unary_unary("/scankv.v1.TableService/EraseAll", bytes, bytes)
    assert refusal(method, b"").code == "UNIMPLEMENTED"


def test_the_health_service_lists_all_services_and_refuses_long_names(wire: Wire) -> None:
    health = health_pb2_grpc.HealthStub(wire.channel)
    statuses = health.List(health_pb2.HealthListRequest()).statuses
    assert {"", "scankv.v1.ScanService", "scankv.v1.AdminService"} <= set(statuses)
    assert {each.status for each in statuses.values()} == {health_pb2.HealthCheckResponse.SERVING}
    assert_refused(refusal(health.Watch, health_pb2.HealthCheckRequest(service="x" * 300)))
