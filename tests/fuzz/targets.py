"""One function for each decoder of outside bytes, and valid inputs to begin with. It may raise typed errors only.

An input has its checksum repaired where one is expected, so that random changes get past it.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import pyarrow as pa
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from scankv.cli.positions import parse_start, parse_stop
from scankv.formats.files import Format
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.errors import ScanKvError, ServerRefused, UsageError
from scankv.model.expressions.binding import bind
from scankv.model.expressions.evaluation import evaluate
from scankv.model.expressions.key_planning import plan_keys
from scankv.model.expressions.sql_text import parse_where
from scankv.model.expressions.wire import from_proto, to_proto
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_parts import point_text, range_text
from scankv.model.keys.key_range import KeyRange
from scankv.model.rows.key_values import KeyValues
from scankv.model.rows.row_values import RowValues
from scankv.model.tables.schema import TableDefinition
from scankv.model.types.types import parse_schema
from scankv.v1 import expression_pb2
from streaming_server.engine.bucket.request_rows import read_request
from streaming_server.scan.changes.log_token import (
    LaterView,
    LogPosition,
    LogTokenWriter,
    NetPosition,
    RescanPosition,
    parse_log_token,
)
from streaming_server.scan.chunk_source import ScanPosition, View
from streaming_server.scan.resume_token import Fingerprint, TokenWriter, read_token
from streaming_server.services.errors import refuse_unknown_fields
from streaming_server.services.message_shape import check_shape
from streaming_server.services.table import schema_of
from streaming_server.storage.rows.table_codec import TableCodec
from tests.fuzz.file_targets import (
    arrow_files,
    csv_files,
    delta_log,
    delta_logs,
    file_reader,
    json_files,
    manifest,
    manifests,
    parquet_files,
    segment,
    segments,
    source_files,
    source_reader,
)
from tests.fuzz.token_targets import bearer_token, bearer_tokens, claims, signed_claims
from tests.fuzz.world import NESTED, SCHEMA, row
from tests.support.hostile_requests import hostile_requests
from tests.support.tables import define, ipc_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FINGERPRINT: Final = Fingerprint.of(table=["t"], schema=b"s", query=["q"])
_ROWS: Final = [row(number) for number in range(20)]
_BATCH: Final = pa.RecordBatch.from_pylist(_ROWS, schema=SCHEMA)
_DEFINITION: Final = define(SCHEMA, "s", "k", buckets=2)
_DEEP: Final = pa.schema(
    [*NESTED, ("deep", pa.list_(pa.list_(pa.string()))), ("parts", pa.struct([("a", pa.list_(pa.binary()))]))]
)
_DEEP_DEFINITION: Final = define(_DEEP, "s", "k", buckets=2)
_KEYS: Final = KeyCodec([pa.string(), pa.int64()], ["s", "k"])


@dataclass(frozen=True)
class Target:
    """A decoder to fuzz.

    Attributes:
        run: Decodes an input. Returns, or raises one of `refusals`.
        seeds: Returns valid inputs.
        refusals: The errors by which the decoder refuses an input.
        weight: How many times fewer inputs the decoder gets in `make test`, because each takes long.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    refusals: tuple[type[Exception], ...] = (ServerRefused,)
    weight: int = 1

    def __call__(self, data: bytes) -> None:
        """Decodes an input. Raises what the decoder must not raise."""
        with suppress(*self.refusals):
            self.run(data)


def _checked(data: bytes) -> bytes:
    return data + struct.pack("<I", google_crc32c.value(data))


def _scan_token(data: bytes) -> None:
    parts = _FINGERPRINT.table + _FINGERPRINT.schema + _FINGERPRINT.query
    read_token(_checked(data[:1] + parts + data[13:]), _FINGERPRINT)


def _scan_tokens() -> list[bytes]:
    writer = TokenWriter(_FINGERPRINT, View({0: 7, 3: 9}, 1, 0))
    return [writer.token(ScanPosition(3, b"key"), left)[:-4] for left in (None, 17)]


def _log_token(data: bytes) -> None:
    token = parse_log_token(_checked(data))
    # What the server accepts, it can write again.
    LogTokenWriter(Fingerprint(token.table, b"", token.query)).token(token.position, token.remaining)


def _log_tokens() -> list[bytes]:
    writer, at = LogTokenWriter(_FINGERPRINT), ScanPosition(1, b"key")
    offsets = {0: 4, 1: 2**40}
    positions = [
        LogPosition(offsets),
        LogPosition(offsets, at, (LaterView(at, {0: 1, 1: 2}), LaterView(at, {0: 3, 1: 4})), True),
        LogPosition(offsets, net={1: NetPosition(9, 4, 100)}),
        LogPosition(offsets, rescans={0: RescanPosition(9, b"key"), 1: RescanPosition(10, b"")}),
    ]
    return [writer.token(each, None)[:-4] for each in positions]


def _rows(data: bytes) -> None:
    read_request(data, SCHEMA, pa.field("_change_type", pa.string()))


def _row_streams() -> list[bytes]:
    good = [ipc_stream(SCHEMA, _BATCH), ipc_stream(SCHEMA), ipc_stream(SCHEMA, _BATCH, _BATCH.slice(3, 2))]
    return [*good, *(each for each in hostile_requests().values() if len(each) < 20_000)]


def _nested_rows(data: bytes) -> None:
    batch = read_request(data, _DEEP)
    codec = TableCodec.of(_DEEP_DEFINITION)
    codec.rows.encode(batch)
    codec.keys.encode(codec.keys.canonicalize(batch))


