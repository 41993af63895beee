"""Aggregates equal what Python computes over all rows, however the rows are batched and merged."""

from __future__ import annotations

import math
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.tables.aggregates import Aggregate, AggregateFunction, mean_type
from streaming_server.scan.chunk_source import Chunk
from streaming_server.scan.queries.aggregation import Aggregation
from tests.support.examples import examples
from tests.support.tables import define
from tests.support.type_samples import decimals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("large", pa.int64()),
        ("unsigned", pa.uint64()),
        ("half", pa.float16()),
        ("real", pa.float64()),
        ("money", pa.decimal128(38, 2)),
        ("dozens", pa.decimal128(5, -2)),
        ("price", pa.decimal128(7, 2)),
        ("flag", pa.bool_()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.int64())),
    ]
)
TABLE = define(SCHEMA).schema
NUMBERS = ["k", "small", "large", "unsigned", "half", "real", "money", "dozens", "price"]
ORDERED = [name for name in SCHEMA.names if name != "list"]
FLOATS = [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, -math.nan, 100.0]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.integers(-5, 5),
    "small": st.integers(-128, 127),
    "large": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    "unsigned": st.integers(0, 2**64 - 1) | st.integers(0, 2),
    "half": st.sampled_from(FLOATS),
    "real": st.sampled_from(FLOATS),
    "money": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda cents: Decimal(f"{cents}e-2")),
    "dozens": st.integers(-99999, 99999).map(lambda hundreds: Decimal(hundreds).scaleb(2)),
    "price": st.integers(-(10**7) + 1, 10**7 - 1).map(lambda cents: Decimal(cents).scaleb(-2)),
    "flag": st.booleans(),
    "name": st.sampled_from(["", "a", "ab", "b", "ü", "a\0"]),
    "raw": st.binary(max_size=2),
    "day": st.integers(-3, 3),
    "at": st.integers(-(10**15), 10**15),
    "list": st.lists(st.integers(0, 1), max_size=2),
}


@st.composite
def rows(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.sampled_from([0, 1, 2, 8, 30]))
    arrays = []
    for field in SCHEMA:
        values = VALUES[field.name] if not field.nullable else st.none() | VALUES[field.name]
        drawn = draw(st.lists(values, min_size=count, max_size=count))
        if pa.types.is_temporal(field.type):
            arrays.append(pa.array(drawn, pa.int32() if field.name == "day" else pa.int64()).cast(field.type))
        elif pa.types.is_float16(field.type):
            arrays.append(pa.array(drawn, pa.float64(), from_pandas=False).cast(field.type))
        elif pa.types.is_decimal(field.type) and field.type.scale < 0:
            units = [None if value is None else value.scaleb(field.type.scale) for value in drawn]
            arrays.append(pa.array(units, pa.decimal128(field.type.precision, 0)).view(field.type))
        else:
            arrays.append(pa.array(drawn, field.type, from_pandas=False))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def key_order(value: Any) -> Any:
    """Returns a sort key with the order of keys: NaN above infinity, nulls last, text by its bytes."""
    if value is None:
        return (2, 0)
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return (0, value.encode() if isinstance(value, str) else value)


def python(function: AggregateFunction, values: Sequence[Any], type_: pa.DataType) -> Any:
    """Computes the expected result in Python. Raises ArithmeticError for a sum that does not fit."""
    values = [value for value in values if value is not None]
    match function:
        case AggregateFunction.COUNT:
            return len(values)
        case AggregateFunction.MIN:
            return min(values, key=key_order, default=None)
        case AggregateFunction.MAX:
            return max(values, key=key_order, default=None)
    if not values:
        return None
    if pa.types.is_floating(type_):
        # Exact in any order: multiples of a quarter, or not finite.
        total: Any = sum(values)
        return total if function is AggregateFunction.SUM else total / len(values)
    exact = sum(Fraction(value) for value in values)
    if function is AggregateFunction.MEAN and pa.types.is_decimal(type_):
        scale = mean_type(type_).scale
        units = abs(exact / len(values)) * Fraction(10) ** scale
        return Fraction(math.floor(units + Fraction(1, 2)), 1) * Fraction(10) ** -scale * (1 if exact >= 0 else -1)
    if function is AggregateFunction.MEAN:
        return Nearest(exact / len(values))
    if pa.types.is_decimal(type_):
        if abs(exact * Fraction(10) ** type_.scale) >= 10**38:
            raise ArithmeticError
    elif not 0 <= exact < 2**64 if pa.types.is_uint64(type_) else not -(2**63) <= exact < 2**63:
        raise ArithmeticError
    return exact


