"""How timestamps of older Parquet files, in the type INT96, are read so that no value changes.

An INT96 has a day and the nanoseconds since its midnight. pyarrow converts it to 64 bits. Microseconds in 64 bits reach
every year that files have, but nanoseconds only 1677 to 2262: other years wrap without an error. So a file is read with
`COARSE`, and its INT96 columns again with `FINE`: together they show what either of them changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import SchemaMismatch
from scankv.model.types.nested import map_as_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from pyarrow import parquet

COARSE: Final = {"coerce_int96_timestamp_unit": "us"}
"""The option of pyarrow's Parquet readers for all columns."""

FINE: Final = {"coerce_int96_timestamp_unit": "ns"}
"""The option for the second look at columns of the type INT96."""


def has_int96(metadata: parquet.FileMetaData) -> bool:
    """Returns whether a Parquet file has a column of the type INT96, at any depth."""
    return any(metadata.schema.column(place).physical_type == "INT96" for place in range(metadata.num_columns))


def int96_columns(coarse: pa.Schema, fine: pa.Schema) -> list[str]:
    """Returns the columns with INT96 at any depth: those whose types differ between the two ways to read a file."""
    return [after.name for before, after in zip(coarse, fine, strict=True) if before.type != after.type]


def needs_nanos(name: str, target: pa.Schema) -> bool:
    """Returns whether a column of a table has timestamps in nanoseconds, at any depth."""
    return name in target.names and _has_nanos(target.field(name).type)


def _has_nanos(type_: pa.DataType) -> bool:
    if pat.is_nested(type_):
        return any(_has_nanos(type_.field(place).type) for place in range(type_.num_fields))
    return bool(pat.is_timestamp(type_) and type_.unit == "ns")


def exact_int96(coarse: pa.RecordBatch, fine: pa.RecordBatch, target: pa.Schema, first_row: int = 0) -> pa.RecordBatch:
    """Returns rows of a file in which each INT96 is exactly what the file has.

    Args:
        coarse: The rows, read with `COARSE`.
        fine: Their INT96 columns, read with `FINE`.
        target: The columns of the table: those with nanoseconds are returned in nanoseconds, others in microseconds.
        first_row: The index of the first row in the file, for messages.

    Raises:
        SchemaMismatch: The unit of a column cannot represent a value. The message names column, row and value.
    """
    for name, nanos in zip(fine.schema.names, fine.columns, strict=True):
        place = coarse.schema.names.index(name)
        micros = coarse.column(place)
        in_nanos = needs_nanos(name, target)
        if _has_inexact(micros, nanos, in_nanos=in_nanos):
            row = _first_inexact_row(micros, nanos, in_nanos=in_nanos)
            why = _describe(micros.slice(row, 1), nanos.slice(row, 1), in_nanos=in_nanos)
            raise SchemaMismatch(f'column "{name}", row {first_row + row}: {why}', column=name, row=first_row + row)
        if in_nanos:
            coarse = coarse.set_column(place, name, nanos)
    return coarse


def _has_inexact(coarse: pa.Array, fine: pa.Array, *, in_nanos: bool) -> bool:
    return any(_inexact(*leaves, in_nanos=in_nanos).any() for leaves in _leaves(coarse, fine))


def _inexact(coarse: pa.Array, fine: pa.Array, *, in_nanos: bool) -> npt.NDArray[np.bool_]:
    """Returns for each timestamp whether a unit changes it."""
    micros, nanos = (_integers(each) for each in (coarse, fine))
    # Nanoseconds that have wrapped do not match the microseconds. The difference is right even if both have wrapped.
    inexact: npt.NDArray[np.bool_] = nanos // 1000 != micros if in_nanos else nanos - micros * 1000 != 0
    return inexact


def _integers(column: pa.Array) -> npt.NDArray[np.int64]:
    integers: npt.NDArray[np.int64] = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return integers


def _leaves(coarse: pa.Array, fine: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yields the INT96 values inside two columns that differ only in their unit, as arrays of timestamps."""
    if coarse.type == fine.type:
        return
    if not pat.is_nested(fine.type):
        yield coarse, fine
    elif pat.is_struct(fine.type):
        for pair in zip(coarse.flatten(), fine.flatten(), strict=True):
            yield from _leaves(*pair)
    else:
        lists = (map_as_list(each) if pat.is_map(each.type) else each for each in (coarse, fine))
        yield from _leaves(*(each.flatten() for each in lists))


def _first_inexact_row(coarse: pa.Array, fine: pa.Array, *, in_nanos: bool) -> int:
    low, high = 0, len(coarse)
    while high - low > 1:
        middle = (low + high) // 2
        if _has_inexact(coarse.slice(low, middle - low), fine.slice(low, middle - low), in_nanos=in_nanos):
            high = middle
        else:
            low = middle
    return low


def _describe(coarse: pa.Array, fine: pa.Array, *, in_nanos: bool) -> str:
    """Returns why a unit changes the value of a row."""
    for micros, nanos in _leaves(coarse, fine):
        found = np.flatnonzero(_inexact(micros, nanos, in_nanos=in_nanos))
        if not len(found):
            continue
        text = micros.cast(pa.string())[int(found[0])].as_py()
        if in_nanos:
            return (
                f"{text} does not fit a timestamp in nanoseconds, which is between 1677 and 2262: use a column in "
                "microseconds"
            )
        rest = int(_integers(nanos)[found[0]] - _integers(micros)[found[0]] * 1000)
        return f"{text}{rest:03} does not fit a timestamp in microseconds: use a column in nanoseconds"
    raise AssertionError("only rows with such a value are described")
