"""Rows of a streaming query: changes as rows, and rows as changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scankv.model.errors import SchemaMismatch
from scankv.model.tables.columns import CHANGE_COLUMNS
from spark_bridge.change_rows import make_shaper


def shaped(rows: pa.RecordBatch, names: list[str], *, is_log: bool) -> pa.RecordBatch:
    return make_shaper(names, is_log=is_log, bucket=lambda: 4)(rows)


def changes(*kinds: str) -> pa.RecordBatch:
    count = len(kinds)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(kinds),
            pa.array(range(count), pa.int64()),
            pa.array([4] * count, pa.int32()),
            pa.array([0] * count, pa.timestamp("us", "UTC")),
            pa.array(range(count), pa.int64()),
        ],
        names=[*CHANGE_COLUMNS, "k"],
    )


def test_changes_come_as_the_columns_asked_for() -> None:
    rows = shaped(changes("+I", "-U", "+U", "-D"), ["k", "_change_type"], is_log=True)
    assert rows.to_pydict() == {"k": [0, 1, 2, 3], "_change_type": ["+I", "-U", "+U", "-D"]}


def test_changes_without_their_kinds_are_the_rows_that_were_written() -> None:
    assert shaped(changes("+I", "-U", "+U"), ["k"], is_log=True).to_pydict() == {"k": [0, 2]}


def test_a_deletion_that_rows_cannot_tell_is_an_error_that_names_the_option() -> None:
    with pytest.raises(SchemaMismatch, match="row_kinds"):
        shaped(changes("+I", "-D"), ["k"], is_log=True)


def test_rows_of_a_snapshot_are_inserts_of_their_bucket_without_offset_and_time() -> None:
    rows = shaped(pa.RecordBatch.from_pydict({"k": [7]}), [*CHANGE_COLUMNS, "k"], is_log=False)
    assert rows.to_pylist() == [
        {"_change_type": "+I", "_log_offset": None, "_bucket": 4, "_commit_timestamp": None, "k": 7}
    ]


def test_rows_of_a_snapshot_stay_as_they_are_where_no_kinds_are_asked_for() -> None:
    assert shaped(pa.RecordBatch.from_pydict({"k": [7]}), ["k"], is_log=False).to_pydict() == {"k": [7]}