def _nested_streams() -> list[bytes]:
    values = {"items": [1, None], "pairs": [("a", 1), ("b", None)], "deep": [["a"], [], None], "parts": {"a": ["b"]}}
    rows: list[list[dict[str, Any]]] = [[each | values for each in _ROWS], _ROWS[:3], []]
    return [ipc_stream(_DEEP, pa.RecordBatch.from_pylist(each, schema=_DEEP)) for each in rows]


def _table(data: bytes) -> None:
    schema = schema_of(data)
    TableDefinition.create(
        "a.b", schema, primary_key=schema.names[:1], buckets=1, options={}, incarnation="0" * 32, created_millis=0
    )


def _predicate(data: bytes) -> None:
    with suppress(DecodeError):
        message = expression_pb2.Predicate.FromString(data)
        refuse_unknown_fields(message)
        bound = bind(from_proto(message), SCHEMA)
        plan_keys(bound, _KEYS)
        evaluate(bound, _BATCH.select(bound.columns))


_WHERES: Final = (
    "k between 3 and 9 and (s like 'key%' or n is null) and not x > 2",
    "s in ('a', 'b') or x <= -1.5e3 or at < timestamp '2026-01-01T00:00:00Z' or flag = true",
    "d >= 1.25 and k in (1, 2, 3) and n <> k and s like '%x%'",
)


def _predicates() -> list[bytes]:
    return [to_proto(parse_where(text, SCHEMA)).SerializeToString() for text in _WHERES]


def _where(data: bytes) -> None:
    bind(parse_where(data.decode(errors="replace"), SCHEMA), SCHEMA)


def _type_text(data: bytes) -> None:
    parse_schema(data.decode(errors="replace"))


def _encoded_row(data: bytes) -> None:
    single = TableCodec.of(_DEFINITION).single
    assert single is not None
    _, values = single.read(data, 0)
    single.to_batch([values]).validate(full=True)


def _encoded_rows() -> list[bytes]:
    return [RowValues(1, SCHEMA.types).encode(list(each.values())) for each in _ROWS[:6]]


def _encoded_key(data: bytes) -> None:
    single = TableCodec.of(_DEFINITION).single
    assert single is not None
    values = single.read_key(data, 0)
    assert single.encode_key(values, 0) == data


def _encoded_keys() -> list[bytes]:
    return [KeyValues([pa.string(), pa.int64()]).encode([each["s"], each["k"]]) for each in _ROWS[:6]]


def _key_range(data: bytes) -> None:
    at = data[0] if data else 0
    found = KeyRange(data[1 : 1 + at], data[1 + at :] or None)
    range_text(found, _KEYS)
    point_text(data, _KEYS)


_MESSAGES: Final = ("ScanKvRequest", "UpsertRequest", "CreateTableRequest", "CommitTransactionRequest", "CountRequest")


def _message(data: bytes) -> None:
    # Repeated, because short messages are not inspected.
    for name in _MESSAGES:
        type_ = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(f"scankv.v1.{name}"))
        check_shape(data * (1 + 5000 // max(len(data), 1)), type_)
        with suppress(DecodeError):
            refuse_unknown_fields(type_.FromString(data))


def _positions(data: bytes) -> None:
    text = data.decode(errors="replace")
    for parse in (parse_start, parse_stop):
        with suppress(UsageError):
            parse("--from", text)
    LogOffsets.from_json(text)


def _position_texts() -> list[bytes]:
    texts = ["earliest", "last:10", "0=12,1=7", LogOffsets.of({0: 4, 1: 5}, "a" * 32).to_json(), "2026-01-01T00:00:00Z"]
    return [text.encode() for text in texts]


TARGETS: Final[dict[str, Target]] = {
    "bearer tokens": Target(bearer_token, bearer_tokens),
    "claims of tokens": Target(signed_claims, claims),
    "scan tokens": Target(_scan_token, _scan_tokens),
    "changelog tokens": Target(_log_token, _log_tokens),
    "rows": Target(_rows, _row_streams),
    "nested rows": Target(_nested_rows, _nested_streams),
    "table schemas": Target(_table, lambda: [each.serialize().to_pybytes() for each in (SCHEMA, NESTED)]),
    "predicates": Target(_predicate, _predicates),
    "where texts": Target(_where, lambda: [each.encode() for each in _WHERES], (ScanKvError,)),
    "type texts": Target(
        _type_text,
        lambda: [b"k int64 not null, s string, d decimal(12, 2)", b"a list<struct<x int8, y map<string, date>>>"],
        (ScanKvError,),
    ),
    "encoded rows": Target(_encoded_row, _encoded_rows),
    "encoded keys": Target(_encoded_key, _encoded_keys),
    "key ranges": Target(_key_range, lambda: [b"\x04" + key for key in _encoded_keys()]),
    "messages": Target(_message, lambda: [b"\x0a\x03a.b\x2a\x02\x00\x01"]),
    "positions": Target(_positions, _position_texts, (UsageError,)),
    "CSV files": Target(file_reader(Format.CSV), csv_files, weight=5),
    "JSON files": Target(file_reader(Format.JSONL), json_files, weight=5),
    "Parquet files": Target(file_reader(Format.PARQUET), parquet_files, weight=5),
    "Arrow files": Target(file_reader(Format.ARROW), arrow_files, weight=5),
    "Delta tables": Target(source_reader("delta"), lambda: source_files("delta"), (ScanKvError,), weight=5),
    "Delta logs": Target(delta_log, delta_logs, (ScanKvError,), weight=5),
    "Iceberg tables": Target(source_reader("iceberg"), lambda: source_files("iceberg"), (ScanKvError,), weight=5),
    "Parquet tables": Target(source_reader("parquet"), lambda: source_files("parquet"), (ScanKvError,), weight=5),
    "backup manifests": Target(manifest, manifests, weight=3),
    "archive segments": Target(segment, segments, weight=3),
}
"""The decoders of outside bytes, by what they decode."""
