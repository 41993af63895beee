"""Predicates written in Python: operators, comparison, text form, limits, and what a schema refuses."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from scankv.model.errors import SchemaMismatch, UsageError
from scankv.model.expressions import Predicate, bind, col, predicate_of
from scankv.model.expressions.literals import MAX_LIST_VALUES, Literal, literal_of, values_of
from scankv.model.expressions.nodes import MAX_DEPTH, MAX_NODES, MAX_SEARCHED_BYTES, And, Comparison, Not, Or, any_of

SCHEMA = pa.schema(
    [
        ("player", pa.string()),
        ("score", pa.int8()),
        ("ratio", pa.float64()),
        ("narrow", pa.float32()),
        ("price", pa.decimal128(6, 2)),
        ("seen", pa.timestamp("ms", "UTC")),
        ("noted", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("active", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("home", pa.struct([("city", pa.string()), ("geo", pa.struct([("lat", pa.float64())]))])),
    ]
)
UTC_NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)

PREDICATES = [
    col("score") > 100,
    (col("score") > 1) & ~(col("player") == "ann") | col("active"),
    col("player").is_in(["ann", None]) & col("home")["city"].starts_with("a"),
    col("home").field("geo").field("lat").between(-1.5, 1.5),
    col("raw").contains(b"\0") | col("day").is_not_null(),
    col("seen") >= UTC_NOON,
    col("ratio") == float("nan"),
    col("player") != col("home")["city"],
    col("player").like("a_!%%b", "!") | col("raw").ends_with(b"x"),
]


@pytest.mark.parametrize("predicate", PREDICATES, ids=repr)
def test_a_predicate_survives_pickling_and_compares_by_structure(predicate: Predicate) -> None:
    restored = pickle.loads(pickle.dumps(predicate))
    assert restored == predicate
    assert hash(restored) == hash(predicate)
    assert (restored.nodes, restored.depth) == (predicate.nodes, predicate.depth)
    assert [other for other in PREDICATES if other == predicate] == [predicate]


@pytest.mark.parametrize("predicate", [p for p in PREDICATES if "timestamp" not in repr(p)], ids=repr)
def test_a_predicate_is_shown_as_it_is_written(predicate: Predicate) -> None:
    assert eval(repr(predicate), {"col": col, "nan": float("nan")}) == predicate


def test_long_lists_are_shown_shortened() -> None:
    assert repr(col("a").is_in(range(1000))) == 'col("a").is_in([0, 1, 2, 3, 4, ... 995 more])'


def test_values_of_other_types_make_other_predicates() -> None:
    assert (col("a") == 1) != (col("a") == True)  # noqa: E712
    assert (col("a") == 1) != (col("a") == 1.0)
    assert (col("a") == "1") != (col("a") == b"1")


def test_a_value_may_stand_on_the_left() -> None:
    assert (100 < col("score")) == (col("score") > 100)


def test_connectives_of_one_kind_are_one_node() -> None:
    parts = [col("a") == number for number in range(MAX_NODES - 1)]
    predicate = any_of(parts)
    assert isinstance(predicate, Or)
    assert predicate.depth == 2
    chained = parts[0] & parts[1] & (parts[2] & parts[3])
    assert chained == And(tuple(parts[:4]))


@pytest.mark.parametrize(
    "use",
    [
        lambda: bool(col("a") == 1),
        lambda: col("a") == 1 and col("b") == 2,
        lambda: not (col("a") == 1),
        lambda: 1 < col("a") < 3,
        lambda: bool(col("a")),
    ],
)
def test_the_truth_of_a_predicate_is_refused_and_names_what_to_write(use: Any) -> None:
    with pytest.raises(UsageError, match=r"& and \| and ~"):
        use()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: col("a") == None, "is_null"),  # noqa: E711
        (lambda: col("a") == pd.NaT, "is_null"),
        (lambda: col("a") != pd.NA, "is_null"),
        (lambda: col("a") > 1 & col("b"), "parentheses"),
        (lambda: (col("a") > 1) & 2, "parentheses"),
        (lambda: col("a").is_in("ann"), "the values of is_in must be a list, not a str"),
        (lambda: col("a").is_in([1, "x"]), "one kind, not int, str"),
        (lambda: col("a").is_in([True, 1]), "one kind"),
        (lambda: col("a").is_in([dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)]), "one kind"),
        (lambda: col("a").is_in([UTC_NOON, dt.datetime(2026, 1, 1)]), "one kind"),
        (lambda: col("a").is_in([2**53 + 1, 0.5]), "cannot be represented as a float"),
        (lambda: col("a") == [1], "cannot be compared"),
        (lambda: col("a") == {"b": 1}, "cannot be compared"),
        (lambda: col("a") == object(), "cannot be compared"),
        (lambda: col("a") == 10**39, "cannot be compared"),
        (lambda: col("a") == Decimal("NaN"), "38 digits"),
        (lambda: col("a") == Decimal("1e999999"), "38 digits"),
        (lambda: col("a").starts_with(1), "text or bytes"),  # type: ignore[arg-type]
        (lambda: col("a").like(b"x"), "must be text"),  # type: ignore[arg-type]
        (lambda: col("a").like("x!", "!"), "ends with its escape character"),
        (lambda: col("a").like("a\\_b"), "a backslash needs ESCAPE"),
        (lambda: col("a").like("a", "!!"), "ESCAPE must be one character, or none, not 2"),
        (lambda: col("a").like("__%a" + "_" * 9), "has 9 _ after its first %; the limit is 8: use fewer"),
        (lambda: col("a").like("_" * 1001), "the LIKE pattern has 1,001 characters; the limit is 1,000"),
        (lambda: col(1), "must be non-empty, valid text"),  # type: ignore[arg-type]
        (lambda: col("\ud800"), "must be non-empty, valid text"),
        (lambda: col("a")["\ud800"], "must be non-empty, valid text"),
        (lambda: col("a")[0], "must be text"),  # type: ignore[index]
        (lambda: list(col("a")), "iterated"),
        (lambda: col("a") == (col("b") == 1), "join predicates"),
        (lambda: predicate_of(1), "where must be a predicate"),
    ],
)
def test_what_makes_no_predicate_is_refused_with_a_reason(use: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        use()


def test_more_nodes_depth_or_values_than_the_limits_cannot_be_built() -> None:
    with pytest.raises(UsageError, match="more than 1,000 nodes; is_in"):
        any_of([col("a") == number for number in range(MAX_NODES)])
    predicate = col("a") == 1
    for _ in range(MAX_DEPTH - 1):
        predicate = ~predicate
    with pytest.raises(UsageError, match="more than 90 levels"):
        Not(predicate)
    full = col("a").is_in(range(MAX_LIST_VALUES))
    with pytest.raises(UsageError, match="100,000 values in its lists"):
        full | col("a").is_in([1])
    with pytest.raises(UsageError, match="the limit is 100,000"):
        col("a").is_in(range(MAX_LIST_VALUES + 1))
    longest = col("a").contains("x" * MAX_SEARCHED_BYTES) & col("a").contains("") & (col("a") == "x" * 2**20)
    with pytest.raises(UsageError, match="65,536 bytes of searched text"):
        longest & col("b").starts_with(b"x")
    with pytest.raises(UsageError, match="65,536 bytes of searched text"):
        col("a").contains("é" * (2**15 + 1))


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (2**63 - 1, pa.int64()),
        (2**63, pa.uint64()),
        (2**64, pa.decimal128(38, 0)),
        (np.int8(1), pa.int64()),
        (enum.IntEnum("Color", "RED").RED, pa.int64()),  # type: ignore[attr-defined]
        (np.float32(0.5), pa.float64()),
        (np.bool_(True), pa.bool_()),
        (Decimal("1.50"), pa.decimal128(3, 2)),
        (Decimal("5"), pa.int64()),
        (pd.Timestamp(1), pa.timestamp("ns")),
        (UTC_NOON, pa.timestamp("us", "UTC")),
        (dt.time(1), pa.time64("us")),
        (pa.scalar("a", pa.large_string()), pa.string()),
        (pa.scalar(1, pa.int8()), pa.int64()),
    ],
)
def test_values_become_literals_without_loss(value: object, type_: pa.DataType) -> None:
    literal = literal_of(value)
    assert literal.scalar.type == type_
    if isinstance(value, pd.Timestamp):
        assert literal.scalar.value == value.value
    elif not isinstance(value, pa.Scalar):
        assert literal.scalar.as_py() == value


def test_lists_of_many_kinds_of_containers_are_one_list() -> None:
    expected = values_of([1, 2])
    for values in ((1, 2), np.array([1, 2]), pd.Series([1, 2]), pa.array([1, 2, 1]), pa.chunked_array([[1], [2]])):
        assert values_of(values) == expected
    assert values_of(pd.Series([1.0, float("nan")])).has_null
    assert values_of([pd.NA, 1, pd.NaT]) == values_of([None, 1])
    assert values_of([pd.Timestamp(1), None]).array.type == pa.timestamp("ns")


def test_lists_of_arrow_times_keep_what_python_has_no_room_for() -> None:
    late, early = pa.scalar(999, pa.time64("ns")), pa.scalar(5, pa.time32("s"))
    assert values_of([late, None, early, dt.time(1)]).array.cast(pa.int64()).to_pylist() == [
        999,
        None,
        5 * 10**9,
        3600 * 10**9,
    ]
    far = pa.scalar(10**7, pa.date32())
    assert values_of([far]).array.cast(pa.int32()).to_pylist() == [10**7]
    instants = [pa.scalar(1, pa.timestamp("ns", "UTC")), UTC_NOON]
    assert values_of(instants).array.type == pa.timestamp("ns", "UTC")
    for mixed in ([far, late], [far, pa.scalar(1, pa.timestamp("s"))], [*instants, pa.scalar(1, pa.timestamp("ns"))]):
        with pytest.raises(UsageError, match="one kind"):
            values_of(mixed)
    with pytest.raises(UsageError, match="cannot be in one list"):
        values_of([pa.scalar(2**60, pa.timestamp("s")), pa.scalar(1, pa.timestamp("ns"))])


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        (col("scroe") > 1, '"scroe" is not a column; did you mean "score"'),
        (~(col("scroe").is_null() & (col("score") == 1)), "did you mean"),
        (col("home")["cty"] == "x", '"cty" is not a field of column "home"; did you mean "city"'),
        (col("score")["x"] == 1, 'column "score" is int8, not a struct'),
        (col("home") == "x", "compare its fields"),
        (col("tags").is_in(["x"]), "use is_null()"),
        (col("score") == "x", 'column "score" is int8: it cannot be compared with a value of type string'),
        (col("score") == True, "type bool"),  # noqa: E712
        (col("score").is_in(["x"]), 'column "score" is int8: it cannot be compared with a value of type string'),
        (col("seen") > dt.datetime(2026, 1, 1), "with a time zone"),
        (col("noted") > UTC_NOON, "without a time zone"),
        (col("noted") > "2026-01-01", "TIMESTAMP"),
        (col("day") == UTC_NOON, "give a date, or a timestamp without a time zone"),
        (col("day") == dt.time(1), "type time64"),
        (col("raw").like("x"), "give bytes"),
        (col("raw").like("x_"), "like with % or _ inside needs a string column"),
        (col("score").like("%1%"), "contains needs a string or binary column"),
        (col("score").like("_"), "like with % or _ inside needs a string column"),
        (col("raw") == "x", "give bytes"),
        (col("raw").contains("x"), "contains must be given bytes"),
        (col("player").contains(b"x"), "contains must be given text"),
        (col("score").starts_with("1"), "needs a string or binary column"),
        (col("score") < col("player"), "cannot be compared with each other"),
        (predicate_of(col("score")), "type bool"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_schema_is_refused_before_anything_runs(predicate: Predicate, message: str) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        bind(predicate, SCHEMA)
    assert message in raised.value.message
    assert raised.value.details["column"] in raised.value.message


@pytest.mark.parametrize("secret", ["s3cret", 7340033, 2.718281, dt.date(1999, 12, 31)])
def test_a_refusal_never_tells_the_value(secret: object) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        bind(col("raw") == secret, SCHEMA)
    assert str(secret) not in str(raised.value)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int64(), pa.uint64()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.timestamp("s"), pa.timestamp("ms")),
        (pa.decimal128(5, 1), pa.decimal128(5, 2)),
    ],
)
def test_columns_that_arrow_would_round_are_not_compared(left: pa.DataType, right: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="with each other"):
        bind(col("l") < col("r"), pa.schema([("l", left), ("r", right)]))


@pytest.mark.parametrize(
    ("predicate", "type_"),
    [
        (col("score") == 5.0, pa.int8()),
        (col("narrow") == 0.5, pa.float32()),
        (col("narrow") == 0.1, pa.float64()),
        (col("ratio") == Decimal("0.1"), pa.float64()),
        (col("price") == 5, pa.decimal128(6, 2)),
        (col("price") == 2.5, pa.decimal128(6, 2)),
        (col("score") > 2.5, pa.int8()),
        (col("score") < 10**38 - 1, pa.int8()),
        (col("day") > dt.datetime(2026, 1, 1, 12), pa.date32()),
        (col("noted") > dt.datetime(2026, 1, 1, microsecond=1), pa.timestamp("ms")),
        (col("seen") == UTC_NOON, pa.timestamp("ms", "UTC")),
        (col("noted") == dt.date(2026, 1, 1), pa.timestamp("ms")),
    ],
    ids=repr,
)
def test_binding_gives_values_the_types_of_their_columns(predicate: Predicate, type_: pa.DataType) -> None:
    bound = bind(predicate, SCHEMA).predicate
    assert isinstance(bound, Comparison)
    assert isinstance(bound.right, Literal)
    assert bound.right.scalar.type == type_


def test_a_bound_predicate_knows_the_columns_it_reads() -> None:
    predicate = (col("home")["city"] == col("player")) | col("score").is_null() | (col("home")["geo"]["lat"] > 0.0)
    assert bind(predicate, SCHEMA).columns == ("player", "score", "home")


def test_everything_that_can_be_a_where_becomes_the_same_predicate() -> None:
    expected = col("score") > 100
    assert predicate_of(expected) == predicate_of("score > 100") == predicate_of(pc.field("score") > 100) == expected
    assert predicate_of(col("active")) == predicate_of("active")
