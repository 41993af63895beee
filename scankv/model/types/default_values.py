"""Values of some columns, such as their defaults, as an Arrow IPC stream of one row: the form of the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping


def values_to_ipc(values: Mapping[str, pa.Scalar]) -> bytes:
    """Returns values by column as an Arrow IPC stream of one row; empty without values."""
    if not values:
        return b""
    arrays = [pa.array([value], value.type) for value in values.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(values))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return cast("bytes", sink.getvalue().to_pybytes())


def values_from_ipc(data: bytes) -> dict[str, pa.Scalar]:
    """Reads the result of `values_to_ipc` that a server sends."""
    if not data:
        return {}
    row = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    return {name: row.column(name)[0] for name in row.schema.names}
