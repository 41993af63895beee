"""Table definitions and Arrow data for tests."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.tables.schema import TableDefinition

if TYPE_CHECKING:
    from collections.abc import Sequence

SCORES = pa.schema([pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64())])
"""The columns of most small tables. The key is `player`."""


def define(schema: pa.Schema, *key: str, buckets: int = 1, **options: str) -> TableDefinition:
    """Returns a definition of these columns. The key is the first column unless given."""
    return TableDefinition.create(
        "test.table",
        schema,
        primary_key=key or schema.names[:1],
        buckets=buckets,
        options=options,
        incarnation="0" * 32,
        created_millis=0,
    )


def ipc_stream(schema: pa.Schema, *batches: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    """Returns the Arrow IPC stream of some batches, as in a write request."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def exact_rows(batch: pa.RecordBatch | pa.Table) -> list[tuple[Any, ...]]:
    """Returns the rows as Python values that are equal only if all bits are: floats and times as integers."""
    if isinstance(batch, pa.Table):
        return [row for part in batch.to_batches() for row in exact_rows(part)]
    if batch.num_columns == 0:
        return [()] * batch.num_rows
    return list(zip(*(exact_values(column) for column in batch.columns), strict=True))


def exact_values(column: pa.Array) -> list[Any]:
    """Returns the values of one array, as in `exact_rows`."""
    type_ = column.type
    if pat.is_floating(type_) or pat.is_temporal(type_):
        return list(column.view({2: pa.uint16(), 4: pa.int32(), 8: pa.int64()}[type_.bit_width // 8]).to_pylist())
    if pat.is_struct(type_):
        fields = [exact_values(child) for child in column.flatten()]
        rows = zip(*fields, strict=True)
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    if pat.is_map(type_) or pat.is_list(type_):
        return [exact_values(value.values) if value.is_valid else None for value in column]
    return list(column.to_pylist())


def scores(players: Sequence[str], values: Sequence[int | None]) -> pa.RecordBatch:
    """Returns a batch of `SCORES`."""
    return pa.RecordBatch.from_arrays([pa.array(players, pa.string()), pa.array(values, pa.int64())], schema=SCORES)


def bits_of(value: float) -> int:
    """Returns the 64 bits of a float."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)
