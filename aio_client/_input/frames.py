"""Converts the columns of pandas and Polars DataFrames to Arrow, and refuses those whose values Arrow cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import polars as pl

_WITHOUT_ARROW: Final = {
    "Int128": "cast it to Int64, or to Decimal",
    "UInt128": "cast it to UInt64, or to Decimal",
    "Object": "cast it to a type with values, such as String",
}
"""Types of Polars that have no equivalent in Arrow, and what to do. Polars would export an Object as an address."""


def is_frame_of(library: str, data: object) -> bool:
    """Returns whether the object is a DataFrame of that library, which is not imported for the check."""
    return type(data).__name__ == "DataFrame" and type(data).__module__.partition(".")[0] == library


def table_of_polars(frame: pl.DataFrame) -> pa.Table:
    """Converts a Polars DataFrame.

    Raises:
        SchemaMismatch: A column has a type that Arrow does not have.
    """
    for name, dtype in frame.schema.items():
        for inner in _types_within(dtype):
            instead = _WITHOUT_ARROW.get(type(inner).__name__)
            if instead is not None:
                raise SchemaMismatch(
                    f'column "{name}" is {dtype} in Polars, which Arrow does not have: {instead}', column=name
                )
    return pa.table(frame)


def array_of_series(series: pd.Series[Any], field: pa.Field) -> pa.Array:
    """Converts a pandas column for a column of a table. NaN in NumPy dtypes is null. Not for Python objects.

    Raises:
        SchemaMismatch: Arrow does not have the column's type.
    """
    refusal = f'column "{field.name}" is {series.dtype} in pandas, which Arrow does not have: convert it with astype()'
    try:
        column = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatch(refusal, column=field.name) from error
    if str(getattr(column.type, "extension_name", "")).startswith("pandas."):
        raise SchemaMismatch(refusal, column=field.name)  # Periods would be stored as their numbers.
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column


def _types_within(dtype: Any) -> Iterator[Any]:  # noqa: ANN401  # a type of Polars
    yield dtype
    inner = getattr(dtype, "inner", None)
    if inner is not None:
        yield from _types_within(inner)
    for field in getattr(dtype, "fields", ()):
        yield from _types_within(field.dtype)
