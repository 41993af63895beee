"""Converts what a stream delivers into the rows of a streaming query: changes with row kinds, or rows alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import SchemaMismatch, TableRecreated
from scankv.model.tables.columns import CHANGE_COLUMNS, CHANGE_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CHANGE_FIELDS: Final = [
    pa.field(name, type_)
    for name, type_ in zip(
        CHANGE_COLUMNS, (pa.string(), pa.int64(), pa.int32(), pa.timestamp("us", "UTC")), strict=True
    )
]
_WRITTEN: Final = ("+I", "+U")


def make_shaper(
    names: Sequence[str], *, is_log: bool, bucket: Callable[[], int | None]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns a function that converts a stream's batches to batches with the columns `names`.

    If `names` has change columns, rows of a snapshot become inserts (`+I`) without offset and time. If it has none,
    changes become the rows that they leave behind.

    Args:
        names: The columns to return, change columns among them or not.
        is_log: Whether the stream delivers changes. Otherwise it delivers rows of a snapshot.
        bucket: Returns the bucket of the batch that the stream delivered last.
    """
    with_kinds = any(name in CHANGE_COLUMNS for name in names)

    def shape(rows: pa.RecordBatch) -> pa.RecordBatch:
        if is_log and not with_kinds:
            rows = _rows_after(rows)
        elif with_kinds and not is_log:
            rows = _as_inserts(rows, bucket())
        return rows.select(names)

    return shape


def recreated_error(table: str) -> TableRecreated:
    """The error of a streaming query whose table was restored, or dropped and created again."""
    return TableRecreated(
        f"table {table} was restored, or dropped and created again, after this query began: start the query with a new "
        "checkpoint",
        table=table,
    )


def _rows_after(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows that were written, without the rows that they replaced.

    Raises:
        SchemaMismatch: A row was deleted, which rows alone cannot express.
    """
    kinds = changes.column(CHANGE_TYPE)
    if pc.any(pc.equal(kinds, "-D")).as_py():
        raise SchemaMismatch(
            "a row was deleted or no longer matches option where, which a stream of rows cannot express: "
            'set option("row_kinds", "true") to read changes with their row kinds'
        )
    return changes.filter(pc.is_in(kinds, pa.array(_WRITTEN)))


def _as_inserts(rows: pa.RecordBatch, bucket: int | None) -> pa.RecordBatch:
    values: tuple[object, ...] = ("+I", None, bucket, None)
    columns = [
        pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        for value, field in zip(values, _CHANGE_FIELDS, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*columns, *rows.columns], schema=pa.schema([*_CHANGE_FIELDS, *rows.schema]))
