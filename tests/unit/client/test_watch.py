"""The changes that a watch of the first rows reports: rows that entered, left and moved."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import UsageError
from aio_client._queries.watch import Ranking, TopNPolls, compare_rankings
from scankv.model.errors import SchemaMismatch
from scankv.v1 import lookup_pb2
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-3, 3)),
    (pa.uint64(), st.integers(2**64 - 5, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.sampled_from([0.0, 1.5, math.inf, math.nan])),
    (pa.float64(), st.sampled_from([0.0, -1.5, -math.inf, math.nan])),
    (pa.string(), st.sampled_from(["", "a", "ä", "a\0", "b" * 20])),
    (pa.binary(), st.sampled_from([b"", b"\0", b"\0\0", b"\xff"])),
    (pa.date32(), st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 5))),
    (pa.timestamp("us", "UTC"), st.sampled_from([dt.datetime(2024, 1, 1, 0, 0, 0, micros) for micros in range(4)])),
    (pa.time64("ns"), st.sampled_from([dt.time(1), dt.time(2)])),
    (pa.decimal128(10, 2), st.sampled_from([Decimal("0.00"), Decimal("-1.25"), Decimal("3.00")])),
]


def ranking(rows: pa.Table, key: Sequence[str], hidden: Sequence[str] = (), version: bytes = b"v") -> Ranking:
    return Ranking.of(rows, version, key, hidden)


@st.composite
def key_columns(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.Table]]:
    """Generates two lists of distinct keys with one or two columns. Their names also occur in the answers."""
    parts = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    schema = pa.schema([pa.field(name, type_, False) for name, (type_, _) in zip(("rank", "key"), parts, strict=False)])
    one_key = st.tuples(*(values for _, values in parts))
    return schema, [table_of(draw(st.lists(one_key, max_size=8, unique_by=repr)), schema) for _ in range(2)]


def table_of(keys: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns: list[Sequence[Any]] = list(zip(*keys, strict=True)) if keys else [[] for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@given(key_columns())
def test_what_moved_is_what_a_dictionary_of_ranks_says(case: tuple[pa.Schema, list[pa.Table]]) -> None:
    schema, tables = case
    before, now = (ranking(table, schema.names) for table in tables)
    was, is_ = ({key: rank for rank, key in enumerate(exact_rows(table), 1)} for table in tables)
    top = compare_rankings(before, now)
    assert exact_rows(top.entered) == [(*key, rank) for key, rank in is_.items() if key not in was]
    assert exact_rows(top.left) == [(*key, rank) for key, rank in was.items() if key not in is_]
    assert exact_rows(top.moved) == [
        (*key, was[key], rank) for key, rank in is_.items() if key in was and was[key] != rank
    ]
    assert top.entered.schema == top.left.schema == pa.schema([*schema, pa.field("rank", pa.int32())])
    assert top.moved.schema.names == [*schema.names, "rank_before", "rank"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1.0, math.nan, None], [1.0, math.nan, None], True),
        ([0.0], [-0.0], False),
        ([None], [math.nan], False),
        (["a"], ["a"], True),
        ([[1, None]], [[1, None]], True),
        ([[1, None]], [[1, 2]], False),
        ([1, 2], [1], False),
    ],
)
def test_rows_are_the_same_when_they_are_to_the_bit(one: list[Any], other: list[Any], same: bool) -> None:
    tables = [pa.table({"k": range(len(values)), "v": pa.array(values)}) for values in (one, other)]
    if one == [None]:
        tables[0] = tables[0].cast(pa.schema([("k", pa.int64()), ("v", pa.float64())]))
    first, second = (ranking(table, ["k"]) for table in tables)
    assert first.same_rows(second) is same
    assert first.same_rows(first)


def test_the_same_rows_in_other_chunks_are_the_same() -> None:
    rows = pa.table({"k": [1, 2, 3], "v": [0.5, math.nan, None]})
    other = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    assert ranking(rows, ["k"]).same_rows(ranking(other, ["k"]))


def test_a_table_created_anew_with_another_key_is_refused() -> None:
    before = ranking(pa.table({"k": [1]}), ["k"])
    with pytest.raises(SchemaMismatch, match="another key"):
        compare_rankings(before, ranking(pa.table({"k": ["1"]}), ["k"]))
    with pytest.raises(SchemaMismatch, match="another key"):
        ranking(pa.table({"other": [1]}), ["k"])


@pytest.mark.parametrize("every", [0, 0.05, -1, math.nan, math.inf, "1", None, True])
def test_a_cadence_that_cannot_be_is_refused(every: Any) -> None:
    with pytest.raises(UsageError, match="every"):
        TopNPolls(None, lookup_pb2.TopNRequest(), ["k"], (), every)  # type: ignore[arg-type]  # asks nothing
