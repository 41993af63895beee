"""Write requests that no correct client sends, by what is wrong with them, for a table with `SCHEMA`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tests.support.hostile_arrow import IpcMessage, changed, joined, split, with_schema_of
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("items", pa.list_(pa.int16())),
        ("pairs", pa.map_(pa.string(), pa.int64())),
    ]
)
"""Arrays of a batch: k, n, items, its values, pairs, its entries, keys and values. Buffers: see `_BUFFERS`."""

# The numbers of the buffers in a batch of SCHEMA: validity, offsets and data, in the order of the arrays.
_BUFFERS = {"k offsets": 1, "k data": 2, "n data": 4, "items offsets": 6, "pairs offsets": 10}
_HUGE = 2**62


def good_batch(rows: int = 3) -> pa.RecordBatch:
    """Returns rows that every table with `SCHEMA` accepts."""
    values: list[dict[str, Any]] = [
        {"k": f"key {i}", "n": i, "items": [i, None], "pairs": [("a", i), ("b", None)]} for i in range(rows)
    ]
    return pa.RecordBatch.from_pylist(values, schema=SCHEMA)


def good_request() -> bytes:
    """Returns a request that is accepted."""
    return ipc_stream(SCHEMA, good_batch())


def hostile_requests() -> dict[str, bytes]:
    """Returns requests that are wrong in one way each, by a name that says how."""
    good = good_request()
    requests = {
        "nothing": b"",
        "garbage": bytes(range(256)) * 40,
        "zeros": bytes(4096),
        "text": b"select * from scores;" * 100,
        "a cut-off stream": good[: len(good) // 2],
        "only a schema message, cut": good[:40],
        "a huge metadata length": struct.pack("<II", 0xFFFFFFFF, 0x7FFFFFFF) + good[8:],
        "a negative metadata length": struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) + good[8:],
        "an Arrow file": _arrow_file(),
        "LZ4 compression": ipc_stream(SCHEMA, good_batch(), options=pa.ipc.IpcWriteOptions(compression="lz4")),
        "ZSTD compression": ipc_stream(SCHEMA, good_batch(500), options=pa.ipc.IpcWriteOptions(compression="zstd")),
        "a dictionary column": _with_column("n", pa.array(["a", "b", "a"]).dictionary_encode()),
        "a dictionary inside a list": _with_column("items", _list_of(pa.array(["a", "b", "a"]).dictionary_encode())),
        "a run-end encoded column": _with_column("n", pa.RunEndEncodedArray.from_arrays([3], pa.array([5]))),
        "a null column": _with_column("n", pa.nulls(3)),
        "a union column": _with_column("n", _union()),
        "a view column": _with_column("k", pa.array(["a", "b", "c"], pa.string_view())),
        "a large string column": _with_column("k", pa.array(["a", "b", "c"], pa.large_string())),
        "an extension column": _with_column(
            "n", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1], pa.int8()))
        ),
        "a column name that is not text": good.replace(b"items\x00", b"\xff\xfe\xfa\xfb\xfc\x00", 1),
        "a column twice": ipc_stream(twice := _twice(), pa.RecordBatch.from_pylist([], schema=twice)),
        "text that is not UTF-8": good.replace(b"key 1", b"\xff\xfe\xc0\x80\x80", 1),
        "a null in a map's keys": _null_map_key(),
        "a long odd column name": _with_name("n", "\U0001f600" * 3000),
        "a column name of controls": _with_name("n", "n\r\n\x00x: y"),
        "ten thousand columns": _wide(10_000),
        "sixty levels of lists": _deep(60),
    }
    surgeries: dict[str, Callable[[IpcMessage], None]] = {
        "rows that are not there": lambda m: m.set_rows(_HUGE),
        "a negative number of rows": lambda m: m.set_rows(-3),
        "arrays of huge length": lambda m: m.change_nodes(lambda _, length, nulls: (_HUGE, nulls)),
        "arrays of negative length": lambda m: m.change_nodes(lambda _, length, nulls: (-1, nulls)),
        "arrays of different lengths": lambda m: m.change_nodes(lambda i, length, nulls: (length + (i == 1), nulls)),
        "nulls that are not there": lambda m: m.change_nodes(lambda _, length, nulls: (length, _HUGE)),
        "buffers beyond the body": lambda m: m.change_buffers(lambda _, at, size: (at + 2**40, size)),
        "buffers before the body": lambda m: m.change_buffers(lambda _, at, size: (-64, size)),
        "buffers of negative size": lambda m: m.change_buffers(lambda _, at, size: (at, -size)),
        "buffers of huge size": lambda m: m.change_buffers(lambda _, at, size: (at, _HUGE)),
        "buffers of no size": lambda m: m.change_buffers(lambda _, at, size: (at, 0)),
        "a huge body": lambda m: m.set_body_length(_HUGE),
        "a negative body": lambda m: m.set_body_length(-8),
        "string offsets beyond the data": _offsets("k offsets", [0, 5, 10, 2**31 - 1]),
        "string offsets that go back": _offsets("k offsets", [0, 10, 5, 15]),
        "negative string offsets": _offsets("k offsets", [-8, 5, 10, 15]),
        "negative list lengths": _offsets("items offsets", [0, 4, 2, 6]),
        "list offsets beyond the items": _offsets("items offsets", [0, 2, 4, 2**30]),
        "map offsets beyond the entries": _offsets("pairs offsets", [0, 2, 4, 600]),
        "no rows, and map offsets beyond the memory": _no_rows_and(_offsets("pairs offsets", [2**31 - 1] * 4)),
        "no rows, and list offsets before the memory": _no_rows_and(_offsets("items offsets", [-(2**31)] * 4)),
    }
    return requests | {name: changed(good, surgery) for name, surgery in surgeries.items()}


def _offsets(buffer: str, offsets: list[int]) -> Callable[[IpcMessage], None]:
    def surgery(message: IpcMessage) -> None:
        places: dict[int, int] = {}

        def remember(number: int, at: int, size: int) -> tuple[int, int]:
            places[number] = at
            return at, size

        message.change_buffers(remember)
        body = bytearray(message.body)
        struct.pack_into(f"<{len(offsets)}i", body, places[_BUFFERS[buffer]], *offsets)
        message.body = bytes(body)

    return surgery


def _no_rows_and(surgery: Callable[[IpcMessage], None]) -> Callable[[IpcMessage], None]:
    """Returns a surgery that also removes all rows. Arrow's cheap validation does not look at offsets of no rows."""

    def both(message: IpcMessage) -> None:
        surgery(message)
        message.set_rows(0)
        message.change_nodes(lambda _, length, nulls: (0, 0))

    return both


