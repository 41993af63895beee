"""The part of a Polars predicate that is pushed down keeps the same rows as Polars, including nulls, NaN and zeros."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client._integrations.polars_predicates import translate_predicate
from scankv.model.expressions import bind, col, evaluate

if TYPE_CHECKING:
    from scankv.model.expressions import Predicate

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("u", pa.uint8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("m", pa.decimal128(9, 2)),
        ("l", pa.list_(pa.int64())),
    ]
)
DAYS = [dt.date(2013, 1, 1), dt.date(1969, 7, 20), dt.date(2013, 12, 31)]
VALUES: dict[str, list[Any]] = {
    "i": [-(2**63), -1, 0, 1, 2**63 - 1],
    "u": [0, 1, 255],
    "f": [-math.inf, -1.5, -0.0, 0.0, 1e300, math.inf, math.nan],
    "g": [-1.5, -0.0, 0.0, 2.25, math.inf, math.nan],
    "s": ["", "a", "ab", "b", "ä", "\U0001f600"],
    "b": [False, True],
    "d": DAYS,
    "t": [dt.datetime(day.year, day.month, day.day, 1, 2, 3, 4) for day in DAYS],
    "z": [dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) for day in DAYS],
}
ROWS = 60


def _rows() -> pa.RecordBatch:
    """Returns rows with each value of each column, and nulls, combined with other values of the other columns."""
    columns = [[*VALUES.get(name, []), None] for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([values[(row * (3 + at)) % len(values)] for row in range(ROWS)], type_, from_pandas=False)
            for at, (values, type_) in enumerate(zip(columns, SCHEMA.types, strict=True))
        ],
        schema=SCHEMA,
    )


BATCH = _rows()
FRAME = pl.DataFrame(BATCH)
names = st.sampled_from(sorted(VALUES))
booleans = [pl.col("b"), ~pl.col("b"), pl.col("l").is_null(), pl.col("m").is_not_null()]


@st.composite
def comparisons(draw: st.DrawFn) -> pl.Expr:
    name = draw(names)
    column, value, other = pl.col(name), draw(st.sampled_from(VALUES[name])), draw(st.sampled_from(VALUES[name]))
    closed: Literal["both", "left", "right", "none"] = draw(st.sampled_from(["both", "left", "right", "none"]))
    among = draw(st.lists(st.sampled_from([*VALUES[name], None]), max_size=3))
    plain: list[pl.Expr] = [
        *(column == value, column != value, column < value, column <= value, column > value, column >= value),
        *(pl.lit(value) < column, pl.lit(value) >= column),
        *(column.is_null(), column.is_not_null(), column.is_between(pl.lit(value), pl.lit(other), closed=closed)),
        *(column.is_in(among), column.is_in(among, nulls_equal=True), column.eq_missing(value)),
    ]
    texts = pl.col("s")
    text = draw(st.sampled_from(VALUES["s"]))
    plain += [texts.str.starts_with(text), texts.str.contains(text, literal=True), texts.str.ends_with(text)]
    plain += [texts.str.contains("a|b"), pl.col("i") + 1 > pl.col("u"), pl.col("i") > 1.5, pl.col("f") > pl.col("g")]
    return draw(st.sampled_from([*booleans, *plain]))


predicates = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
    ),
    max_leaves=6,
)


def optimized(predicate: pl.Expr) -> pl.Expr:
    """Returns the predicate as Polars passes it to a source, with literals cast and constants folded."""
    seen: list[pl.Expr] = []

    def source(_columns: object, predicate: pl.Expr | None, _rows: object, _batch: object) -> Any:
        if predicate is not None:
            seen.append(predicate)
        yield FRAME

    pl.io.plugins.register_io_source(source, schema=FRAME.schema).filter(predicate).collect()
    return seen[0] if seen else predicate


def kept_by_server(pushed: Predicate) -> list[bool]:
    return [bool(kept) for kept in evaluate(bind(pushed, SCHEMA), BATCH).to_pylist()]


def kept_by_polars(predicate: pl.Expr) -> list[bool]:
    (mask,) = FRAME.select(predicate).get_columns()
    return [bool(kept) for kept in mask.to_list()]


@given(predicates)
def test_what_is_pushed_down_loses_no_row_that_polars_keeps(predicate: pl.Expr) -> None:
    pushed = translate_predicate(optimized(predicate), SCHEMA)
    if pushed is not None:
        lost = [ours < theirs for ours, theirs in zip(kept_by_server(pushed), kept_by_polars(predicate), strict=True)]
        assert not any(lost), (predicate, pushed)


EXACT = [
    pl.col("i") > 0,
    pl.lit(0) < pl.col("i"),
    pl.col("f") > -1.5,
    ~(pl.col("f") >= -1.5),
    pl.col("g") <= 2.25,
    pl.col("f") != 0.0,
    pl.col("f").is_between(-1.5, 0.0, closed="left"),
    pl.col("u").is_in([0, 255]),
    ~pl.col("s").is_in(["a", "ä"]),
    pl.col("d") >= DAYS[0],
    pl.col("t") < VALUES["t"][0],
    pl.col("z") == VALUES["z"][1],
    pl.col("b") | pl.col("s").is_null(),
    pl.col("s").str.starts_with("a") & ~pl.col("s").str.contains("b", literal=True),
]


@pytest.mark.parametrize("predicate", EXACT, ids=str)
def test_a_predicate_that_means_the_same_is_pushed_down_whole(predicate: pl.Expr) -> None:
    pushed = translate_predicate(optimized(predicate), SCHEMA)
    assert pushed is not None
    assert kept_by_server(pushed) == kept_by_polars(predicate)


@pytest.mark.parametrize(
    "predicate",
    [
        pl.col("i") > 1.5,
        pl.col("f") > math.nan,
        pl.col("f").is_in([0.0, math.nan]),
        pl.col("i").is_in([0, None]),
        pl.col("s").str.contains("a|b"),
        pl.col("s").str.to_uppercase() == "A",
        pl.col("i").map_elements(bool, return_dtype=pl.Boolean),
        pl.col("l").is_null(),
        (pl.col("i") > 0) | (pl.col("i") + 1 > 7),
    ],
    ids=str,
)
def test_what_the_server_would_decide_differently_stays_with_polars(predicate: pl.Expr) -> None:
    assert translate_predicate(predicate, SCHEMA) is None


def test_what_a_server_of_an_earlier_version_refuses_stays_with_polars() -> None:
    assert translate_predicate(pl.col("s").str.ends_with("b"), SCHEMA) is None


def test_of_several_conditions_those_that_mean_the_same_are_pushed_down() -> None:
    predicate = optimized((pl.col("i") + 1 > 7) & (pl.col("s") == "a") & (pl.col("u") > 3))
    pushed = translate_predicate(predicate, SCHEMA)
    assert pushed is not None
    assert repr(pushed) == repr((col("s") == "a") & (col("u") > 3))
