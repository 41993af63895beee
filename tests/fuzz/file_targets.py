"""Files from outside, for fuzzing: rows to load, tables in open formats, manifests of backups."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
import zipfile
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import deltalake
import pyarrow as pa
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from scankv.formats.blocks import BadRowError, BadRows
from scankv.formats.files import BadFile, Format, open_input
from scankv.formats.reader import infer_schema, read_blocks
from scankv.lake.formats import open_lake_table
from scankv.lake.lake_table import LakeColumn, LakeState
from scankv.lake.sources.sources import open_source
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import ScanKvError
from scankv.model.types.conform import check_batch
from scankv.v1 import transaction_pb2
from streaming_server.clock import StoredTimes
from streaming_server.storage.backup.archive_segment import (
    ArchiveGap,
    ArchiveSegment,
    BucketSegment,
    LogPiece,
    TableChange,
    read_segment,
)
from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredFile, StoredTable, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.tables.consumers import ConsumerRecord
from streaming_server.storage.transactions.decisions import CommittedTransaction
from tests.fuzz.world import SCHEMA, row
from tests.support.tables import define, ipc_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scankv.lake.sources.sources import SourceFormat

_BATCH: Final = pa.RecordBatch.from_pylist([row(number) for number in range(5)], schema=SCHEMA)
_DEEP: Final = pa.schema(
    [("k", pa.int64()), ("list", pa.list_(pa.list_(pa.float32()))), ("map", pa.map_(pa.string(), pa.decimal128(9, 2)))]
)
_DEEP_ROWS: Final[list[dict[str, Any]]] = [
    {"k": 1, "list": [[1.5, None], []], "map": [{"key": "a", "value": 1.25}]},
    {"k": 2**60, "list": None, "map": []},
]
_ID: Final = "20260101-000000-000000"


def file_reader(format_: Format) -> Callable[[bytes], None]:
    """Returns what loads a file as `scankv load --create` does, and as `load --on-error skip` into two tables."""

    def read(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix="fuzzed-") as file:
            file.write(data)
            file.flush()
            with suppress(BadFile, ScanKvError), open_input(file.name, format_, again=True) as source:
                infer_schema(source, BadRows(source.name, skip=True))
            for schema in (_DEEP, SCHEMA):
                with suppress(BadFile, ScanKvError), open_input(file.name, format_) as source:
                    bad = BadRows(source.name, skip=True)
                    for block in read_blocks(source, schema, bad):
                        _convert(block, schema)

    return read


def _convert(block: Any, schema: pa.Schema) -> None:
    for start, stop in ((0, len(block)), *((at, at + 1) for at in range(min(len(block), 5)))):
        with suppress(BadRowError, ScanKvError):
            check_batch(block.convert(start, stop), schema)
    if len(block):
        block.where(0)


def csv_files() -> list[bytes]:
    """Returns CSV, also compressed."""
    text, deep, zipped = io.StringIO(), io.StringIO(), io.BytesIO()
    writer = csv.writer(text)
    writer.writerow(SCHEMA.names)
    writer.writerows([["" if value is None else value for value in each.values()] for each in _BATCH.to_pylist()])
    writer = csv.writer(deep, delimiter=";")
    writer.writerow(_DEEP.names)
    writer.writerows([[json.dumps(value) for value in each.values()] for each in _DEEP_ROWS])
    plain = text.getvalue().encode()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("rows.csv", plain)
    return [plain, deep.getvalue().encode(), gzip.compress(plain), zipped.getvalue()]


def json_files() -> list[bytes]:
    """Returns JSON lines: of plain and of nested values, and nested deeply."""
    rows = [{"k": 1, "s": "a", "n": 2, "x": 1.5, "flag": True}, {"k": 2, "s": "b", "at": "2026-01-01T00:00:00Z"}]
    deep = ['{"k": ' + "[" * depth + "]" * depth + "}\n" for depth in (90, 5_000)]
    return [
        *("".join(json.dumps(each) + "\n" for each in lines).encode() for lines in (rows, _DEEP_ROWS)),
        *(line.encode() for line in deep),
        json.dumps({f"c{number}": number for number in range(200)}).encode(),
    ]


def parquet_files() -> list[bytes]:
    """Returns Parquet files with and without dictionaries, compression and nested columns."""
    files = [io.BytesIO() for _ in range(3)]
    parquet.write_table(pa.Table.from_batches([_BATCH]), files[0])
    parquet.write_table(pa.Table.from_batches([_BATCH]), files[1], compression="zstd", use_dictionary=False)
    parquet.write_table(pa.Table.from_pylist(_DEEP_ROWS[:1], schema=_plain(_DEEP)), files[2], version="1.0")
    return [file.getvalue() for file in files]


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != "map"])


def arrow_files() -> list[bytes]:
    """Returns Arrow IPC streams and files, one of them compressed."""
    sinks = [pa.BufferOutputStream() for _ in range(2)]
    for sink, options in zip(sinks, (None, pa.ipc.IpcWriteOptions(compression="lz4")), strict=True):
        with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
            writer.write_batch(_BATCH)
    return [ipc_stream(SCHEMA, _BATCH), *(sink.getvalue().to_pybytes() for sink in sinks)]


def source_reader(format_: SourceFormat) -> Callable[[bytes], None]:
    """Returns what reads a table for a bootstrap. The first byte says which of its files has the other bytes."""

    def read(data: bytes) -> None:
        location, files = _table(format_)
        path = files[data[0] % len(files)] if data else files[0]
        original = path.read_bytes()
        try:
            path.write_bytes(data[1:])
            for _ in open_source(location, format_).reader:
                pass
        finally:
            path.write_bytes(original)

    return read


def source_files(format_: SourceFormat) -> Sequence[bytes]:
    """Returns the files of a table, each with its number before it."""
    return [bytes([number]) + path.read_bytes() for number, path in enumerate(_table(format_)[1])]


@cache
def _table(format_: SourceFormat) -> tuple[str, list[Path]]:
    """Creates a table. Returns its location, and the files that describe it or have its rows."""
    # It ends with the process.
    holder = _table.holder = getattr(_table, "holder", {})  # type: ignore[attr-defined]
    holder[format_] = tempfile.TemporaryDirectory(prefix="fuzzed-table-")
    root = Path(holder[format_].name) / "t"
    rows = pa.table({"k": [1, 2], "s": ["a", "b"]})
    match format_:
        case "delta":
            deltalake.write_deltalake(root, rows)
            patterns = ["_delta_log/*.json", "*.parquet"]
        case "iceberg":
            with closing(SqlCatalog("fuzzed", uri="sqlite://", warehouse=f"file://{root.parent}")) as catalog:
                catalog.create_namespace("n")
                table = catalog.create_table("n.t", rows.schema, location=f"file://{root}")
                table.append(rows)
            for old in sorted(root.glob("metadata/*.metadata.json"))[:-1]:
                old.unlink()
            patterns = ["metadata/*.metadata.json", "metadata/*.avro", "data/*.parquet"]
        case "parquet":
            root.mkdir()
            parquet.write_table(rows, root / "a.parquet")
            patterns = ["*.parquet"]
    files = sorted(path for pattern in patterns for path in root.glob(pattern))
    # A directory of Iceberg does not say which version is the newest.
    location = next((path for path in files if path.name.endswith(".metadata.json")), root)
    assert open_source(str(location), format_).reader.read_all().to_pylist() == rows.to_pylist()
    return str(location), files


def delta_log(data: bytes) -> None:
    """Reads a published Delta table whose commit (first byte even) or checkpoint (odd) has the other bytes."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as directory:
        log = Path(directory) / "_delta_log"
        log.mkdir()
        name = f"{0:020}.checkpoint.parquet" if data[:1] and data[0] % 2 else f"{0:020}.json"
        (log / name).write_bytes(data[1:])
        table = open_lake_table(directory, "delta")
        if (version := table.load()) is not None:
            for file in version.files:
                table.paths_of(file)
        if name.endswith(".json"):
            table.view_time(0)


