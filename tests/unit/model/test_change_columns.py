"""The change columns of rows round-trip, and take few bytes in the usual cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.changes.change_columns import CHANGE_FIELDS, CHANGE_SYMBOLS, ChangeColumns
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from scankv.model.changes.change_columns import Numbers

FIRST = 1 << 40
# Mostly a run, sometimes a gap or the next epoch.
STEPS = st.sampled_from([1, 1, 1, 2, 50, FIRST])
COLUMNS = st.lists(st.tuples(st.integers(0, 3), STEPS, st.sampled_from([0, 0, 0, 1, 999])), min_size=1, max_size=40)


def numbers(values: list[int]) -> Numbers:
    return np.array(values, np.int64)


@given(COLUMNS, st.booleans(), st.integers(0, 3))
def test_columns_are_the_same_behind_the_wire(rows: list[tuple[int, int, int]], of_one_kind: bool, bucket: int) -> None:
    kinds, steps, pauses = (list(column) for column in zip(*rows, strict=True))
    kinds = kinds[:1] * len(rows) if of_one_kind else kinds
    offsets, micros = np.cumsum(numbers(steps)), np.cumsum(numbers(pauses))
    sent = ChangeColumns(np.array(kinds, np.uint8), offsets, micros)
    arrays = ChangeColumns.from_bytes(sent.to_bytes(), len(rows)).arrays(bucket)
    assert [array.type for array in arrays] == [field.type for field in CHANGE_FIELDS]
    symbols, found, buckets, times = (array.to_pylist() for array in (*arrays[:3], arrays[3].cast(pa.int64())))
    assert symbols == [CHANGE_SYMBOLS[kind] for kind in kinds]
    assert (found, times) == (offsets.tolist(), micros.tolist())
    assert buckets == [bucket] * len(rows)


@given(COLUMNS, st.integers(1, 40))
def test_the_first_of_some_are_as_they_were(rows: list[tuple[int, int, int]], count: int) -> None:
    kinds, steps, pauses = (list(column) for column in zip(*rows, strict=True))
    columns = ChangeColumns(np.array(kinds, np.uint8), np.cumsum(numbers(steps)), np.cumsum(numbers(pauses)))
    for found, whole in zip(columns.first(count).arrays(0), columns.arrays(0), strict=True):
        assert found.equals(whole.slice(0, count))


def test_rows_of_the_table_have_neither_offset_nor_time() -> None:
    columns = ChangeColumns.from_bytes(ChangeColumns.of_table(5).first(3).to_bytes(), 3)
    rows = pa.RecordBatch.from_arrays(columns.arrays(7), schema=pa.schema(CHANGE_FIELDS))
    nothing = {"_log_offset": None, "_commit_timestamp": None}
    assert rows.to_pylist() == [{"_change_type": "+I", "_bucket": 7, **nothing}] * 3


@pytest.mark.parametrize(
    ("offsets", "micros", "most"),
    [
        (np.arange(8192), np.zeros(8192), 30),  # one commit
        (np.arange(8192), np.repeat(np.arange(8), 1024), 130),
        (np.arange(8192), np.arange(8192), 8192 * 8 + 40),  # one commit per row
        (np.arange(0, 16384, 2), np.arange(8192), 8192 * 16 + 40),
    ],
)
def test_what_is_alike_or_counts_on_takes_no_bytes(offsets: Numbers, micros: Numbers, most: int) -> None:
    columns = ChangeColumns(np.zeros(8192, np.uint8), offsets.astype(np.int64), micros.astype(np.int64))
    assert len(columns.to_bytes()) <= most


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kinds": b"\0\0"},
        {"kinds": b"\4"},
        {"kinds": b"\0\0\4"},
        {"kinds": b"\0", "offsets": bytes(8)},
        {"kinds": b"\0", "commit_micros": bytes(8)},
        {"kinds": b"\0", "offsets": bytes(7), "commit_micros": bytes(8)},
        {"kinds": b"\0", "offsets": bytes(16), "commit_micros": bytes(8)},
        {"kinds": b"\0", "offsets": bytes(8), "commit_micros": bytes(8), "commit_runs": b"\2\0\0\0"},
        {"kinds": b"\0", "offsets": bytes(8), "commit_micros": bytes(8), "offset_runs": b"\3\0\0\0" * 2},
        {"kinds": b"\0", "offsets": bytes(16), "commit_micros": bytes(8), "offset_runs": b"\xff\xff\xff\xff" * 2},
    ],
    ids=str,
)
def test_what_is_not_of_all_rows_is_refused(fields: dict[str, bytes]) -> None:
    data = scan_pb2.ChangeColumns(**fields).SerializeToString()
    with pytest.raises(ValueError, match=r"rows?$|multiple"):
        ChangeColumns.from_bytes(data, 3)
