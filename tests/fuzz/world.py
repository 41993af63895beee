"""The tables that fuzzed calls use, and the values that a server accepts: names, ids, tokens, rows and keys."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import agg, sync
from scankv.model.errors import ScanKvError
from scankv.model.expressions.sql_text import parse_where
from scankv.model.expressions.wire import to_proto
from scankv.model.rows.key_values import KeyValues
from scankv.model.rows.row_values import RowValues
from scankv.v1 import scan_pb2, snapshot_pb2, transaction_pb2, transaction_pb2_grpc
from tests.support.tables import ipc_stream
from tests.support.wire import Wire

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.fuzz.messages import Known

SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("b", pa.binary()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
NESTED: Final = pa.schema([*SCHEMA, ("items", pa.list_(pa.int16())), ("pairs", pa.map_(pa.string(), pa.int64()))])
TABLES: Final = ("fuzz.plain", "fuzz.indexed", "fuzz.summed", "fuzz.nested", "fuzz.log")
KEPT: Final = "kept.rows"
KEPT_ROWS: Final = 500
_ROWS: Final = 40
_MOST: Final = 40
# Fields of responses whose values requests send again, by the name that requests have for them.
_HARVESTED: Final = {
    "snapshot_id": "snapshot_id",
    "view_id": "same_view_as",
    "scan_id": "scan_id",
    "lock_id": "lock_id",
    "token": "token",
    "version": "if_changed_since",
    "resume_token": "resume_token",
    "table_incarnation": "table_incarnation",
    "incarnation": "table_incarnation",
    "start": "start",
    "end": "end",
    "consumer_fence": "consumer_fence",
    "epoch": "epoch",
}


def row(number: int) -> dict[str, Any]:
    """Returns the row with a number. Its values depend on the number only."""
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number)
    return {
        "k": number,
        "s": f"key {number % 7}\x00",
        "n": None if number % 5 == 0 else number,
        "x": number / 3,
        "d": None,
        "b": bytes([number % 256]) * (number % 4),
        "flag": number % 2 == 0,
        "at": at,
    }


class FuzzedTables:
    """The tables of a server for fuzzed calls, the values that name them, and one table that no fuzzed call names.

    Args:
        url: The address of the server.
        token: A token that may do everything. None: the server asks for none.

    Attributes:
        known: Values for the fields of requests, by field name.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._token = token
        with self._connect() as client:
            kept = client.create_table(KEPT, SCHEMA, primary_key=["k", "s"], buckets=3)
            kept.upsert([row(number) for number in range(KEPT_ROWS)])
        self.known = self._fixed_values()
        self.renew()

    def _connect(self) -> sync.Client:
        return sync.connect(self._url, token=self._token)

    def check_kept_rows(self) -> None:
        """Asserts that the table that no call names has all of its rows."""
        with self._connect() as client:
            table = client.table(KEPT)
            assert table.count() == KEPT_ROWS
            assert table.get((17, "key 3\x00")) == row(17)
            assert table.scan().to_arrow().num_rows == KEPT_ROWS

    def renew(self) -> None:
        """Creates the tables that were dropped, and pins, locks and transactions for further calls."""
        with self._connect() as client, Wire(self._url, self._token) as wire:
            for name in TABLES:
                with suppress(ScanKvError):
                    client.table(name)
                    continue
                with suppress(ScanKvError):
                    self._create(client, name)
            for name in TABLES:
                with suppress(Exception):  # A fuzzed call may have added columns that must not be null, or all pins.
                    self._collect(wire, name)

    def harvest(self, response: Message) -> None:
        """Remembers ids and tokens of a response for further requests."""
        for field, value in response.ListFields():
            if field.message_type is not None:
                if not field.message_type.GetOptions().map_entry:
                    for part in value if field.is_repeated else (value,):
                        self.harvest(part)
            elif (name := _HARVESTED.get(field.name)) and not field.is_repeated and value:
                self._remember(name, value)

    def _remember(self, name: str, value: Any) -> None:
        values = self.known.setdefault(name, [])
        if value not in values:
            values.append(value)
            del values[:-_MOST]

    def _create(self, client: sync.Client, name: str) -> None:
        options: dict[str, Any] = {}
        schema = SCHEMA
        if name.endswith("indexed"):
            options = {"indexes": [["n"], ["s", "x"]], "primary_key": ["k"]}
        elif name.endswith("summed"):
            options = {"aggregators": {"n": agg.sum(), "x": agg.max()}, "primary_key": ["k"]}
            options["merge_engine"] = "aggregate"
        elif name.endswith("nested"):
            schema, options = NESTED, {"primary_key": ["s", "k"], "columnar_base": "eager"}
        elif name.endswith("log"):
            options = {"primary_key": [], "bucket_key": ["n"]}
        else:
            options = {"primary_key": ["k"]}
        table = client.create_table(name, schema, buckets=2, **options)
        rows = [row(number) for number in range(_ROWS)]
        if table.primary_key:
            table.upsert(rows)
        else:
            table.append(rows)
        with suppress(ScanKvError):
            table.delete([(3,)])

    def _collect(self, wire: Wire, name: str) -> None:
        pinned = wire.pin(name, ttl_millis=600_000)
        self.harvest(pinned)
        for source in (
            scan_pb2.ScanKvRequest(table=name, chunk=scan_pb2.ChunkBounds(max_rows=7)),
            scan_pb2.ScanKvRequest(table=name, log=scan_pb2.Changelog(earliest=scan_pb2.LogEarliest(),
                                                                      stop_latest=scan_pb2.LogLatest())),
            scan_pb2.ScanKvRequest(table=name, log=scan_pb2.Changelog(full=scan_pb2.LogFull(), net_changes=True,
                                                                      stop_latest=scan_pb2.LogLatest())),
            scan_pb2.ScanKvRequest(table=name, snapshot=scan_pb2.PinnedSnapshot(
                snapshot_id=pinned.snapshot.snapshot_id), ordered=True),
        ):  # fmt: skip
            if name.endswith("log") and (source.ordered or source.log.net_changes):
                continue  # which needs a primary key
            for response in wire.scans.ScanKv(source, timeout=30):
                self.harvest(response)
        split = snapshot_pb2.SplitSnapshotRequest(snapshot_id=pinned.snapshot.snapshot_id, splits=3)
        self.harvest(wire.snapshots.SplitSnapshot(split))
        transactions = transaction_pb2_grpc.TransactionServiceStub(wire.channel)
        self.harvest(
            transactions.BeginTransaction(
                transaction_pb2.BeginTransactionRequest(
                    conflict_mode=transaction_pb2.CONFLICT_MODE_LAST_WINS, ttl_millis=60_000
                )
            )
        )

    def _fixed_values(self) -> Known:
        rows = [row(number) for number in range(9)]
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        nested = pa.RecordBatch.from_pylist(rows, schema=NESTED)
        streams = [
            ipc_stream(SCHEMA, batch),
            ipc_stream(SCHEMA, batch.slice(2, 1), batch.slice(4, 2)),
            ipc_stream(SCHEMA),
            ipc_stream(NESTED, nested),
            ipc_stream(pa.schema([SCHEMA.field("k"), SCHEMA.field("n")]), batch.select(["k", "n"])),
        ]
        keys = [batch.select(names) for names in (["k"], ["s", "k"], ["k", "s"])]
        key_streams = [ipc_stream(each.schema, each) for each in keys]
        encoded = [RowValues(1, SCHEMA.types).encode(list(each.values())) for each in rows]
        encoded_keys = [KeyValues([pa.int64()]).encode([number]) for number in range(9)]
        encoded_keys += [KeyValues([pa.string(), pa.int64()]).encode([row(n)["s"], n]) for n in range(9)]
        columns = [*SCHEMA.names, "items", "pairs", "_log_offset", "nobody"]
        schemas = [SCHEMA.serialize().to_pybytes(), NESTED.serialize().to_pybytes()]
        added = [pa.schema([(name, pa.int32())]).serialize().to_pybytes() for name in ("more", "n", "most")]
        arrays = [pa.array([1, 2, None, 7]), pa.array(["key 1\x00", "key 2\x00"]), pa.array([1.5, float("nan")])]
        known: Known = {
            "table": [*TABLES, *TABLES, *TABLES, "fuzz.none"],
            "names": columns,
            "columns": columns,
            "column": columns,
            "by": columns,
            "primary_key": ["k", "s"],
            "bucket_key": ["k", "s"],
            "group_by": ["s", "flag", "k", "n"],
            "sequence": ["n", "x"],
            "version_column": ["n", "at"],
            "sequence_columns": ["n", "at"],
            "rows": streams,
            "keys": key_streams,
            "arrow_schema": schemas,
            "add_columns": added,
            "encoded_rows": encoded,
            "encoded_keys": encoded_keys,
            "start": encoded_keys,
            "end": encoded_keys,
            "binary": [b"", b"\x01", b"a"],
            "text": ["key 1\x00", "key", ""],
            "decimal": ["1", "-2.5", "12345678901234567890.5", "0.00"],
            "integer": [0, 1, 3, -1, 2**63 - 1],
            "type": ["int64", "string", "double", "timestamp(us, UTC)", "date", "decimal(12, 2)", "list<int8>", "null"],
            "buffers": [b"", *(each.to_pybytes() for array in arrays for each in array.buffers() if each)],
            "length": [0, 1, 2, 4, 100_001],
            "function": ["sum", "max", "last_value", "collect", "nobody"],
            "options.key": ["merge_engine", "columnar_base", "compression", "delete_behavior", "changelog", "nobody"],
            "options": ["aggregate", "first_row", "partial_update", "full", "auto", "off", "eager", "lz4", "1h", "-1"],
            "parameters.key": ["ignore_retract", "distinct", "separator"],
            "by_bucket.key": [0, 1, 2, 5],
            "by_bucket": [-1, 0, 1, 10, 40, 41, 10**6],
            "schema_id": [0, 1, 1, 2, 17],
            "sequence_number": [0, 1, 2, 3],
            "id": ["one", "two", "three"],
            "part": ["one", "two"],
            "owner": ["one", "two"],
            "writer": ["one", "two"],
            "attempt": ["one", "two"],
            "consumer_id": ["one", "two", "three"],
            "lease_id": ["0" * 32, "1" * 32],
            "epoch": [0, 1, 2],
            "acked_below": [0, 1, 2],
            "requests": [0, 1, 2],
            "n": [0, 1, 10, 100_001],
            "splits": [0, 1, 2, 5, 1025],
            "host": ["", "localhost"],
            "service": ["", "scankv.v1.ScanService", "nobody"],
            "file_containing_symbol": ["scankv.v1.ScanService", "nobody"],
        }  # fmt: skip
        known["name"] = known["table"]
        where = parse_where("k between 3 and 9 and (s like 'key%' or n is null) and not x > 2", SCHEMA)
        known["Predicate"] = [to_proto(where).SerializeToString()]
        return known