def delta_logs() -> list[bytes]:
    """Returns a commit and a checkpoint of a published Delta table, each with a byte before it."""
    state = LakeState(
        table="t.t",
        content="rows",
        log_offsets=LogOffsets.of({0: 1}, "a"),
        view_time="2026-01-01T00:00:00+00:00",
        schema_id=1,
        expiry="",
        partition_by=(),
        schemas={1: [LakeColumn(1, "k", "int64")]},
        commit_id="c",
    )
    vector = {"storageType": "u", "pathOrInlineDv": "a" * 20, "offset": 1, "sizeInBytes": 9, "cardinality": 1}
    add = {"path": "a.parquet", "partitionValues": {"p": "1"}, "size": 1, "tags": {"a": "b"}, "stats": "{}"}
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"], "writerFeatures": []}},
        {"metaData": {"configuration": state.to_properties()}},
        {"add": {**add, "deletionVector": vector}},
        {"remove": {"path": "b.parquet", "deletionTimestamp": 1}},
    ]
    texts = pa.map_(pa.string(), pa.string())
    types = {"configuration": texts, "partitionValues": texts, "tags": texts}
    columns = {}
    for name in ("protocol", "metaData", "add", "remove"):
        fields = next(action[name] for action in actions if name in action)
        type_ = pa.struct([(key, types.get(key) or pa.scalar(value).type) for key, value in fields.items()])
        columns[name] = pa.array([action.get(name) for action in actions], type_)
    checkpoint = io.BytesIO()
    parquet.write_table(pa.table(columns), checkpoint)
    return [b"\0" + "\n".join(map(json.dumps, actions)).encode(), b"\1" + checkpoint.getvalue()]


