"""Comparisons with values that a column cannot have are answered as SQL does, also by key ranges, indexes and zones."""

from __future__ import annotations

import datetime as dt
import math
import operator
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import SchemaMismatch
from scankv.model.expressions import Predicate, bind, col, evaluate, parse_where, plan_index, plan_keys
from scankv.model.expressions.literals import Literal, literal_of, values_of
from scankv.model.expressions.nodes import Comparison, FieldPath, IsIn, Not, Operator
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_ranges import NO_KEY_RANGES
from streaming_server.scan.columnar.zone_maps import may_match
from streaming_server.storage.columnar.columnar_base import Zone
from tests.support.examples import examples

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
COMPARE = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
}
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERS = [*INTEGERS, pa.decimal128(6, 2), pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(3, -2)]
INSTANTS = [pa.date32(), *(pa.timestamp(unit) for unit in NANOSECONDS)]
ZONED = [pa.timestamp(unit, "UTC") for unit in NANOSECONDS]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]


def units_of(type_: pa.DataType) -> tuple[Fraction, int, int]:
    """Returns the step of a type, and its least and greatest value in steps."""
    bits = type_.bit_width
    if pa.types.is_decimal(type_):
        most = 10**type_.precision - 1
        return Fraction(10) ** -type_.scale, -most, most
    if pa.types.is_unsigned_integer(type_):
        return Fraction(1), 0, 2**bits - 1
    step = 86_400 * 10**9 if pa.types.is_date32(type_) else NANOSECONDS[type_.unit] if hasattr(type_, "unit") else 1
    if pa.types.is_time(type_):
        return Fraction(step), 0, 86_400 * 10**9 // step - 1
    return Fraction(step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def value_of(steps: int, type_: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(type_):
        return pa.scalar(Decimal((int(steps < 0), tuple(map(int, str(abs(steps)))), -type_.scale)), type_)
    if pa.types.is_temporal(type_):
        return pa.array([steps], pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)[0]
    return pa.scalar(steps, type_)


@st.composite
def steps_near(draw: st.DrawFn, type_: pa.DataType, others: list[Fraction]) -> int:
    """Generates values in steps: the extremes, values near zero, and neighbors of other values."""
    step, least, greatest = units_of(type_)
    near = st.sampled_from([least, 0, greatest, *(math.floor(other / step) for other in others)])
    found = draw(st.one_of(st.integers(least, greatest), st.builds(int.__add__, near, st.integers(-2, 2))))
    return min(max(found, least), greatest)


@st.composite
def questions(draw: st.DrawFn) -> tuple[pa.DataType, list[int | None], pa.DataType, list[int]]:
    """Generates values of a column, and values of another type of the same kind near them."""
    kind = draw(st.sampled_from([NUMBERS, NUMBERS, INSTANTS, ZONED, TIMES]))
    column, other = draw(st.sampled_from(kind)), draw(st.sampled_from(kind))
    rows = draw(st.lists(steps_near(column, []), min_size=1, max_size=4))
    places = [row * units_of(column)[0] for row in rows]
    asked = draw(st.lists(steps_near(other, places), min_size=1, max_size=3))
    places = [one * units_of(other)[0] for one in asked]
    rows += draw(st.lists(steps_near(column, places), max_size=4))
    return column, [*rows, None], other, asked


def kept_by_plans(predicate: Predicate, batch: pa.RecordBatch) -> list[list[bool]]:
    """Returns the rows that are found in the ranges of a key and of an index; null is in no key."""
    bound = bind(predicate, batch.schema)
    codec = KeyCodec(batch.schema.types, batch.schema.names, [True])
    found = []
    for planned in (plan_keys(bound, codec), plan_index(bound, codec)):
        if planned is not None:
            rest = [True] * len(batch) if planned.residual is None else evaluate(planned.residual, batch).to_pylist()
            keys = codec.encode(batch.columns).to_pylist()
            found.append([key in planned.ranges and bool(kept) for key, kept in zip(keys, rest, strict=True)])
    return found


@pytest.mark.breadth
@given(questions(), st.sampled_from(list(Operator)))
@examples(30)
def test_a_comparison_with_any_value_of_its_kind_is_exact(
    question: tuple[pa.DataType, list[int | None], pa.DataType, list[int]], how: Operator
) -> None:
    column, rows, other, asked = question
    cells = pa.array([None if row is None else value_of(row, column) for row in rows], column)
    batch = pa.record_batch([cells], names=["c"])
    places = [None if row is None else row * units_of(column)[0] for row in rows]
    wanted = [one * units_of(other)[0] for one in asked]
    path, first = FieldPath(("c",)), literal_of(value_of(asked[0], other))
    compared = [None if place is None else bool(COMPARE[how](place, wanted[0])) for place in places]
    among = [None if place is None else place in wanted for place in places]
    values = IsIn(path, values_of(pa.array([value_of(one, other) for one in asked], other)))
    for predicate, answers in ((Comparison(path, how, first), compared), (values, among)):
        opposite = [None if answer is None else not answer for answer in answers]
        for asks, expected in ((predicate, answers), (Not(predicate), opposite)):
            bound = bind(asks, batch.schema)
            assert evaluate(bound, batch).to_pylist() == expected
            assert bind(bound.predicate, batch.schema) == bound
            kept = [answer is True for answer in expected]
            for found in kept_by_plans(asks, batch):
                assert found == kept
            for row, is_kept in enumerate(kept):
                cell = cells[row] if cells[row].is_valid else None
                zones = {"c": Zone(cell, cell, nulls=int(cell is None), has_nan=False)}
                assert may_match(bound.predicate, zones.get) or not is_kept


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.int64(), "c > 1.5", [False, True, None]),
        (pa.int64(), "c >= 1.5 OR c <= 0.5", [False, True, None]),
        (pa.int64(), "NOT c < 1.5", [False, True, None]),
        (pa.int64(), "c = 1.5", [False, False, None]),
        (pa.int64(), "c <> 1.5", [True, True, None]),
        (pa.int64(), "c IN (1, 1.5)", [True, False, None]),
        (pa.int64(), "c NOT IN (1, 1.5)", [False, True, None]),
        (pa.int64(), "c IN (2.5, NULL)", [None, None, None]),
        (pa.int64(), "c IN (2.5, 3.5)", [False, False, None]),
        (pa.int64(), "c NOT IN (2.5, 99999999999999999999)", [True, True, None]),
        (pa.int64(), "c BETWEEN 0.5 AND 1.5", [True, False, None]),
        (pa.int64(), "c < 99999999999999999999", [True, True, None]),
        (pa.int64(), "c > -99999999999999999999.5", [True, True, None]),
        (pa.int64(), "c > 1e300", [False, False, None]),
        (pa.int64(), "c > NULL", [None, None, None]),
        (pa.uint8(), "c < 300", [True, True, None]),
        (pa.uint8(), "c = 300", [False, False, None]),
        (pa.uint8(), "c <> -1", [True, True, None]),
        (pa.uint8(), "c IN (1, 300)", [True, False, None]),
        (pa.uint8(), "c BETWEEN -1 AND 300", [True, True, None]),
        (pa.decimal128(4, 2), "c > 1.005", [False, True, None]),
        (pa.decimal128(4, 2), "c = 1.005 OR c = 2e0", [False, True, None]),
        (pa.decimal128(4, 2), "c < 1000", [True, True, None]),
        (pa.float64(), "c < 9007199254740993 AND c <> 1.00000000000000000001", [False, True, None]),
        (pa.float32(), "c > 1.5 AND c <= 2.00000000000000000000001", [False, True, None]),
    ],
)
def test_numbers_are_answered_as_sql_does(type_: pa.DataType, text: str, expected: list[bool | None]) -> None:
    batch = pa.record_batch([pa.array([1, 2, None], type_)], names=["c"])
    assert evaluate(bind(parse_where(text, batch.schema), batch.schema), batch).to_pylist() == expected


