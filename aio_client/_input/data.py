"""Converts rows, in the forms that callers may use, to Arrow batches that fit the columns of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa

from aio_client._input.frames import array_of_series, is_frame_of, table_of_polars
from aio_client._input.python_values import NotAValueError, column_of
from scankv.model import lazy_compute as pc
from scankv.model.errors import SchemaMismatch, UsageError, did_you_mean
from scankv.model.types.conform import conform
from scankv.model.types.default_values import NO_DEFAULTS, fill_absent, with_defaults

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pandas as pd
    import polars as pl


class SupportsArrowStream(Protocol):
    """A table, reader or frame of any library that implements the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class SupportsArrowArray(Protocol):
    """A batch of any library that implements the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


Data: TypeAlias = SupportsArrowStream | SupportsArrowArray | Sequence[Mapping[str, Any]]
"""Rows: a RecordBatch, Table or RecordBatchReader, a pandas or Polars DataFrame, a list of dictionaries, or any other
object with `__arrow_c_stream__` or `__arrow_c_array__`."""


class InputRows(Protocol):
    """Rows in one of the forms that callers may use."""

    @property
    def in_memory(self) -> bool:
        """Whether all batches may be made before one is used. A reader may be larger than memory, or endless."""

    def has(self, name: str) -> bool:
        """Returns whether a column of this name exists."""

    def check_names(self, schema: pa.Schema) -> None:
        """Raises SchemaMismatch if the schema lacks a column of the rows."""

    def batches(
        self,
        schema: pa.Schema,
        counted: Collection[str] = (),
        defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
    ) -> Iterator[pa.RecordBatch]:
        """Returns the rows in the columns of the schema, converted without loss; other columns are left out.

        Columns that are `counted` may have any type; they get 1 for each value that is not null. Columns that the rows
        lack get their `defaults`.

        Raises:
            SchemaMismatch: A column is missing, or its type cannot hold a value; the message names column and row.
        """


def rows_of(data: object) -> InputRows:
    """Recognizes the form in which rows are given. Nothing is read or checked yet.

    Raises:
        UsageError: The object has no rows of a known form.
    """
    if isinstance(data, pa.RecordBatch):
        return _ArrowRows(data.schema, [data], in_memory=True)
    if isinstance(data, pa.Table):
        return _ArrowRows(data.schema, data.to_batches(), in_memory=True)
    if isinstance(data, pa.RecordBatchReader):
        return _ArrowRows(data.schema, data, in_memory=False)
    if is_frame_of("pandas", data):
        return _PandasRows(data)
    if is_frame_of("polars", data):
        return _PolarsRows(cast("pl.DataFrame", data))
    if isinstance(data, list | tuple):
        return _DictRows(data)
    try:
        if hasattr(data, "__arrow_c_array__"):
            return rows_of(pa.record_batch(data))
        if hasattr(data, "__arrow_c_stream__"):
            return rows_of(pa.RecordBatchReader.from_stream(data))
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise UsageError(f"rows cannot be read from a {type(data).__name__}: {error}") from error
    hint = "; put a single row into a list, and columns into pa.table(...)" if isinstance(data, Mapping) else ""
    raise UsageError(
        "rows must be a RecordBatch, Table, RecordBatchReader, pandas or Polars DataFrame, list of dictionaries, or an "
        f"object with __arrow_c_stream__, not {type(data).__name__}{hint}"
    )


@dataclass(frozen=True, slots=True)
class _ArrowRows:
    schema: pa.Schema
    source: Iterable[pa.RecordBatch]
    in_memory: bool

    def has(self, name: str) -> bool:
        return name in self.schema.names

    def check_names(self, schema: pa.Schema) -> None:
        _check_names(self.schema.names, schema)

    def batches(
        self,
        schema: pa.Schema,
        counted: Collection[str] = (),
        defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
    ) -> Iterator[pa.RecordBatch]:
        known = set(schema.names)
        wanted = [index for index, name in enumerate(self.schema.names) if name in known]
        first_row = 0
        for batch in self.source:
            rows = with_defaults(_with_ones(batch.select(wanted), schema, counted), defaults)
            yield conform(rows, schema, first_row=first_row)
            first_row += batch.num_rows


class _DictRows:
    """Rows given as dictionaries. A column that a dictionary lacks has its default, or is null without one."""

    in_memory = True

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UsageError(f"row {index} is a {type(row).__name__}, not a dictionary", row=index)
        self._rows = rows

    def has(self, name: str) -> bool:
        return any(name in row for row in self._rows)

    def check_names(self, schema: pa.Schema) -> None:
        known = set(schema.names)
        for index, row in enumerate(self._rows):
            if not row.keys() <= known:
                name = next(str(name) for name in row if name not in known)
                raise SchemaMismatch(
                    f'row {index}: there is no column "{name}"{did_you_mean(name, schema.names)}',
                    column=name,
                    row=index,
                )

    def batches(
        self,
        schema: pa.Schema,
        counted: Collection[str] = (),
        defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
    ) -> Iterator[pa.RecordBatch]:
        if self._rows:
            values = {name: [row.get(name) for row in self._rows] for name in schema.names}
            values |= {
                name: [None if each is None else 1 for each in values[name]] for name in counted if name in values
            }
            columns = [_column(values[field.name], field) for field in schema]
            for place, field in enumerate(schema):
                if field.name in defaults:
                    absent = np.array([field.name not in row for row in self._rows])
                    # Not through Python values, which cannot represent every date and time.
                    columns[place] = fill_absent(columns[place], absent, defaults[field.name])
            yield conform(pa.RecordBatch.from_arrays(columns, names=schema.names), schema)


class _PandasRows:
    """Rows of a pandas DataFrame. NaN is null, and named index levels are columns."""

    in_memory = True

    def __init__(self, frame: pd.DataFrame) -> None:
        levels = [level for level, name in enumerate(frame.index.names) if name is not None]
        self._frame = frame.reset_index(level=levels) if levels else frame
        self._names = [str(name) for name in self._frame.columns]

    def has(self, name: str) -> bool:
        return name in self._names

    def check_names(self, schema: pa.Schema) -> None:
        _check_names(self._names, schema)

    def batches(
        self,
        schema: pa.Schema,
        counted: Collection[str] = (),
        defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
    ) -> Iterator[pa.RecordBatch]:
        known = set(schema.names)
        wanted = [index for index, name in enumerate(self._names) if name in known]
        columns = [
            _ones(pa.array(self._frame.iloc[:, index].notna()), schema.field(self._names[index]).type)
            if self._names[index] in counted
            else self._column(index, schema.field(self._names[index]))
            for index in wanted
        ]
        table = pa.Table.from_arrays(columns, names=[self._names[index] for index in wanted])
        yield from _ArrowRows(table.schema, table.to_batches(), in_memory=True).batches(schema, (), defaults)

    def _column(self, index: int, field: pa.Field) -> pa.Array:
        series = self._frame.iloc[:, index]
        if series.dtype != object:
            return array_of_series(series, field)
        # pyarrow would guess one type for objects of any type.
        return _column(series.where(series.notna(), None).tolist(), field)


class _PolarsRows:
    """Rows of a Polars DataFrame. Columns that are left out are not converted."""

    in_memory = True

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def has(self, name: str) -> bool:
        return name in self._frame.columns

    def check_names(self, schema: pa.Schema) -> None:
        _check_names(self._frame.columns, schema)

    def batches(
        self,
        schema: pa.Schema,
        counted: Collection[str] = (),
        defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
    ) -> Iterator[pa.RecordBatch]:
        known = set(schema.names)
        wanted = [name for name in self._frame.columns if name in known]
        table = table_of_polars(self._frame.select(wanted))
        yield from _ArrowRows(table.schema, table.to_batches(), in_memory=True).batches(schema, counted, defaults)


def _with_ones(batch: pa.RecordBatch, schema: pa.Schema, counted: Collection[str]) -> pa.RecordBatch:
    for index, name in enumerate(batch.schema.names):
        if name in counted:
            batch = batch.set_column(index, name, _ones(batch.column(index).is_valid(), schema.field(name).type))
    return batch


def _ones(there: pa.Array, type_: pa.DataType) -> pa.Array:
    return pc.if_else(there, pa.scalar(1, type_), pa.scalar(None, type_))


def _column(values: Sequence[object], field: pa.Field) -> pa.Array:
    try:
        return column_of(values, field.type)
    except NotAValueError as error:
        raise SchemaMismatch(
            f'column "{field.name}", row {error.row}: {error.reason}', column=field.name, row=error.row
        ) from None


def _check_names(names: Sequence[str], schema: pa.Schema) -> None:
    known = set(schema.names)
    for name in names:
        if name not in known:
            raise SchemaMismatch(f'there is no column "{name}"{did_you_mean(name, schema.names)}', column=name)
