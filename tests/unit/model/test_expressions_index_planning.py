"""Planning by an index: ranges of entries with the residual keep exactly the rows of the predicate."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scankv.model.expressions import IndexPlan, Predicate, bind, col, evaluate, plan_index, plan_order
from scankv.model.expressions.nodes import Constant, FieldPath
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges
from tests.support.examples import examples
from tests.unit.model.expression_strategies import answers, conjunctions, disjunctions, nullable
from tests.unit.model.strategies import key_types

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
    """Generates some rows, columns of an index, and a predicate that is mostly on these columns."""
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
    return batch, names, draw(st.one_of(conjunctions(batch, paths), disjunctions(batch, paths)))


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
@examples(10)
@example((floats(None, float("nan"), float("inf")), ["k"], col("k") > 5.0))
@example((floats(None, float("nan"), float("inf")), ["k"], ~(col("k") <= 5.0)))
@example((floats(None, float("nan"), 5.0), ["k"], (col("k") == 5.0) | col("k").is_null()))
@example((floats(None, float("nan"), 5.0), ["k"], (col("k") < 5.0) | (col("k") >= 5.0)))
@example((floats(None, float("nan"), 5.0), ["k"], (col("k") == 5.0) | ~(col("k").is_in([]) & (col("k") == 5.0))))
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
    # Every entry has a primary key after its columns.
    within = [sum(entry + key in one for one in planned.ranges) for entry in entries for key in (b"\0", b"\xff")]
    assert set(within) <= {0, 1}, "ranges overlap"
    assert within[::2] == within[1::2]
    assert all(not one.is_empty for one in planned.ranges)
    assert list(planned.ranges.starts) == sorted(set(planned.ranges.starts))
    expected = [answer is True for answer in answers(predicate, batch)]
    assert kept([count == 1 for count in within[::2]], planned.residual, batch) == expected


@given(index_questions(), st.booleans())
@examples(12)
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
    entries = [entry + b"\xff" for entry in codec.encode([batch.column(name) for name in names]).to_pylist()]
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
        (col("league") == "a", ["league", "score"], (1, 0, -1)),
        ((col("league") == "a") & (col("score") == 3), ["league", "score"], (2, 0, -1)),
        (col("league").is_null() & (col("score") > 3), ["league", "score"], (1, 2, -1)),
        ((col("league") == "a") & col("score").between(3, 5), ["league", "score"], (1, 3, -1)),
        ((col("league") == "a") & col("score").is_in([3, 5]), ["league", "score"], (2, 0, -2)),
        ((col("league") == "a") & col("score").is_not_null(), ["league", "score"], (1, 1, -1)),
        (col("league").is_in(["a", "b"]) & (col("score") > 3), ["league", "score"], (1, 2, -2)),
        ((col("score") < 3) | (col("score") > 900), ["score"], (0, 2, -2)),
        (col("score").is_null() | (col("score") == 3), ["score"], (1, 0, -2)),
        (col("score").is_not_null(), ["score"], (0, 1, -1)),
        (col("name").starts_with("a"), ["name"], (0, 3, -1)),
        (col("level") < 0.1, ["level"], (0, 2, -1)),
        (~(col("level") <= 0.5), ["level"], (0, 2, -1)),
        ((col("level") >= 0.5) & (col("level") < 1.5), ["level"], (0, 3, -1)),
        (col("level") >= 0.5, ["level"], (0, 2, -1)),
        ((col("league") == "a") & Constant(value=False), ["league"], (1, 3, 0)),
        ((col("score") > 5) & (col("score") < 3), ["score"], (1, 3, 0)),
    ],
)
def test_all_of_it_is_told_by_ranges(predicate: Predicate, columns: list[str], rank: tuple[int, int, int]) -> None:
    planned = plan(predicate, *columns)
    assert planned is not None
    assert planned.residual is None
    assert planned.rank == rank
    assert len(planned.ranges) == -rank[2]


def under(*values: object) -> KeyRange:
    """Returns the entries with these values of league and score."""
    names = ["league", "score"][: len(values)]
    arrays = [pa.array([value], SCHEMA.field(name).type) for name, value in zip(names, values, strict=True)]
    return KeyRange.under(codec_of(SCHEMA, *names).encode(arrays)[0].as_py())


def test_conjunctions_joined_by_or_are_the_ranges_of_each() -> None:
    either = ((col("league") == "b") & (col("score") == 4)) | ((col("league") == "a") & (col("score") > 3))
    planned = plan(either, "league", "score")
    assert planned is not None
    behind = KeyRange(under("a", 3).end, under("a", None).start)
    assert planned.ranges == KeyRanges.of(behind, under("b", 4))
    assert planned.residual is None
    with_other = either & (col("other") == 1)
    assert plan(with_other, "league", "score") == IndexPlan(
        planned.ranges, bind(col("other") == 1, SCHEMA), planned.rank
    )


@pytest.mark.parametrize(
    "predicate",
    [
        col("score") == 3,  # not the first column
        (col("league") == "a") | (col("score") == 3),
        col("league") != "a",
        ~col("league").is_in(["a", "b", "c"]),
        (col("league") != "a") | col("league").is_null(),
        col("league").contains("a"),
        (col("league") == "a") | Constant(value=True),
    ],
)
def test_what_does_not_bound_the_first_column_is_no_plan(predicate: Predicate) -> None:
    assert plan(predicate, "league", "score") is None


def test_lists_of_ten_thousand_values_are_one_range_each_and_longer_ones_a_single_range() -> None:
    few = plan(col("score").is_in([5, 3, None, 5]), "score")
    assert few is not None
    assert few.ranges == KeyRanges.of(*(KeyRange.under(b"\1\x80" + bytes(6) + bytes([value])) for value in (3, 5)))
    many = plan(col("score").is_in(range(0, 20_000, 2)), "score")
    assert many is not None
    assert (len(many.ranges), many.residual) == (10_000, None)
    long = col("score").is_in(range(0, 20_002, 2))
    one = plan(long, "score")
    assert one is not None
    assert (len(one.ranges), one.residual) == (1, bind(long, SCHEMA))


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
    assert equal(col("league").is_in(["a", "b"]), "score", "league", "score") is None
    assert equal((col("league") == "a") | (col("league") == "b"), "score", "league", "score") is None
    assert equal((col("league") == "a") & (col("score") != 3), "score", "league", "score") == 1


def test_the_part_in_order_of_several_ranges_is_one_range_with_a_residual() -> None:
    asked = (col("league") == "a") & ((col("score") < 3) | (col("score") > 9))
    planned = plan_order(bind(asked, SCHEMA), "score", codec_of(SCHEMA, "league", "score"))
    assert planned is not None
    assert planned.values == KeyRange(under("a").start, under("a", None).start)
    assert planned.nulls.is_empty
    assert planned.residual == bind(asked, SCHEMA)
    or_null = (col("league") == "a") & (col("score").is_null() | (col("score") > 9))
    both = plan_order(bind(or_null, SCHEMA), "score", codec_of(SCHEMA, "league", "score"))
    assert both is not None
    assert (both.values, both.nulls) == (KeyRange(under("a", 9).end, under("a", None).start), under("a", None))
    assert both.residual is None
