"""Evaluating predicates: three-valued logic, IEEE floats and nested fields, against a model in plain Python."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.expressions import Predicate, bind, col, evaluate
from scankv.model.expressions.nodes import Constant
from tests.support.examples import examples
from tests.unit.model.expression_strategies import PATHS, answers, batches, predicates

NAN = math.nan


@st.composite
def questions(draw: st.DrawFn) -> tuple[pa.RecordBatch, Predicate]:
    batch = draw(batches())
    return batch, draw(predicates(batch, PATHS))


@given(questions())
@examples(10)
def test_every_predicate_is_answered_as_the_model_answers(question: tuple[pa.RecordBatch, Predicate]) -> None:
    batch, predicate = question
    bound = bind(predicate, batch.schema)
    answer = evaluate(bound, batch.select(list(bound.columns)) if bound.columns else batch)
    assert answer.type == pa.bool_()
    assert answer.to_pylist() == answers(predicate, batch)


@given(questions())
@examples(8)
def test_binding_twice_is_binding_once(question: tuple[pa.RecordBatch, Predicate]) -> None:
    batch, predicate = question
    bound = bind(predicate, batch.schema)
    assert bind(bound.predicate, batch.schema) == bound


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (col("x") == 0.0, [True, True, False, False, None]),
        (col("x") == NAN, [False, False, False, False, None]),
        (col("x") != NAN, [True, True, True, True, None]),
        (col("x") > 1.0, [False, False, False, True, None]),
        (~(col("x") <= 1.0), [False, False, True, True, None]),
        (col("x").is_in([0.0]), [True, True, False, False, None]),
        (col("x").is_in([-0.0, NAN]), [True, True, False, False, None]),
        (~col("x").is_in([NAN]), [True, True, True, True, None]),
        (col("x").is_in([None]), [None] * 5),
        (~col("x").is_in([0.0, None]), [False, False, None, None, None]),
        (col("x").is_in([]), [False] * 5),
        (col("x").is_null(), [False, False, False, False, True]),
    ],
)
def test_floats_compare_as_ieee_says(type_: pa.DataType, predicate: Predicate, expected: list[bool | None]) -> None:
    batch = pa.record_batch([pa.array([0.0, -0.0, NAN, math.inf, None], type_)], names=["x"])
    assert evaluate(bind(predicate, batch.schema), batch).to_pylist() == expected


def test_a_narrow_float_is_compared_with_a_wide_one_without_rounding() -> None:
    batch = pa.record_batch([pa.array([0.1, 0.25], pa.float32())], names=["x"])
    assert evaluate(bind(col("x") == 0.1, batch.schema), batch).to_pylist() == [False, False]
    assert evaluate(bind(col("x") > 0.1, batch.schema), batch).to_pylist() == [True, True]
    assert evaluate(bind(col("x").is_in([0.1, 0.25]), batch.schema), batch).to_pylist() == [False, True]


def test_columns_of_different_widths_are_compared_exactly() -> None:
    columns = [pa.array([2**24 + 1], pa.int32()), pa.array([2.0**24], pa.float64()), pa.array([2**32 - 1], pa.uint32())]
    batch = pa.record_batch(columns, names=["i", "d", "u"])
    assert evaluate(bind(col("i") > col("d"), batch.schema), batch).to_pylist() == [True]
    assert evaluate(bind(col("u") > col("i"), batch.schema), batch).to_pylist() == [True]


@pytest.mark.parametrize("value", [True, False, None])
def test_a_constant_is_the_same_of_every_row_also_without_columns(value: bool | None) -> None:
    batch = pa.record_batch([pa.array([1, 2])], names=["x"])
    bound = bind(Constant(value), batch.schema)
    assert bound.columns == ()
    assert evaluate(bound, batch).to_pylist() == [value, value]


def test_a_filter_keeps_only_the_rows_where_the_answer_is_true() -> None:
    batch = pa.record_batch([pa.array([1, None, 3])], names=["x"])
    kept = batch.filter(evaluate(bind(~(col("x") == 1), batch.schema), batch))
    assert kept.to_pydict() == {"x": [3]}
