"""Python values become columns without change, or are refused with their row."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client._input.python_values import NotAValueError, column_of
from scankv.model.types.types import parse_schema
from tests.unit.model.strategies import columns, key_types, order_of

NOON = dt.datetime(2020, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)


def type_of(text: str) -> pa.DataType:
    return parse_schema(f"c {text}").field("c").type


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("int64", [1, 2.0, np.int8(3), Decimal(4), np.float32(5), pa.scalar(6)], [1, 2, 3, 4, 5, 6]),
        ("uint64", [2**64 - 1, 0], [2**64 - 1, 0]),
        ("double", [1, 0.1, math.inf, 2**53], [1.0, 0.1, math.inf, 2.0**53]),
        ("float", [0.5, 2**24, -math.inf], [0.5, 2.0**24, -math.inf]),
        ("halffloat", [0.5, 1, np.float16(2)], [0.5, 1.0, 2.0]),
        ("decimal128(5, 2)", [Decimal("1.25"), 3, np.int64(4)], [Decimal("1.25"), Decimal("3.00"), Decimal("4.00")]),
        ("decimal128(3, 5)", [Decimal("0.00999"), 0, None], [Decimal("0.00999"), Decimal("0.00000"), None]),
        ("decimal128(3, -2)", [Decimal("1E+2"), 99900, np.int64(-100)], [Decimal(100), Decimal(99900), Decimal(-100)]),
        ("bool", [True, np.bool_(False)], [True, False]),
        ("string", ["", "ä", np.str_("x")], ["", "ä", "x"]),
        ("binary", [b"\xff", bytearray(b"a"), memoryview(b"b"), np.bytes_(b"c")], [b"\xff", b"a", b"b", b"c"]),
        ("date32", [dt.date(1, 1, 1)], [dt.date(1, 1, 1)]),
        ("time32[s]", [dt.time(1, 2, 3)], [dt.time(1, 2, 3)]),
        ("time64[us]", [dt.time(1, 2, 3, 4)], [dt.time(1, 2, 3, 4)]),
        ("timestamp[s]", [NOON, dt.date(2020, 1, 1)], [NOON, dt.datetime(2020, 1, 1)]),
        ("timestamp[us]", [np.datetime64(NOON), pd.Timestamp(NOON)], [NOON, NOON]),
        ("timestamp[us, tz=UTC]", [NOON_UTC, NOON_UTC.astimezone(dt.timezone(dt.timedelta(hours=2)))], [NOON_UTC] * 2),
        ("list<item: int32>", [[1, 2.0], (3,), np.array([4, 5]), []], [[1, 2], [3], [4, 5], []]),
        ("struct<a: int64, b: string>", [{"a": 1}, {"b": "x"}], [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ("map<string, int64>", [{"k": 1.0}, [("k", 2)]], [[("k", 1)], [("k", 2)]]),
    ],
)
def test_a_value_is_taken_as_what_it_is(text: str, given: list[Any], expected: list[Any]) -> None:
    column = column_of([*given, None], type_of(text))
    assert column.type == type_of(text)
    assert column.to_pylist() == [*expected, None]


@pytest.mark.parametrize(
    ("text", "scalar", "stored"),
    [
        ("time64[ns]", pa.scalar(999, pa.time64("ns")), 999),
        ("timestamp[ns]", pa.scalar(1_001, pa.timestamp("ns")), 1_001),
        ("timestamp[s]", pa.scalar(2**40, pa.timestamp("s")), 2**40),
        ("timestamp[us]", pa.scalar(10_000, pa.date32()), 10_000 * 86_400 * 10**6),
        ("date32", pa.scalar(10**7, pa.date32()), 10**7),
    ],
)
def test_an_arrow_value_keeps_what_python_has_no_room_for(text: str, scalar: pa.Scalar, stored: int) -> None:
    type_ = type_of(text)
    column = column_of([scalar, None], type_)
    assert column.equals(pa.array([stored, None]).cast(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_))
    struct = pa.struct([("t", type_)])
    for nested in ({"t": scalar}, pa.scalar({"t": scalar}, pa.struct([("t", scalar.type)]))):
        assert column_of([nested], struct).field("t").equals(column[:1])


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("int64", 1.5, "not a whole number"),
        ("int64", math.nan, "not a whole number"),
        ("int64", True, "a bool, not a number"),
        ("int64", "1", "of type str, not a number"),
        ("int64", 2**63, "int64"),
        ("uint8", 256, "uint8"),
        ("uint8", -1, "uint8"),
        ("double", 2**53 + 1, "double"),
        ("double", "1.5", "not a number"),
        ("double", 10**400, "double"),
        ("float", 10**400, "float"),
        ("float", 1e300, "out of range"),
        ("float", 2**24 + 1, "no value that is exactly this number"),
        ("halffloat", 70_000, "out of range"),
        ("decimal128(5, 2)", Decimal("1.255"), "data loss"),
        ("decimal128(5, 2)", 1000, "decimal128"),
        ("decimal128(3, 5)", Decimal("0.01"), "exactly this number"),
        ("decimal128(3, -2)", 150, "exactly this number"),
        ("decimal128(5, 2)", 1.25, "not a whole number"),
        ("bool", 1, "not bool"),
        ("string", b"x", "of type bytes, not str"),
        ("string", "\ud800", "surrogates"),
        ("binary", "x", "of type str, not bytes"),
        ("date32", NOON, "time of day"),
        ("time64[us]", pa.scalar(999, pa.time64("ns")), "would lose data"),
        ("timestamp[us]", pa.scalar(2**31 - 1, pa.date32()), "out of bounds"),
        ("time64[us]", dt.time(1, tzinfo=dt.UTC), "time zone"),
        ("time32[ms]", dt.time(1, 2, 3, 4), "more precise than ms"),
        ("timestamp[s]", NOON.replace(microsecond=1), "more precise than s"),
        ("timestamp[us]", pd.Timestamp(1), "more precise than us"),
        ("timestamp[us]", np.datetime64(1, "ns"), "more precise than us"),
        ("timestamp[us]", NOON_UTC, "it has a time zone, but the column has none"),
        ("timestamp[us, tz=UTC]", NOON, "it has no time zone, but the column is in UTC"),
        ("timestamp[ns]", dt.datetime(9999, 1, 1), "nanosecond"),
        ("timestamp[us]", 0, "of type int, not datetime"),
        ("list<item: int32>", [1.5], "not a whole number"),
        ("list<item: string>", "ab", "not a sequence"),
        ("list<item: string>", {"a": 1}, "a mapping, not a sequence"),
        ("struct<alpha: int64>", {"alpa": 1}, 'there is no field "alpa"; did you mean "alpha"?'),
        ("struct<a: int64>", [1], "not Mapping"),
        ("map<string, int64>", {"k": 1.5}, "not a whole number"),
        ("map<string, int64>", {None: 1}, "null"),
    ],
)
def test_a_value_that_would_change_is_refused_with_its_row(text: str, value: object, reason: str) -> None:
    with pytest.raises(NotAValueError) as caught:
        column_of([None, value, None], type_of(text))
    assert caught.value.row == 1
    assert reason in caught.value.reason
    assert f"cannot be cast to {text}" in caught.value.reason


def test_a_python_float_takes_the_width_of_its_column() -> None:
    assert column_of([0.1], pa.float32()).equals(pa.array([0.1], pa.float32()))


@pytest.mark.parametrize("null", [pd.NaT, pd.NA, np.datetime64("NaT", "ns")])
def test_the_nulls_of_other_libraries_are_nulls(null: object) -> None:
    assert column_of([null], pa.timestamp("ns")).null_count == 1


def test_nanoseconds_are_kept() -> None:
    column = column_of([pd.Timestamp(1001, tz="UTC")], pa.timestamp("ns", "UTC"))
    assert column.cast(pa.int64()).to_pylist() == [1001]


def test_a_long_value_is_not_shown() -> None:
    with pytest.raises(NotAValueError) as caught:
        column_of(["x" * 1000], pa.int64())
    assert len(caught.value.reason) < 200


@given(st.data())
def test_what_arrow_gives_out_is_taken_back_unchanged(data: st.DataObject) -> None:
    # No Python type can represent a time of day with nanoseconds.
    type_ = data.draw(key_types().filter(lambda type_: type_ != pa.time64("ns")))
    column = data.draw(columns(type_, 3))
    assert order_of(column_of(column.to_pylist(), type_)) == order_of(column)
