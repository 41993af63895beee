"""Planning by an index: ranges of entries with the residual keep exactly the rows that the predicate keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from table_model.expressions import IndexPlan, Predicate, bind, col, evaluate, plan_index, plan_order
from table_model.expressions.nodes import Constant, FieldPath
from table_model.key_codec import KeyCodec
from table_model.key_range import KeyRange
from tests.unit.table_model.expression_strategies import answers, conjunctions, nullable
from tests.unit.table_model.strategies import key_types

SCHEMA = pa.schema(
    [
        ("league", pa.string()),
        ("score", pa.int64()),
        ("level", pa.float32()),
        pa.field("name", pa.string(), nullable=False),
        ("other", pa.int32()),
    ]
)


@st.composite
def index_questions(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str], Predicate]:
    """Some rows, columns of an index, and a predicate that is mostly about those."""
    rows = draw(st.integers(1, 8))
    names = ["k", "l", "m"][: draw(st.integers(1, 3))]
    arrays = []
    for _ in [*names, "v"]:
        type_ = draw(key_types())
        few = draw(st.lists(nullable(type_), min_size=1, max_size=4))
        arrays.append(pa.array(draw(st.lists(st.sampled_from(few), min_size=rows, max_size=rows)), type_))
    nulls = [bool(array.null_count) or draw(st.booleans()) for array in arrays]
    fields = [pa.field(*field) for field in zip([*names, "v"], (a.type for a in arrays), nulls, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    paths = [FieldPath((name,)) for name in [*names, *names, "v"]]
    return batch, names, draw(conjunctions(batch, paths))


def codec_of(schema: pa.Schema, *names: str) -> KeyCodec:
    fields = [schema.field(name) for name in names]
    return KeyCodec([field.type for field in fields], names, [field.nullable for field in fields])


def kept(found: list[bool], residual: object, batch: pa.RecordBatch) -> list[bool]:
    left = [True] * batch.num_rows if residual is None else evaluate(residual, batch).to_pylist()  # type: ignore[arg-type]
    return [here and rest is True for here, rest in zip(found, left, strict=True)]


def floats(*values: float | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.float32(), from_pandas=False), pa.array([1] * len(values))], names=["k", "v"]
    )


@given(index_questions())
@settings(max_examples=20)
@example((floats(None, float("nan"), float("inf")), ["k"], col("k") > 5.0))
@example((floats(None, -0.0, 0.0), ["k"], (col("k") >= 0.0) & (col("k") <= -0.0)))
@example((floats(None, 0.1, float("nan")), ["k"], (col("k") > 0.1) & col("k").is_not_null()))
@example((floats(None, 3.0e38, float("inf")), ["k"], col("k") < 1e300))
@example((floats(None, 1.0), ["k", "v"], col("k").is_null() & (col("v") == 1)))
@example((pa.record_batch([["a\0", None, "a"], [1, 2, 3]], names=["k", "v"]), ["k"], col("k").starts_with("")))
@example((pa.record_batch([["a\0", None, "a"], [1, 2, 3]], names=["k", "v"]), ["k"], col("k") > "a"))
def test_ranges_and_residual_keep_what_the_predicate_keeps(
    question: tuple[pa.RecordBatch, list[str], Predicate],
) -> None:
    batch, names, predicate = question
    codec = codec_of(batch.schema, *names)
    planned = plan_index(bind(predicate, batch.schema), codec)
    if planned is None:
        return
    entries = codec.encode([batch.column(name) for name in names]).to_pylist()
    within = [sum(entry in one for one in planned.ranges) for entry in entries]
    assert set(within) <= {0, 1}, "ranges overlap"
    starts = [one.start or b"" for one in planned.ranges]
    assert starts == sorted(starts)
    expected = [answer is True for answer in answers(predicate, batch)]
    assert kept([count == 1 for count in within], planned.residual, batch) == expected
    told = [answer is True for answer in answers(planned.told, batch)]
    assert told == [count == 1 for count in within]


@given(index_questions(), st.booleans())
@settings(max_examples=20)
def test_the_part_in_order_and_its_residual_keep_what_the_predicate_keeps(
    question: tuple[pa.RecordBatch, list[str], Predicate], everything: bool
) -> None:
    batch, names, predicate = question
    codec = codec_of(batch.schema, *names)
    by = names[-1]
    bound = None if everything else bind(predicate, batch.schema)
    planned = plan_order(bound, by, codec)
    if planned is None:
        assert bound is not None or len(names) > 1
        return
    entries = codec.encode([batch.column(name) for name in names]).to_pylist()
    values, nulls = ([entry in one for entry in entries] for one in (planned.values, planned.nulls))
    is_null = batch.column(by).is_null().to_pylist()
    assert not any(value and null for value, null in zip(values, is_null, strict=True))
    assert not any(null and not really for null, really in zip(nulls, is_null, strict=True))
    found = [value or null for value, null in zip(values, nulls, strict=True)]
    expected = [everything or answer is True for answer in answers(predicate, batch)]
    assert kept(found, planned.residual, batch) == expected


def plan(predicate: Predicate, *names: str) -> IndexPlan | None:
    return plan_index(bind(predicate, SCHEMA), codec_of(SCHEMA, *names))


@pytest.mark.parametrize(
    ("predicate", "columns", "rank"),
    [
        (col("league") == "a", ["league", "score"], (1, 0)),
        ((col("league") == "a") & (col("score") == 3), ["league", "score"], (2, 0)),
        (col("league").is_null() & (col("score") > 3), ["league", "score"], (1, 2)),
        ((col("league") == "a") & col("score").between(3, 5), ["league", "score"], (1, 3)),
        ((col("league") == "a") & col("score").is_in([3, 5]), ["league", "score"], (1, 4)),
        ((col("league") == "a") & col("score").is_not_null(), ["league", "score"], (1, 1)),
        (col("name").starts_with("a"), ["name"], (0, 3)),
        (col("level") < 0.1, ["level"], (0, 2)),
    ],
)
def test_all_of_it_is_told_by_ranges(predicate: Predicate, columns: list[str], rank: tuple[int, int]) -> None:
    planned = plan(predicate, *columns)
    assert planned is not None
    assert planned.residual is None
    assert planned.rank == rank
    assert planned.told == predicate


@pytest.mark.parametrize(
    "predicate",
    [
        col("score") == 3,  # not the first column
        (col("league") == "a") | (col("league") == "b"),
        col("league") != "a",
        col("league").contains("a"),
        (col("league") == "a") & Constant(value=False),
        (col("league") == "a") & Constant(value=None),
    ],
)
def test_what_does_not_bound_the_first_column_is_no_plan(predicate: Predicate) -> None:
    assert plan(predicate, "league", "score") is None


def test_is_in_of_very_many_values_is_no_plan() -> None:
    assert plan(col("score").is_in(range(1001)), "score") is None
    few = plan(col("score").is_in([5, 3, None, 5]), "score")
    assert few is not None
    assert few.ranges == tuple(KeyRange.under(b"\1\x80" + bytes(6) + bytes([value])) for value in (3, 5))


def test_rows_are_in_order_only_by_the_last_column_with_all_before_it_equal() -> None:
    def equal(predicate: Predicate | None, by: str, *columns: str) -> int | None:
        bound = None if predicate is None else bind(predicate, SCHEMA)
        planned = plan_order(bound, by, codec_of(SCHEMA, *columns))
        return None if planned is None else planned.equal

    assert equal(None, "score", "score") == 0
    assert equal(None, "score", "league", "score") is None
    assert equal(None, "league", "league", "score") is None
    assert equal(col("league") == "a", "score", "league", "score") == 1
    assert equal(col("league").is_null(), "score", "league", "score") == 1
    assert equal(col("league") > "a", "score", "league", "score") is None
    assert equal(col("other") == 3, "score", "score") == 0
    assert equal(col("score") > 3, "score", "score") == 0
