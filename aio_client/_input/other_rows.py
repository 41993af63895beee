"""Converts rows to objects of Python and Polars. A value that these cannot hold is refused, never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client._input.optional import import_optional
from scankv.model.errors import UsageError
from scankv.model.types.python_values import check_python
from scankv.model.types.seconds import check_fits_milliseconds
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl


def to_pylist(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows as dictionaries of Python values.

    Raises:
        UsageError: A value has no Python type: a year before 1 or after 9999, nanoseconds of a time of day, or a
            timestamp with nanoseconds if pandas is not installed. The message names the column and the row.
    """
    try:
        for column in table.columns:
            check_python(column)
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
    check_python(column)
    column.to_pylist()
