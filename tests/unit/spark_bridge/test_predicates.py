"""Predicates with Spark's semantics restrict the keys that are read like the server's own, and keep NaN."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.expressions import bind, col, evaluate, plan_index, plan_keys
from scankv.model.expressions.literals import Literal
from scankv.model.expressions.nodes import And, Comparison, FieldPath, Not, Operator, Or
from scankv.model.keys.key_codec import KeyCodec
from spark_bridge.predicates import to_spark_semantics
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.expressions import Predicate

NAN = math.nan
FLOATS = [NAN, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.0, -1.0, 2.5]
LITERALS = [0.0, -0.0, 0.1, 0.5, 1.0, 2.5, -1.0, 1e300, -3.0]
COMPARE: dict[Operator, Callable[[float, float], bool]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
}


def rows_of(type_: pa.DataType, *, nullable: bool) -> pa.RecordBatch:
    """Returns every pair of these floats."""
    floats = [*FLOATS, None] if nullable else FLOATS
    pairs = [(x, y) for x in floats for y in floats]
    columns = [pa.array(values, type_, from_pandas=False) for values in zip(*pairs, strict=True)]
    return pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([pa.field(name, type_, nullable=nullable) for name in "xy"])
    )


def of_spark(predicate: Predicate, row: dict[str, float | None]) -> bool | None:
    """Evaluates a predicate for a row as Spark does: NaN equals itself and is greater than every number."""
    match predicate:
        case And(parts=parts) | Or(parts=parts):
            found = [of_spark(part, row) for part in parts]
            decisive = isinstance(predicate, Or)
            return decisive if decisive in found else None if None in found else not decisive
        case Not(operand=operand):
            inner = of_spark(operand, row)
            return None if inner is None else not inner
        case Comparison(left=left, operator=how, right=Literal() as right):
            value = row[left.names[0]]
            if value is None:
                return None
            # No literal is infinite, so infinity compares with all of them as NaN does in Spark.
            return COMPARE[how](math.inf if math.isnan(value) else value, right.scalar.as_py())
    raise AssertionError(predicate)


LEAVES = st.builds(
    lambda name, how, value: Comparison(FieldPath((name,)), how, value),
    st.sampled_from("xxy"),
    st.sampled_from(list(Operator)),
    st.sampled_from([Literal(pa.scalar(value, pa.float64())) for value in LITERALS]),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
        inner.map(Not),
    ),
    max_leaves=6,
)


@given(PREDICATES, st.sampled_from([pa.float64(), pa.float32()]), st.booleans())
@examples(20)
def test_ranges_and_residual_keep_the_rows_that_spark_keeps(
    predicate: Predicate, type_: pa.DataType, nullable: bool
) -> None:
    rows = rows_of(type_, nullable=nullable)
    bound = bind(to_spark_semantics(predicate, rows.schema), rows.schema)
    codec = KeyCodec(rows.schema.types, rows.schema.names, [nullable] * 2)
    keys = codec.encode(rows.columns).to_pylist()
    if nullable:
        planned = plan_index(bound, codec)
        if planned is None:
            return
        residual, ranges = planned.residual, planned.ranges
    else:
        plan = plan_keys(bound, codec)
        residual, ranges = plan.residual, plan.ranges
    asked = [True] * len(keys) if residual is None else evaluate(residual, rows).to_pylist()
    kept = [key in ranges and answer is True for key, answer in zip(keys, asked, strict=True)]
    assert kept == [of_spark(predicate, row) is True for row in rows.to_pylist()]


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (col("x") > 1.0, [2.5, math.inf, NAN]),
        (col("x") >= 1.0, [1.0, 2.5, math.inf, NAN]),
        (col("x") > 0.1, [0.5, 1.0, 2.5, math.inf, NAN]),
        (~(col("x") <= 1.0), [2.5, math.inf, NAN]),
        (~(col("x") > 0.5), [-math.inf, -1.0, 0.0, 0.5]),
        (col("x").between(0.5, 1.0), [0.5, 1.0]),
        ((col("x") > 1.0) | (col("x") < 0.0), [-math.inf, -1.0, 2.5, math.inf, NAN]),
    ],
    ids=str,
)
@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()], ids=str)
def test_bounds_of_a_float_say_all_by_ranges(predicate: Predicate, kept: list[float], type_: pa.DataType) -> None:
    schema = pa.schema([pa.field("x", type_, nullable=False)])
    codec = KeyCodec([type_], ["x"])
    bound = bind(to_spark_semantics(predicate, schema), schema)
    planned = plan_keys(bound, codec)
    assert planned.residual is None
    values = [-math.inf, -1.0, 0.0, 0.5, 1.0, 2.5, math.inf, NAN]
    found = [value for value in values if codec.encode_one([value]) in planned.ranges]
    assert list(map(str, found)) == list(map(str, kept))
    indexed = plan_index(bound, codec)
    assert indexed is not None
    assert indexed.residual is None