def manifest(data: bytes) -> None:
    """Reads the manifest of a backup with this content."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as directory:
        store = BackupStore(directory)
        _store(store, f"manifests/{_ID}.json", data, lambda content: store.write_manifest(_ID, content))
        found = read_manifest(store, _ID)
        json.dumps([found.to_json(), found.bytes, found.objects, [table.rows for table in found.tables]])
        _answer(found.committed)


def segment(data: bytes) -> None:
    """Reads a segment of an archive with this content."""
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as directory:
        store = BackupStore(directory)
        _store(store, f"archive/{_ID}.json", data, lambda content: store.write_segment(_ID, content))
        found = read_segment(store, _ID)
        json.dumps([found.to_json(), found.data])
        _answer(found.committed)


def _answer(committed: Sequence[Mapping[str, Any]]) -> None:
    """Answers repeated commits, as a server does after a restore."""
    for each in committed:
        commit = CommittedTransaction.from_json(dict(each))
        found = transaction_pb2.CommitTransactionResponse(rows=commit.rows)
        for name, offsets in commit.log_offsets.items():
            found.tables.add(table=name, table_incarnation=commit.tables[name], log_offsets=offsets)


def _store(store: BackupStore, name: str, data: bytes, write: Callable[[Any], None]) -> None:
    try:
        # With the right checksum.
        write(json.loads(data))
    except (ValueError, RecursionError):
        path = Path(store.location) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


_TIMES: Final = StoredTimes(service=1, commit=2, wall=3, uptime=4, boot="b", jumped=5, agreed=6, doubtful=((1, 2),))
_CONSUMER: Final = ConsumerRecord(consumer_id="c", fence=1, token=b"token", committed_micros=7, moved_micros=8)
_DEFINITION: Final = define(SCHEMA, "s", "k", buckets=2)
COMMIT: Final = CommittedTransaction(
    number=1,
    token="t",
    id="job:1",
    micros=5,
    served_micros=6,
    rows=7,
    tables={"a.b": "a" * 32},
    log_offsets={"a.b": {0: 3, 1: 4}},
    principal="etl",
)


def manifests() -> list[bytes]:
    """Returns the manifest of a backup with one table."""
    file = StoredFile(path="buckets/0001/CURRENT", size=16, sha256="a" * 64, checksum="c" * 32, tail="b" * 64)
    table = StoredTable(definition=_DEFINITION, states={1: BucketState()}, files=(file,), consumers=(_CONSUMER,))
    content = BackupManifest(
        backup_id=_ID,
        micros=1,
        pause_micros=2,
        seconds=0.5,
        directory_format=3,
        times=_TIMES,
        epoch=4,
        committed=(COMMIT.to_json(),),
        tables=(table,),
        left_out={"a.b": "why"},
        new_bytes=6,
    )
    return [json.dumps(content.to_json()).encode()]


def segments() -> list[bytes]:
    """Returns a segment of an archive."""
    piece = LogPiece(log=1, start=0, size=10, data=f"{_ID}-0001.wal", offset=5, checksum="c" * 32)
    content = ArchiveSegment(
        segment_id=_ID,
        previous="",
        since_micros=1,
        gap_micros=0,
        micros=2,
        ended_micros=3,
        times=_TIMES,
        changes=(TableChange(micros=1, incarnation="a" * 32, definition=_DEFINITION),),
        consumers={"a" * 32: (_CONSUMER,)},
        committed=(COMMIT.to_json(),),
        buckets={"a" * 32: {0: BucketSegment(families=("default",), pieces=(piece,))}},
        left_out={"b" * 32: "why"},
        gaps={"c" * 32: ArchiveGap(micros=1, why="why")},
    )
    return [json.dumps(content.to_json()).encode()]