def _with_column(name: str, column: pa.Array) -> bytes:
    batch = good_batch()
    index = batch.schema.get_field_index(name)
    batch = batch.set_column(index, name, column)
    return ipc_stream(batch.schema, batch)


def _with_name(name: str, new: str) -> bytes:
    batch = good_batch()
    batch = batch.rename_columns([new if old == name else old for old in batch.schema.names])
    return ipc_stream(batch.schema, batch)


def _arrow_file() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_batch(good_batch())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _list_of(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def _union() -> pa.Array:
    return pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])


def _twice() -> pa.Schema:
    return pa.schema([*SCHEMA, ("n", pa.int64())])


def _null_map_key() -> bytes:
    entry = pa.struct([("key", pa.string()), ("value", pa.int64())])
    column = pa.array([[{"key": None, "value": 1}]] * 3, pa.list_(entry))
    return with_schema_of(_with_column("pairs", column), good_request())


def _wide(columns: int) -> bytes:
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int8())] * columns, names=[f"c{i}" for i in range(columns)])
    return ipc_stream(batch.schema, batch)


def _deep(levels: int) -> bytes:
    column = pa.array([1, 2, 3], pa.int8())
    for _ in range(levels):
        column = _list_of(column)
    return _with_column("n", column)


BOMB_COLUMNS = 1000


