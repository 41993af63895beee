"""Converts rows to objects of Python and Polars. A value that these cannot hold is refused, never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from aio_client._input.optional import import_optional
from scankv.model import lazy_compute as pc
from scankv.model.errors import UsageError
from scankv.model.types.nested import scalar_columns
from scankv.model.types.seconds import check_fits_milliseconds
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

_SMALLEST: Final = -(2**63)


def to_pylist(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows as dictionaries of Python values.

    Raises:
        UsageError: A value has no Python type: a year before 1 or after 9999, nanoseconds of a time of day, or a
            timestamp with nanoseconds if pandas is not installed. The message names the column and the row.
    """
    try:
        for column in table.columns:
            _check_python(column)
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError) as error:
        # With pandas, pyarrow returns timestamps of nanoseconds as its Timestamp.
        remedy = "read the rows as Arrow" + (", or pip install pandas" if "pandas" in str(error) else "")
        raise _refusal(table, _to_python, "Python has no such value", remedy) from error
    return rows


def to_polars(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Returns the rows as a Polars frame. Needs polars.

    Raises:
        UsageError: Polars cannot hold a column or a value. The message names the column.
    """
    polars = import_optional("polars")
    polars_schema(rows.schema)
    try:
        for column in rows.columns:
            check_fits_milliseconds(column)
    except ValueError as error:
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        raise _refusal(table, check_fits_milliseconds, "Polars has no such value", "read the rows as Arrow") from error
    frame: pl.DataFrame = polars.from_arrow(rows)
    return frame


def polars_schema(schema: pa.Schema) -> dict[str, pl.DataType]:
    """Returns the types that Polars has for columns.

    Raises:
        UsageError: Polars has no type for a column, which the message names.
    """
    polars = import_optional("polars")
    found: dict[str, pl.DataType] = {}
    for field in schema:
        try:
            found[field.name] = polars.Series(pa.nulls(0, field.type)).dtype
        except polars.exceptions.PolarsError as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f'column "{field.name}": Polars cannot hold {format_type(field.type)}: {reason}; read the rows as '
                "Arrow, or choose other columns",
                column=field.name,
            ) from error
    return found


def _refusal(table: pa.Table, use: Callable[[pa.ChunkedArray], object], what: str, remedy: str) -> UsageError:
    """Returns the error that names the first value for which `use` fails."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if (error := _failure(column, use)) is None:
            continue
        row, rows = 0, len(column)
        while rows > 1:
            half = rows // 2
            if _failure(column.slice(row, half), use) is None:
                row, rows = row + half, rows - half
            else:
                rows = half
        error = _failure(column.slice(row, 1), use) or error
        return UsageError(f'column "{name}", row {row}: {what}: {error}; {remedy}', column=name, row=row)
    return UsageError(f"{what}; {remedy}")


def _failure(column: pa.ChunkedArray, use: Callable[[pa.ChunkedArray], object]) -> Exception | None:
    try:
        use(column)
    except (ValueError, OverflowError) as error:
        return error
    return None


def _to_python(column: pa.ChunkedArray) -> None:
    _check_python(column)
    column.to_pylist()


def _check_python(column: pa.ChunkedArray) -> None:
    """Raises ValueError for values that pyarrow would convert to another Python value."""
    if not _has_nanoseconds(column.type):
        return
    for scalars in (each for chunk in column.chunks for each in scalar_columns(chunk)):
        if pat.is_time64(scalars.type) and scalars.type.unit == "ns":
            _check_microseconds(scalars)
        elif pat.is_timestamp(scalars.type) and scalars.type.unit == "ns":
            _check_is_no_nat(scalars)


def _check_microseconds(times: pa.Array) -> None:
    try:
        times.cast(pa.time64("us"))
    except pa.ArrowInvalid as error:
        raise ValueError("a time of day has nanoseconds") from error


def _check_is_no_nat(times: pa.Array) -> None:
    if pc.min(times.view(pa.int64())).as_py() == _SMALLEST:
        raise ValueError(f"{_SMALLEST} ns is not a time in pandas")


def _has_nanoseconds(type_: pa.DataType) -> bool:
    return getattr(type_, "unit", "") == "ns" or any(
        _has_nanoseconds(type_.field(index).type) for index in range(type_.num_fields)
    )
