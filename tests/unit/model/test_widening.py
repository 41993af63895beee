"""Nested types that change: which may, and what becomes of values, also of slices and under nulls."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from scankv.model.types.widening import is_wider, reused_field, widen_values

OLD = pa.struct(
    [
        pa.field("a", pa.int32(), nullable=False),
        ("gone", pa.string()),
        ("points", pa.list_(pa.struct([("x", pa.float32())]))),
        ("tags", pa.map_(pa.string(), pa.date32())),
    ]
)
NEW = pa.struct(
    [
        ("tags", pa.map_(pa.string(), pa.timestamp("us"))),
        ("new", pa.struct([("deep", pa.string())])),
        ("points", pa.list_(pa.struct([("y", pa.int8()), ("x", pa.float64())]))),
        ("a", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (OLD, NEW, True),
        (NEW, OLD, False),
        (pa.struct([("a", pa.int8())]), pa.struct([pa.field("a", pa.int8(), nullable=False)]), False),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)]), False),
        (pa.list_(pa.int8()), pa.list_(pa.int16()), True),
        (pa.list_(pa.int16()), pa.list_(pa.int8()), False),
        (pa.list_(pa.int8()), pa.int8(), False),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int16(), pa.int8()), False),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int8(), pa.int16()), True),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), True),
        (OLD, OLD, False),
    ],
)
def test_nested_types_that_columns_can_change_to(old: pa.DataType, new: pa.DataType, expected: bool) -> None:
    assert is_wider(old, new) is expected


def test_nested_values_keep_their_places() -> None:
    rows: list[dict[str, Any] | None] = [
        {"a": 1, "gone": "x", "points": [{"x": 0.5}, None], "tags": [("k", None)]},
        None,
        {"a": 2, "gone": None, "points": None, "tags": []},
        {"a": 3, "gone": "y", "points": [], "tags": None},
    ]
    expected: list[dict[str, Any] | None] = [
        {"tags": [("k", None)], "new": None, "points": [{"y": None, "x": 0.5}, None], "a": 1},
        None,
        {"tags": [], "new": None, "points": None, "a": 2},
        {"tags": None, "new": None, "points": [], "a": 3},
    ]
    values = pa.array(rows, OLD)
    for start in range(5):
        for end in range(start, 5):
            widened = widen_values(values.slice(start, end - start), NEW)
            widened.validate(full=True)
            assert widened.type == NEW
            assert widened.to_pylist() == expected[start:end]


def test_a_field_that_was_dropped_is_recognized_at_any_depth() -> None:
    first = pa.list_(pa.struct([("a", pa.struct([("b", pa.int8()), ("c", pa.int8())]))]))
    second = pa.list_(pa.struct([("a", pa.struct([("b", pa.int8())]))]))
    assert reused_field([first, second], first) == "element.a.c"
    assert reused_field([first], first) is None
    other = pa.list_(pa.struct([("a", pa.struct([("b", pa.int8())])), ("c", pa.int8())]))
    assert reused_field([first, second], other) is None
