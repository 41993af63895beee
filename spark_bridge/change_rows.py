"""Rows of a streaming query: changes with their kinds, rows of a snapshot as changes, or rows alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import SchemaMismatch, TableRecreated
from scankv.model.tables.schema import CHANGE_COLUMNS, CHANGE_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CHANGE_FIELDS: Final = [
    pa.field(name, type_)
    for name, type_ in zip(
        CHANGE_COLUMNS, (pa.string(), pa.int64(), pa.int32(), pa.timestamp("us", "UTC")), strict=True
    )
]
_WRITTEN: Final = ("+I", "+U")


def shaping(
    names: Sequence[str], *, is_log: bool, bucket: Callable[[], int | None]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """What makes the columns `names` of what a stream gives.

    Rows of a snapshot are `+I`, without offset and time. Changes of which no change column is asked for are the rows
    after them.

    Args:
        names: The columns, which may be those of changes.
        is_log: Whether changes are given; else rows of a snapshot.
        bucket: Tells which bucket the rows are of that were given last.
    """
    with_kinds = any(name in CHANGE_COLUMNS for name in names)

    def shape(rows: pa.RecordBatch) -> pa.RecordBatch:
        if is_log and not with_kinds:
            rows = _rows_after(rows)
        elif with_kinds and not is_log:
            rows = _as_inserts(rows, bucket())
        return rows.select(names)

    return shape


def another_table(table: str) -> TableRecreated:
    """The error of a streaming query that finds another table of the same name."""
    return TableRecreated(
        f"table {table} was dropped and created again since this query has begun: start it with a new checkpoint",
        table=table,
    )


def _rows_after(changes: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that were written, without those that they replace.

    Raises:
        SchemaMismatch: A row was deleted, which only `row_kinds` can tell.
    """
    kinds = changes.column(CHANGE_TYPE)
    if pc.any(pc.equal(kinds, "-D")).as_py():
        raise SchemaMismatch(
            "a row was deleted, or does not match option where any more, which rows alone cannot tell: "
            'option("row_kinds", "true") gives changes with what happened to each row'
        )
    return changes.filter(pc.is_in(kinds, pa.array(_WRITTEN)))


def _as_inserts(rows: pa.RecordBatch, bucket: int | None) -> pa.RecordBatch:
    values: tuple[object, ...] = ("+I", None, bucket, None)
    columns = [
        pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        for value, field in zip(values, _CHANGE_FIELDS, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*columns, *rows.columns], schema=pa.schema([*_CHANGE_FIELDS, *rows.schema]))
