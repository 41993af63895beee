"""The defaults of columns: how they go over the wire, and how complete rows get them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

NO_DEFAULTS: Final[Mapping[str, pa.Scalar]] = MappingProxyType({})
"""No column has a default."""


def with_defaults(rows: pa.RecordBatch, defaults: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """Adds the columns that rows lack and that have a default. A null in a column that the rows have stays null."""
    given = set(rows.schema.names)
    added = {name: default for name, default in defaults.items() if name not in given}
    if not added:
        return rows
    arrays = [*rows.columns, *(repeat_default(default, rows.num_rows) for default in added.values())]
    fields = [*rows.schema, *(pa.field(name, default.type) for name, default in added.items())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def fill_absent(values: pa.Array, absent: npt.NDArray[np.bool_], default: pa.Scalar) -> pa.Array:
    """Returns the values of a column, with its default in place of the values in the rows that are `absent`."""
    if not absent.any():
        return values
    places = np.where(absent, len(values), np.arange(len(values)))
    return pa.concat_arrays([values, pa.array([default], default.type)]).take(pa.array(places))


def repeat_default(default: pa.Scalar, count: int) -> pa.Array:
    """Returns an array with one value `count` times."""
    # pyarrow cannot repeat a list or a map zero times.
    return pa.repeat(default, count) if count else pa.nulls(0, default.type)


def values_to_ipc(values: Mapping[str, pa.Scalar]) -> bytes:
    """Returns values by column as an Arrow IPC stream of one row, the form of the wire; empty without values."""
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
