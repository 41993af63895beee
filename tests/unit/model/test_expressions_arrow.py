"""Arrow expressions are accepted if their meaning is exactly the same, including nulls, and are refused otherwise."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import UsageError
from scankv.model.expressions import Predicate, bind, col, convert_arrow, evaluate, from_pyarrow
from scankv.model.expressions.nodes import Constant
from tests.support.examples import examples

TABLE = pa.table(
    {
        "i": pa.array([-1, 0, 1, 2, None], pa.int64()),
        "f": pa.array([float("nan"), 0.5, 1.5, float("inf"), None], pa.float64()),
        "t": pa.array(["", "a", "ab", 'q"\n', None]),
        "b": pa.array([True, False, None, True, False]),
        "s": pa.array([{"x": 1}, {"x": 2}, {"x": None}, None, {"x": 1}], pa.struct([("x", pa.int64())])),
    }
)
FIELD = {name: pc.field(name) for name in TABLE.column_names}
LEAVES = [
    FIELD["i"] > 0,
    FIELD["i"] <= 1,
    pc.scalar(1) == FIELD["i"],
    FIELD["i"] != FIELD["i"],
    FIELD["f"] >= 1.5,
    FIELD["f"] != float("nan"),
    FIELD["f"].isin([0.5, 1.5, None]),
    FIELD["t"] == "ab",
    FIELD["t"].isin(["a", 'q"\n']),
    FIELD["t"].isin(["a", None]),
    FIELD["t"].isin(pa.array([], pa.string())),
    pc.is_in(FIELD["t"], options=pc.SetLookupOptions(pa.array(["a", None]), skip_nulls=True)),
    pc.starts_with(FIELD["t"], "a"),
    pc.match_substring(FIELD["t"], '"'),
    pc.ends_with(FIELD["t"], "a"),
    pc.match_like(FIELD["t"], "%\\%_"),
    pc.match_like(FIELD["t"], "_%a"),
    FIELD["b"],
    FIELD["b"] == True,  # noqa: E712
    FIELD["i"].is_null(),
    FIELD["s"].is_valid(),
    pc.field("s", "x") == 1,
    pc.field(("s", "x")).is_null(),
    pc.scalar(True),
    pc.scalar(False),
    FIELD["i"] == pa.scalar(None, pa.int64()),
]
expressions = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=5,
)


@given(expressions)
@examples(15)
def test_an_arrow_expression_is_answered_as_arrow_answers_it(expression: pc.Expression) -> None:
    (batch,) = TABLE.to_batches()
    answer = evaluate(bind(from_pyarrow(expression), TABLE.schema), batch)
    expected = ds.dataset(TABLE).to_table(columns={"answer": expression})["answer"]
    assert answer.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("expression", "predicate"),
    [
        ((pc.field("a") > 1) & (pc.field("b") > 2) & ~(pc.field("c") > 3), None),
        (pc.field("score") > 100, col("score") > 100),
        (pc.scalar(100) > pc.field("score"), col("score") < 100),
        (pc.field("a", "b") == "x", col("a")["b"] == "x"),
        (pc.field("a") == dt.date(2026, 1, 31), col("a") == dt.date(2026, 1, 31)),
        (pc.field("a") == pa.scalar(1.5, pa.float32()), col("a") == 1.5),
        (pc.field("a\n'b'").is_valid(), col("a\n'b'").is_not_null()),
        (pc.scalar(None), Constant(None)),
    ],
)
def test_an_arrow_expression_becomes_the_predicate_that_says_the_same(
    expression: pc.Expression, predicate: Predicate | None
) -> None:
    expected = (col("a") > 1) & (col("b") > 2) & ~(col("c") > 3) if predicate is None else predicate
    assert from_pyarrow(expression) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (pc.field("a") + 1 > 2, "Arrow's add_checked"),
        (pc.field("a").cast("int8") > 2, "Arrow's cast"),
        (pc.field("a").is_null(nan_is_null=True), "nan_is_null=True"),
        (pc.field("a").isin([float("nan")]), "Arrow's is_in"),
        (pc.field("a").isin([0.0]), "Arrow's is_in"),
        (pc.starts_with(pc.field("a"), "x", ignore_case=True), "ignore_case=True"),
        (pc.is_nan(pc.field("a")), "Arrow's is_nan"),
        (pc.and_(pc.field("a"), pc.field("b")), "Arrow's and_"),
        (pc.field(0) > 1, "cannot be read"),
        (pc.scalar(1), "true or false"),
        (pc.field("a") == pa.scalar([1]), "cannot be compared"),
        ((pc.field("a") > 1) == (pc.field("b") > 1), "Arrow's equal"),
        ("a > 1", "expected a pyarrow.compute.Expression"),
    ],
    ids=repr,
)
def test_an_arrow_expression_without_exact_counterpart_is_refused(expression: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_pyarrow(expression)


def _duckdb_in(name: str, values: pa.Array) -> pc.Expression:
    """Returns SQL's `IN` as DuckDB hands it to pyarrow."""
    field = FIELD[name]
    return pc.if_else(field.is_valid(), field.isin(values), pa.scalar(None, pa.bool_()))


def test_the_in_of_duckdb_is_that_of_sql() -> None:
    assert from_pyarrow(_duckdb_in("t", pa.array(["a", "b"]))) == col("t").is_in(["a", "b"])
    # Arrow distinguishes the zeros, SQL does not.
    assert from_pyarrow(_duckdb_in("f", pa.array([0.0, 1.5]))) == col("f").is_in([0.0, 1.5])
    for expression in (
        _duckdb_in("f", pa.array([0.0, float("nan")])),
        pc.if_else(FIELD["i"].is_valid(), FIELD["t"].isin(["a"]), pa.scalar(None, pa.bool_())),
        pc.if_else(FIELD["i"] > 0, FIELD["t"].isin(["a"]), pa.scalar(None, pa.bool_())),
    ):
        with pytest.raises(UsageError, match="is not supported"):
            from_pyarrow(expression)


def test_the_conjuncts_that_can_be_converted_are() -> None:
    known, other = FIELD["i"] > 0, pc.abs(FIELD["f"]) > 0.5
    converted = convert_arrow(known & (other & FIELD["t"].is_null()))
    assert set(converted.predicates) == {col("i") > 0, col("t").is_null()}
    assert converted.columns == frozenset("ift")
    assert "abs" in str(converted.reason)
    for expression in (known | other, ~(known & other), (known & other) == (known | known)):
        assert convert_arrow(expression).predicates == ()
    assert convert_arrow(pc.field(0) > 1).columns is None