class Nearest(float):
    """A float that a result must equal to the last bit."""


def same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(other, Nearest):
        return bool(one == other)
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-14) or key_order(one) == key_order(float(other))
    return (
        bool(one == other)
        if isinstance(one, str | bytes | bool) or not isinstance(one, Decimal)
        else (Fraction(one) == Fraction(other))
    )


def python_values(array: pa.Array) -> list[Any]:
    if pa.types.is_decimal(array.type) and array.type.scale < 0:
        units = array.view(pa.decimal128(array.type.precision, 0)).to_pylist()
        return [None if unit is None else unit.scaleb(-array.type.scale) for unit in units]
    return [
        float(value) if pa.types.is_float16(array.type) and value is not None else value for value in array.to_pylist()
    ]


def answered(
    batch: pa.RecordBatch, aggregates: list[Aggregate], group_by: list[str], step: int, settle: Callable[[], bool]
) -> pa.RecordBatch:
    aggregation = Aggregation(aggregates, group_by, TABLE)
    for start in range(0, batch.num_rows, step):
        aggregation.add(Chunk(0, batch.select(aggregation.columns).slice(start, step)))
        if settle():
            aggregation.settle()
    return aggregation.result()


def functions_of(name: str) -> list[AggregateFunction]:
    wanted = [AggregateFunction.COUNT]
    if name in ORDERED:
        wanted += [AggregateFunction.MIN, AggregateFunction.MAX]
    if name in NUMBERS:
        wanted += [AggregateFunction.SUM, AggregateFunction.MEAN]
    return wanted


@given(st.data())
@examples(10)
def test_aggregates_are_those_of_python_for_every_type_and_grouping(data: st.DataObject) -> None:
    batch = data.draw(rows())
    columns = data.draw(st.lists(st.sampled_from(SCHEMA.names), unique=True, min_size=1, max_size=3))
    aggregates = [
        Aggregate(column, function)
        for column in columns
        for function in data.draw(st.lists(st.sampled_from(functions_of(column)), unique=True))
    ]
    group_by = data.draw(st.lists(st.sampled_from(ORDERED), unique=True, max_size=2, min_size=not aggregates))
    arguments = batch, aggregates, group_by, data.draw(st.integers(1, 12)), lambda: data.draw(st.booleans())

    values = {name: python_values(batch.column(name)) for name in SCHEMA.names}
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in range(batch.num_rows):
        groups[tuple(key_order(values[name][row]) for name in group_by)].append(row)
    if not group_by:
        groups.setdefault((), [])
    try:
        expected = [
            [
                python(each.function, [values[each.column][row] for row in groups[key]], SCHEMA.field(each.column).type)
                for each in aggregates
            ]
            for key in sorted(groups)
        ]
    except ArithmeticError:
        with pytest.raises(InvalidRequest, match="does not fit"):
            answered(*arguments)
        return
    result = answered(*arguments)
    result.validate(full=True)
    assert result.schema.names == [*group_by, *(each.name for each in aggregates)]
    keys = [python_values(result.column(name)) for name in group_by]
    assert [tuple(map(key_order, key)) for key in zip(*keys, strict=True)] == (sorted(groups) if group_by else [])
    for number, each in enumerate(aggregates):
        found = python_values(result.column(each.name))
        assert len(found) == len(expected)
        for one, wanted in zip(found, expected, strict=True):
            assert same(one, wanted[number]), (each, one, wanted[number])