def bomb_schema(type_: pa.DataType) -> pa.Schema:
    """Returns a schema with so many columns of one type that a short request can reuse the same bytes for all."""
    key = pa.field("c0", type_, nullable=False)
    return pa.schema([key, *(pa.field(f"c{i}", type_) for i in range(1, BOMB_COLUMNS))])


def bool_bomb() -> bytes:
    """Returns a batch of two billion booleans: 250 KB of bits that 1,000 columns share."""
    rows = 2_000_000
    schema = bomb_schema(pa.bool_())
    bits = np.full(rows // 8, 0x55, np.uint8).tobytes()

    def surgery(message: IpcMessage) -> None:
        message.set_rows(rows)
        message.change_nodes(lambda _, length, nulls: (rows, 0))
        message.change_buffers(lambda number, at, size: (0, len(bits) if number % 2 else 0))
        message.set_body_length(len(bits))
        message.body = bits

    return changed(ipc_stream(schema, pa.RecordBatch.from_pylist([{"c0": True}], schema=schema)), surgery)


def binary_bomb() -> bytes:
    """Returns a batch of 8 GB of binary values: 8 MiB that 1,000 columns of one row share."""
    schema = bomb_schema(pa.binary())
    size = 8 << 20
    body = struct.pack("<4i", 0, 4, 0, size) + bytes(size)

    def place(number: int, at: int, length: int) -> tuple[int, int]:
        is_key = number < 3
        return ((0, 0), (0 if is_key else 8, 8), (16, 4 if is_key else size))[number % 3]

    def surgery(message: IpcMessage) -> None:
        message.change_nodes(lambda _, length, nulls: (1, 0))
        message.change_buffers(place)
        message.set_body_length(len(body))
        message.body = body

    return changed(ipc_stream(schema, pa.RecordBatch.from_pylist([{"c0": b"k"}], schema=schema)), surgery)


def many_small_batches(batches: int) -> bytes:
    """Returns a stream of very many batches of one row."""
    schema_message, batch_message = split(ipc_stream(SCHEMA, good_batch(1)))
    return joined([schema_message, *([batch_message] * batches)])


def expanding_request(*, hides_compression: bool) -> bytes:
    """Returns under 1 MiB of compressed rows, which state that they expand to 1 GiB.

    Args:
        hides_compression: Name the compression only in metadata, as Arrow 0.17 did and Arrow still reads.
    """
    schema = pa.schema([("k", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array([0] * 100_000, pa.int64())], schema=schema)
    sink = pa.BufferOutputStream()
    metadata = {"ARROW:experimental_compression": "zstd"} if hides_compression else None
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    data = bytearray(sink.getvalue())
    stated = struct.pack("<q", batch.nbytes)
    assert data.count(stated + b"\x28\xb5\x2f\xfd") == 1, "before the magic number of zstd"
    data = data.replace(stated + b"\x28\xb5\x2f\xfd", struct.pack("<q", 1 << 30) + b"\x28\xb5\x2f\xfd")
    if hides_compression:
        message = 16 + struct.unpack_from("<i", data, 4)[0]
        header = _flatbuffer_field(data, message + struct.unpack_from("<I", data, message)[0], 2)[1]
        struct.pack_into(
            "<H", data, _flatbuffer_field(data, header + struct.unpack_from("<I", data, header)[0], 3)[0], 0
        )
    return bytes(data)


def _flatbuffer_field(data: bytearray, table: int, number: int) -> tuple[int, int]:
    """Returns where a table says where a field is, and where the field is."""
    slot = int(table - struct.unpack_from("<i", data, table)[0] + 4 + 2 * number)
    return slot, table + int(struct.unpack_from("<H", data, slot)[0])
