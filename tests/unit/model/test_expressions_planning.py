"""Planning by keys: points and ranges with the residual keep exactly the rows of the predicate."""

from __future__ import annotations

import math
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scankv.model.expressions import KeyPlan, Predicate, all_of, any_of, bind, col, conjuncts, evaluate, plan_keys
from scankv.model.expressions.nodes import Constant, FieldPath
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES, NO_KEY_RANGES, KeyRanges
from scankv.model.limits import MAX_KEY_BYTES
from tests.support.examples import examples
from tests.unit.model.expression_strategies import (
    answers,
    conjunctions,
    disjunctions,
    keyed_batches,
    predicates,
)

SCHEMA = pa.schema(
    [
        pa.field("player", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("level", pa.float32(), nullable=False),
        pa.field("score", pa.int64()),
    ]
)


FLOAT = KeyCodec([pa.float32()], ["level"])


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
    asked = st.one_of(conjunctions(batch, paths), disjunctions(batch, paths), predicates(batch, paths))
    return batch, names, draw(asked)


def keys_of(*keys: bytes) -> KeyRanges:
    return KeyRanges.of_keys(keys)


def check_order(ranges: KeyRanges) -> None:
    """Checks that the ranges are not empty, ascend, and do not overlap."""
    assert all(not one.is_empty for one in ranges)
    assert all(before.end is not None and before.end <= (after.start or b"") for before, after in pairwise(ranges))


@given(key_questions())
@examples(10)
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
    check_order(planned.ranges)
    found = [key in planned.ranges for key in keys]
    residual = planned.residual
    left = [True] * len(keys) if residual is None else evaluate(residual, batch).to_pylist()
    kept = [here and rest is True for here, rest in zip(found, left, strict=True)]
    assert kept == [answer is True for answer in answers(predicate, batch)]


@given(key_questions())
@examples(8)
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


KEY = ["player", "round"]


def between(names: list[str], start: tuple[object, ...], end: tuple[object, ...]) -> KeyRange:
    return KeyRange(encoded(names, *start), encoded(names, *end))


@pytest.mark.parametrize(
    ("predicate", "key", "ranges", "residual"),
    [
        # Points
        (
            (col("round") == 7) & (col("player") == "ann") & (col("score") > 5),
            KEY,
            keys_of(encoded(KEY, "ann", 7)),
            col("score") > 5,
        ),
        (
            col("round").is_in([7, -1, None]) & col("player").is_in(["bob", "ann", "bob"]) & (col("score") > 5),
            KEY,
            keys_of(*(encoded(KEY, player, number) for player in ("ann", "bob") for number in (-1, 7))),
            col("score") > 5,
        ),
        (
            col("level").is_in([0.1, 1.5, -0.0, math.nan]),
            ["level"],
            keys_of(*map(FLOAT.encode_one, ([0.0], [1.5]))),
            None,
        ),
        # Ranges
        (
            (col("player") == "ann") & col("round").between(3, 5),
            [*KEY, "level"],
            KeyRanges.of(between(KEY, ("ann", 3), ("ann", 6))),
            None,
        ),
        (col("player").starts_with("an"), ["player"], KeyRanges.of(KeyRange(b"an", b"ao")), None),
        (
            col("player").is_in(["bob", "ann"]),
            KEY,
            KeyRanges.of(*(KeyRange.under(encoded(KEY, name)) for name in ("ann", "bob"))),
            None,
        ),
        (
            col("player").is_in(["bob", "ann"]) & col("round").between(3, 5) & (col("score") > 1),
            KEY,
            KeyRanges.of(*(between(KEY, (name, 3), (name, 6)) for name in ("ann", "bob"))),
            col("score") > 1,
        ),
        (
            ((col("player") == "bob") & (col("round") == 3)) | ((col("player") == "cid") & (col("round") > 7)),
            KEY,
            KeyRanges.of(
                *keys_of(encoded(KEY, "bob", 3)),
                KeyRange(encoded(KEY, "cid", 8), KeyRange.under(encoded(KEY, "cid")).end),
            ),
            None,
        ),
        (
            (col("player") > "ann") & (col("round") == 3),
            KEY,
            KeyRanges.of(KeyRange(encoded(KEY, "ann")[:-1] + b"\1", None)),
            col("round") == 3,
        ),
        # Every key
        (col("level") != 0.1, ["level"], ALL_KEY_RANGES, None),
        (col("round") == 7, KEY, ALL_KEY_RANGES, col("round") == 7),
        # No key
        (col("level").is_in([0.1, 1e300]), ["level"], NO_KEY_RANGES, None),
        (col("level") == math.nan, ["level"], NO_KEY_RANGES, None),
        ((col("player") == "ann") & Constant(None), ["player"], NO_KEY_RANGES, None),
        (col("player").is_in([]), ["player"], NO_KEY_RANGES, None),
        ((col("round") > 5) & (col("round") < 3), ["round"], NO_KEY_RANGES, None),
        (col("round") > 2**31 - 1, ["round"], NO_KEY_RANGES, None),
    ],
    ids=repr,
)
def test_a_predicate_bounds_the_keys_as_closely_as_its_columns_allow(
    predicate: Predicate, key: list[str], ranges: KeyRanges, residual: Predicate | None
) -> None:
    found = plan(predicate, *key)
    assert found == KeyPlan(ranges, None if residual is None else bind(residual, SCHEMA))


def test_lists_that_together_are_over_ten_thousand_keys_are_read_with_some_keys_between_them() -> None:
    players, rounds = col("player").is_in([str(n) for n in range(100)]), col("round").is_in(range(101))
    wide = plan(players & rounds, "player", "round")
    check_order(wide.ranges)
    assert len(wide.ranges) <= 10_000
    assert wide.residual == bind(rounds, SCHEMA)
    exact = plan(players & col("round").is_in(range(100)), "player", "round")
    assert (len(exact.ranges), exact.ranges.are_keys, exact.residual) == (10_000, True, None)
    long = [str(n) * 5000 for n in range(10)]
    assert len(plan(col("player").is_in(long) & col("round").is_in(range(100)), "player", "round").ranges) <= 512


@pytest.mark.breadth
def test_a_list_of_over_ten_thousand_keys_is_the_range_from_the_first_to_the_last_of_them() -> None:
    long = col("round").is_in(range(5, 10_006))
    whole = KeyRange(encoded(["round"], 5), encoded(["round"], 10_006))
    assert plan(long, "round") == KeyPlan(KeyRanges.of(whole), bind(long, SCHEMA))
    below = KeyRange(encoded(["round"], 5), encoded(["round"], 7))
    assert plan(long & (col("round") < 7), "round").ranges == KeyRanges.of(below)
    assert plan(long & (col("round") == 7), "round").ranges == keys_of(encoded(["round"], 7))
    nobody = col("player").is_in([str(n) + "x" * MAX_KEY_BYTES for n in range(10_001)])
    assert plan(nobody, "player") == KeyPlan(NO_KEY_RANGES, None)


def test_long_lists_of_a_leading_column_are_a_few_hundred_ranges_of_near_values() -> None:
    long = col("player").is_in([f"{n:05}" for n in range(0, 90_000, 30)])
    planned = plan(long, "player", "round")
    check_order(planned.ranges)
    assert 200 < len(planned.ranges) <= 512
    assert planned.residual == bind(long, SCHEMA)
    assert all(encoded(["player"], f"{n:05}") in planned.ranges for n in range(0, 90_000, 30))


def test_what_is_asked_of_other_columns_in_one_branch_of_or_is_asked_of_all_rows_found() -> None:
    either = ((col("player") == "bob") & (col("score") == 3)) | (col("player") == "ann")
    planned = plan(either, "player", "round")
    assert len(planned.ranges) == 2
    assert planned.residual == bind(either, SCHEMA)
    same = ((col("player") == "bob") & (col("score") == 3)) | ((col("player") == "ann") & (col("score") == 3))
    assert plan(same, "player", "round").residual == bind(col("score") == 3, SCHEMA)


def test_what_is_not_equal_leaves_a_gap() -> None:
    same = KeyRange.under(encoded(["player"], "ann"))
    gap = KeyPlan(KeyRanges.of(KeyRange(None, same.start), KeyRange(same.end, None)), None)
    assert plan(col("player") != "ann", "player", "round") == gap
    assert plan(~(col("player") == "ann"), "player", "round") == gap
    many = ~col("round").is_in(range(0, 200, 2))
    assert plan(many, "round") == KeyPlan(ALL_KEY_RANGES, bind(many, SCHEMA))  # as many seeks as rows that are skipped


def test_many_conjunctions_are_bounded() -> None:
    many = any_of([(col("player") == f"p{n:03}") & (col("round") > n) for n in range(240)])
    assert len(plan(many, "player", "round").ranges) == 240
    ranges = col("player").is_in([f"p{n:04}" for n in range(0, 3000, 3)]) & (col("round") > 7)
    planned = plan(ranges, "player", "round")
    check_order(planned.ranges)
    assert len(planned.ranges) == 512
    assert planned.residual == bind(ranges, SCHEMA)


def test_a_predicate_of_most_nodes_is_planned() -> None:
    leaves = [col("round") < 5, *(col("score") == n for n in range(900))]
    for asked in (~all_of(leaves), any_of(leaves)):
        planned = plan(asked, "round")
        assert planned == KeyPlan(ALL_KEY_RANGES, bind(asked, SCHEMA))


def test_the_prefix_of_a_like_pattern_is_one_range_with_the_pattern_as_residual() -> None:
    pattern = col("player").like("an_%x")
    planned = plan(pattern & (col("round") == 3), "player", "round")
    assert planned.ranges == KeyRanges.of(KeyRange(b"an", b"ao"))
    assert planned.residual == bind(pattern & (col("round") == 3), SCHEMA)
    assert plan(col("player").like("%n_"), "player") == KeyPlan(ALL_KEY_RANGES, bind(col("player").like("%n_"), SCHEMA))
    assert plan(col("player").like("an%"), "player") == plan(col("player").starts_with("an"), "player")


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
            assert (low in planned.ranges, high in planned.ranges) == found


def test_a_value_longer_than_any_key_has_no_point() -> None:
    longest = "x" * (MAX_KEY_BYTES - 2)
    for too_long in (longest + "x", "\0" + longest[1:]):
        assert plan(col("player") == too_long, "player") == KeyPlan(NO_KEY_RANGES, None)
        assert plan((col("player") == too_long) & (col("round") == 7), "player", "round").ranges == NO_KEY_RANGES
        assert plan(col("player").is_in([too_long, "ann"]), "player").ranges == keys_of(encoded(["player"], "ann"))
    assert plan(col("player") == longest, "player").ranges == keys_of(encoded(["player"], longest))
    assert plan((col("player") == longest) & (col("round") == 7), "player", "round").ranges == NO_KEY_RANGES


def test_a_range_up_to_a_value_longer_than_any_key_is_residual() -> None:
    predicate = col("player") < "x" * MAX_KEY_BYTES
    assert plan(predicate, "player") == KeyPlan(ALL_KEY_RANGES, bind(predicate, SCHEMA))