@pytest.mark.parametrize(
    ("type_", "mean"),
    [
        (pa.decimal128(7, 2), pa.decimal128(11, 6)),
        (pa.decimal128(38, 2), pa.decimal128(38, 2)),
        (pa.decimal128(36, 2), pa.decimal128(38, 4)),
        (pa.decimal128(38, 38), pa.decimal128(38, 38)),
        (pa.decimal128(5, -2), pa.decimal128(9, 2)),
        (pa.decimal128(38, -38), pa.decimal128(38, -38)),
        (pa.decimal128(3, 5), pa.decimal128(9, 9)),
        (pa.decimal128(1, 38), pa.decimal128(38, 38)),
        (pa.decimal128(1, 0), pa.decimal128(5, 4)),
    ],
)
def test_means_of_decimals_are_exact_up_to_the_limits_of_their_type(type_: pa.DataType, mean: pa.DataType) -> None:
    most = 10**type_.precision - 1
    factor = 10 ** (mean.scale - type_.scale)
    for numbers in ([most] * 3, [-most] * 3, [most, most - 1], [-1, 0], [1, 1, 0], [1, 0, 0], [-1, -1, 0], [None, 1]):
        table = define(pa.schema([pa.field("k", pa.int64(), nullable=False), ("d", type_)])).schema
        aggregation = Aggregation([Aggregate("d", AggregateFunction.MEAN)], [], table)
        for number in numbers:
            batch = pa.RecordBatch.from_arrays([decimals(type_, [number])], names=["d"])
            aggregation.add(Chunk(0, batch))
        known = [number for number in numbers if number is not None]
        exact = Fraction(sum(known) * factor, len(known))
        rounded = math.floor(abs(exact) + Fraction(1, 2)) * (1 if exact >= 0 else -1)
        (column,) = aggregation.result().columns
        assert column.type == mean
        column.validate(full=True)
        assert column.equals(decimals(mean, [rounded])), (numbers, column)


def test_groups_over_the_limit_are_refused_and_as_many_as_it_are_not() -> None:
    def groups(count: int) -> Aggregation:
        aggregation = Aggregation([], ["k"], TABLE, max_groups=10)
        for number in range(count):
            aggregation.add(Chunk(0, pa.RecordBatch.from_pydict({"k": [number, 0]}, schema=TABLE.select(["k"]))))
        return aggregation

    assert groups(10).result().num_rows == 10
    with pytest.raises(InvalidRequest, match="10 groups"):
        groups(11).result()


@pytest.mark.breadth
def test_what_is_known_does_not_grow_with_the_rows() -> None:
    aggregation = Aggregation([Aggregate("name", AggregateFunction.MAX)], ["small"], TABLE)
    batch = pa.RecordBatch.from_pydict(
        {"small": [1, 2], "name": ["x" * 1000, "y"]}, schema=TABLE.select(["small", "name"])
    )
    settled = 0
    for _ in range(5000):
        aggregation.add(Chunk(0, batch))
        if aggregation.is_due:
            aggregation.settle()
            assert not aggregation.is_due
            settled += 1
    assert 10 < settled < 500
    assert aggregation.result().num_rows == 2


@pytest.mark.parametrize(
    ("aggregates", "group_by", "error", "message"),
    [
        ([], [], InvalidRequest, "the query has no aggregates"),
        (["lrge min"], [], SchemaMismatch, r"lrge.*did you mean"),
        (["large min"], ["nme"], SchemaMismatch, r"nme.*did you mean"),
        (["name sum"], [], SchemaMismatch, r'"name" is string, which has no sum'),
        (["flag mean"], [], SchemaMismatch, r'"flag" is bool, which has no mean'),
        (["list max"], [], SchemaMismatch, r'"list" is .*no order'),
        (["large sum"], ["list"], SchemaMismatch, r'"list" is .*grouped'),
        (["large sum", "large sum"], [], InvalidRequest, r'"large_sum" would be in the result twice'),
        (["large sum"], ["k", "k"], InvalidRequest, r'"k" would be in the result twice'),
    ],
)
def test_what_does_not_fit_the_table_is_refused(
    aggregates: list[str], group_by: list[str], error: type[Exception], message: str
) -> None:
    wanted = [Aggregate(text.split()[0], AggregateFunction(text.split()[1])) for text in aggregates]
    with pytest.raises(error, match=message):
        Aggregation(wanted, group_by, TABLE)