@pytest.mark.parametrize(("value", "above"), [(math.inf, False), (-math.inf, True), (math.nan, False)])
@pytest.mark.parametrize("type_", [pa.int64(), pa.decimal128(4, 2)], ids=str)
def test_floats_that_are_no_numbers_compare_with_integers_as_ieee_says(
    type_: pa.DataType, value: float, above: bool
) -> None:
    batch = pa.record_batch([pa.array([1, None], type_)], names=["c"])
    expected = [(col("c") > value, above), (col("c") == value, False), (col("c") != value, True)]
    for predicate, answer in expected:
        assert evaluate(bind(predicate, batch.schema), batch).to_pylist() == [answer, None]
    less = not above and not math.isnan(value)
    assert evaluate(bind(col("c") < value, batch.schema), batch).to_pylist() == [less, None]


def test_a_float_beside_a_decimal_is_the_decimal_of_the_same_text() -> None:
    batch = pa.record_batch([pa.array([Decimal("0.10"), Decimal("0.11")])], names=["c"])
    assert evaluate(bind(col("c") == 0.1, batch.schema), batch).to_pylist() == [True, False]
    assert evaluate(bind(col("c") > 0.1, batch.schema), batch).to_pylist() == [False, True]
    assert evaluate(bind(col("c").is_in([0.1, 0.105]), batch.schema), batch).to_pylist() == [True, False]


def test_a_comparison_that_no_key_can_fulfil_reads_no_key() -> None:
    schema = pa.schema([pa.field("k", pa.uint8(), nullable=False)])
    codec = KeyCodec([pa.uint8()], ["k"])
    for predicate in (col("k") == 300, col("k") > 255.5, col("k").is_in([-1, 1.5]), col("k") < -3):
        assert plan_keys(bind(predicate, schema), codec).ranges == NO_KEY_RANGES
    every = plan_keys(bind(col("k") < 300, schema), codec)
    assert (every.residual, every.ranges.span.start) == (None, None)


def test_values_of_another_kind_are_still_refused() -> None:
    schema = pa.schema([("n", pa.int64()), ("z", pa.timestamp("us", "UTC")), ("t", pa.time32("s")), ("b", pa.bool_())])
    for predicate in (
        col("n") > dt.date(2026, 1, 1),
        col("n").is_in([True]),
        col("z") > dt.datetime(2026, 1, 1),
        col("t") > dt.date(2026, 1, 1),
        col("b") == 1,
        col("b").is_in([0.5]),
        col("n") > "1",
    ):
        with pytest.raises(SchemaMismatch, match="cannot be compared with a value of type"):
            bind(predicate, schema)
    assert isinstance(literal_of(1), Literal)
