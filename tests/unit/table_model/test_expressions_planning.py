"""Planning by keys: points and ranges with the residual keep exactly the rows that the predicate keeps."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from table_model.expressions import KeyPlan, Predicate, bind, col, conjuncts, evaluate, plan_keys
from table_model.expressions.nodes import Constant, FieldPath
from table_model.key_codec import KeyCodec
from table_model.key_range import KeyRange
from table_model.limits import MAX_KEY_BYTES
from tests.unit.table_model.expression_strategies import answers, conjunctions, keyed_batches

SCHEMA = pa.schema(
    [
        pa.field("player", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("level", pa.float32(), nullable=False),
        pa.field("score", pa.int64()),
    ]
)


def codec_for(*names: str) -> KeyCodec:
    return KeyCodec([SCHEMA.field(name).type for name in names], names)


def plan(predicate: Predicate, *names: str) -> KeyPlan:
    return plan_keys(bind(predicate, SCHEMA), codec_for(*names))


def encoded(names: list[str], *values: object) -> bytes:
    return codec_for(*names[: len(values)]).encode_one(values)


@st.composite
def key_questions(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str], Predicate]:
    batch, names = draw(keyed_batches())
    paths = [FieldPath((name,)) for name in [*names, *names, "v"]]
    return batch, names, draw(conjunctions(batch, paths))


@given(key_questions())
@settings(max_examples=40)
@example((pa.record_batch([[float("nan")], [1]], names=["k", "v"]), ["k"], col("k") > 5.0))
@example((pa.record_batch([[-0.0], [1]], names=["k", "v"]), ["k"], (col("k") >= 0.0) & (col("k") <= -0.0)))
@example((pa.record_batch([["a\0"], [1]], names=["k", "v"]), ["k"], col("k").starts_with("a\0")))
@example((pa.record_batch([["a"], [1]], names=["k", "v"]), ["k"], col("k").starts_with("a\0")))
@example((pa.record_batch([[2**63 - 1], [1]], names=["k", "v"]), ["k"], col("k") > 2**63 - 1))
def test_plan_and_residual_keep_what_the_predicate_keeps(
    question: tuple[pa.RecordBatch, list[str], Predicate],
) -> None:
    batch, names, predicate = question
    codec = KeyCodec([batch.schema.field(name).type for name in names], names)
    planned = plan_keys(bind(predicate, batch.schema), codec)
    keys = codec.encode([batch.column(name) for name in names]).to_pylist()
    if planned.points is None:
        found = [key in planned.key_range for key in keys]
    else:
        assert list(planned.points) == sorted(set(planned.points))
        found = [key in planned.points for key in keys]
    residual = planned.residual
    left = [True] * len(keys) if residual is None else evaluate(residual, batch).to_pylist()
    kept = [here and rest is True for here, rest in zip(found, left, strict=True)]
    assert kept == [answer is True for answer in answers(predicate, batch)]


@given(key_questions())
@settings(max_examples=15)
def test_all_conjuncts_are_true_where_the_predicate_is(
    question: tuple[pa.RecordBatch, list[str], Predicate],
) -> None:
    batch, _, predicate = question
    parts = [answers(part, batch) for part in conjuncts(predicate)]
    together = [all(value is True for value in row) for row in zip(*parts, strict=True)]
    assert together == [value is True for value in answers(predicate, batch)]


def test_only_what_is_joined_by_and_is_split() -> None:
    a, b, c = (col(name) == 1 for name in "abc")
    assert conjuncts(a & ~(b | ~c)) == [a, ~b, c]
    assert conjuncts(~~(a & b)) == [a, b]
    assert conjuncts(~(a & b)) == [~(a & b)]
    assert conjuncts(a | b) == [a | b]


def test_equality_on_the_whole_key_is_one_point() -> None:
    key = ["player", "round"]
    planned = plan((col("round") == 7) & (col("player") == "ann") & (col("score") > 5), *key)
    assert planned.points == (encoded(key, "ann", 7),)
    assert planned.residual == bind(col("score") > 5, SCHEMA)
    assert planned.residual is not None
    assert planned.residual.columns == ("score",)


def test_is_in_on_a_key_of_one_column_is_sorted_points() -> None:
    planned = plan(col("player").is_in(["cid", "ann", None, "cid"]), "player")
    assert planned == KeyPlan((encoded(["player"], "ann"), encoded(["player"], "cid")), KeyRange(), None)


def test_lists_of_all_key_columns_are_the_sorted_points_of_all_their_values_together() -> None:
    key = ["player", "round"]
    planned = plan(col("round").is_in([7, -1]) & col("player").is_in(["bob", "ann"]) & (col("score") > 5), *key)
    points = tuple(encoded(key, player, number) for player in ("ann", "bob") for number in (-1, 7))
    assert planned == KeyPlan(points, KeyRange(), bind(col("score") > 5, SCHEMA))


def test_a_list_of_one_key_column_beside_a_value_of_the_other_is_points() -> None:
    key = ["player", "round"]
    planned = plan((col("player") == "ann") & col("round").is_in([3, 1, None]), *key)
    assert planned == KeyPlan((encoded(key, "ann", 1), encoded(key, "ann", 3)), KeyRange(), None)


def test_lists_that_together_are_over_ten_thousand_keys_are_residual() -> None:
    players, rounds = col("player").is_in([str(n) for n in range(100)]), col("round").is_in(range(101))
    assert plan(players & rounds, "player", "round") == KeyPlan(None, KeyRange(), bind(players & rounds, SCHEMA))
    points = plan(players & col("round").is_in(range(100)), "player", "round").points
    assert points is not None
    assert len(points) == 10_000
    long = [str(n) * 5000 for n in range(10)]
    assert plan(col("player").is_in(long) & col("round").is_in(range(100)), "player", "round").points is None


def test_a_list_of_over_ten_thousand_keys_is_the_range_from_the_first_to_the_last_of_them() -> None:
    long = col("round").is_in(range(5, 10_006))
    assert plan(long, "round") == KeyPlan(
        None, KeyRange(encoded(["round"], 5), encoded(["round"], 10_006)), bind(long, SCHEMA)
    )
    assert plan(long & (col("round") < 7), "round").key_range == KeyRange(encoded(["round"], 5), encoded(["round"], 7))
    assert plan(long & (col("round") == 7), "round").points == (encoded(["round"], 7),)
    nobody = col("player").is_in([str(n) + "x" * MAX_KEY_BYTES for n in range(10_001)])
    assert plan(nobody, "player").key_range.is_empty


def test_equality_on_leading_columns_with_a_range_on_the_next_is_one_range() -> None:
    key = ["player", "round", "level"]
    planned = plan((col("player") == "ann") & col("round").between(3, 5), *key)
    assert planned == KeyPlan(None, KeyRange(encoded(key, "ann", 3), encoded(key, "ann", 6)), None)


def test_equality_on_leading_columns_alone_is_one_range() -> None:
    planned = plan(col("player") == "ann", "player", "round")
    start = encoded(["player"], "ann")
    assert planned == KeyPlan(None, KeyRange(start, start[:-1] + b"\1"), None)


def test_the_prefix_of_a_text_key_is_one_range() -> None:
    assert plan(col("player").starts_with("an"), "player") == KeyPlan(None, KeyRange(b"an", b"ao"), None)


def test_a_range_of_floats_leaves_out_nan() -> None:
    planned = plan(col("level") >= 1.5, "level")
    assert planned.residual is None
    assert encoded(["level"], float("inf")) in planned.key_range
    assert encoded(["level"], float("nan")) not in planned.key_range


@pytest.mark.parametrize(
    "predicate",
    [
        col("round") == 7,  # not a leading column
        (col("player") == "ann") | (col("round") == 7),
        col("player") != "ann",
        ~(col("player") == "ann"),
        col("player").contains("ann"),
        col("player").is_in(["ann", "bob"]),  # of a key of two columns
        col("score") == 3,
    ],
)
def test_what_is_no_prefix_of_the_key_is_residual(predicate: Predicate) -> None:
    assert plan(predicate, "player", "round") == KeyPlan(None, KeyRange(), bind(predicate, SCHEMA))


@pytest.mark.parametrize("predicate", [col("level") == 0.1, col("level").is_in([0.1, 1e300]), col("level") == math.nan])
def test_a_float_that_no_key_can_be_equal_to_has_no_point(predicate: Predicate) -> None:
    assert plan(predicate, "level") == KeyPlan((), KeyRange(), None)


def test_a_float_that_no_key_can_be_is_left_out_of_the_points() -> None:
    planned = plan(col("level").is_in([0.1, 1.5, -0.0, math.nan]), "level")
    assert planned == KeyPlan((encoded(["level"], 0.0), encoded(["level"], 1.5)), KeyRange(), None)


def test_what_is_not_a_float_that_no_key_can_be_is_every_key() -> None:
    assert plan(col("level") != 0.1, "level") == KeyPlan(None, KeyRange(), bind(col("level") != 0.1, SCHEMA))


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [
        (0.1, 0.09999999403953552, 0.10000000149011612),
        (-0.1, -0.10000000149011612, -0.09999999403953552),
        (0.3, 0.29999998211860657, 0.30000001192092896),
        (1e300, 3.4028234663852886e38, float("inf")),
        (-1e300, float("-inf"), -3.4028234663852886e38),
    ],
)
def test_a_range_up_to_a_float_that_no_key_can_be_ends_at_its_neighbours(
    value: float, below: float, above: float
) -> None:
    low, high = (encoded(["level"], neighbour) for neighbour in (below, above))
    for lower, upper in ((col("level") > value, col("level") < value), (col("level") >= value, col("level") <= value)):
        for predicate, found in ((lower, (False, True)), (upper, (True, False))):
            planned = plan(predicate, "level")
            assert planned.residual is None
            assert (low in planned.key_range, high in planned.key_range) == found


@pytest.mark.parametrize("value", [False, None])
def test_a_predicate_that_is_never_true_has_no_point(value: bool | None) -> None:
    assert plan((col("player") == "ann") & Constant(value), "player") == KeyPlan((), KeyRange(), None)


def test_is_in_with_no_values_has_no_point() -> None:
    assert plan(col("player").is_in([]), "player").points == ()


def test_bounds_that_contradict_each_other_are_an_empty_range() -> None:
    assert plan((col("round") > 5) & (col("round") < 3), "round").key_range.is_empty
    assert plan(col("round") > 2**31 - 1, "round").key_range.is_empty


def test_a_value_longer_than_any_key_has_no_point() -> None:
    longest = "x" * (MAX_KEY_BYTES - 2)
    for too_long in (longest + "x", "\0" + longest[1:]):
        assert plan(col("player") == too_long, "player") == KeyPlan((), KeyRange(), None)
        assert plan((col("player") == too_long) & (col("round") == 7), "player", "round").points == ()
        assert plan(col("player").is_in([too_long, "ann"]), "player").points == (encoded(["player"], "ann"),)
    assert plan(col("player") == longest, "player").points == (encoded(["player"], longest),)
    assert plan((col("player") == longest) & (col("round") == 7), "player", "round").points == ()


def test_a_range_up_to_a_value_longer_than_any_key_is_residual() -> None:
    predicate = col("player") < "x" * MAX_KEY_BYTES
    assert plan(predicate, "player") == KeyPlan(None, KeyRange(), bind(predicate, SCHEMA))


def test_equal_columns_beyond_the_range_are_residual() -> None:
    planned = plan((col("player") > "ann") & (col("round") == 3), "player", "round")
    assert planned.residual == bind(col("round") == 3, SCHEMA)
    assert planned.key_range.start == encoded(["player"], "ann")[:-1] + b"\1"
