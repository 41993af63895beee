"""Rows are cast to a table without loss; errors name the column, the row and the reason."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import SchemaMismatch
from scankv.model.types.conform import check_batch, conform
from scankv.model.types.types import parse_schema
from tests.support.examples import examples
from tests.unit.model.strategies import columns, key_types, storable_types, values_of, with_broken_names

UTC = dt.UTC
NOON = dt.datetime(2020, 1, 1, 12)


def cast(column: pa.Array, text: str, first_row: int = 0) -> pa.Array:
    """Returns the column cast to the type that the text names."""
    batch = conform(pa.record_batch({"c": column}), parse_schema(f"c {text}"), first_row=first_row)
    batch.validate(full=True)
    assert batch.schema == parse_schema(f"c {text}")
    return batch.column(0)


def _views(values: list[Any], indices: list[int | None], type_: pa.DataType = pa.string_view()) -> pa.Array:  # noqa: B008
    """Returns a dictionary of views, as Polars sends a Categorical."""
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.uint32()), pa.array(values, type_))


@pytest.mark.parametrize(
    ("column", "text", "values"),
    [
        (pa.array([1, None, 127]), "int8", [1, None, 127]),
        (pa.array([255], pa.uint8()), "int64", [255]),
        (pa.array([2**53]), "double", [2.0**53]),
        (pa.array([2**24 + 2]), "float32", [2.0**24 + 2]),
        (pa.array([2048]), "float16", [2048.0]),
        (pa.array([2.0, None]), "int8", [2, None]),
        (pa.array([0.5, np.inf, -np.inf, None]), "float32", [0.5, np.inf, -np.inf, None]),
        (pa.array([0.5], pa.float16()), "double", [0.5]),
        (pa.array([5, None]), "decimal(5, 2)", [Decimal("5.00"), None]),
        (pa.array([2**63], pa.uint64()), "decimal(19, 0)", [Decimal(2**63)]),
        (pa.array([Decimal("1.50")]), "decimal(3, 1)", [Decimal("1.5")]),
        (pa.array([Decimal("1.00")]), "int32", [1]),
        (pa.array([dt.date(2020, 1, 1)]), "timestamp", [dt.datetime(2020, 1, 1)]),
        (pa.array([dt.date(2020, 1, 1)], pa.date64()), "date", [dt.date(2020, 1, 1)]),
        (pa.array([NOON]), "timestamp[s]", [NOON]),
        (pa.array([NOON.replace(tzinfo=UTC)]), "timestamp[ms, tz=Europe/Berlin]", [NOON.replace(tzinfo=UTC)]),
        (pa.array([dt.time(1)], pa.time32("s")), "time64[ns]", [dt.time(1)]),
        (pa.array([None, None]), "int64", [None, None]),
        (pa.array([None]), "map<string, struct<a: list<int8>>>", [None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), "string", ["a", None, "a"]),
        (pa.array([300, 300]).dictionary_encode(), "int16", [300, 300]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), "string", ["a", "a", "b"]),
        (_views(["a", "b"], [1, None, 0]), "string", ["b", None, "a"]),
        (_views(["a", "b"], [1, None, 0]).slice(1), "string", [None, "a"]),
        (_views(["unused", "\u00e9", None], [2, 1]), "string", [None, "\u00e9"]),
        (_views([b"\xff", b""], [0, None], pa.binary_view()), "binary", [b"\xff", None]),
        (pa.StructArray.from_arrays([_views(["a"], [0, None])], ["x"]), "struct<x: string>", [{"x": "a"}, {"x": None}]),
        (pa.ListArray.from_arrays([0, 2, 2], _views(["a"], [0, None])), "list<item: string>", [["a", None], []]),
        (pa.ListViewArray.from_arrays([1, 0], [1, 2], _views(["a"], [0, None])), "list<string>", [[None], ["a", None]]),
        (pa.FixedSizeListArray.from_arrays(_views(["a"], [0, None]), 1).slice(1), "list<string>", [[None]]),
        (
            pa.MapArray.from_arrays([0, 1, 2], _views(["k", "l"], [0, 1]), _views(["a"], [0, None])),
            "map<string, string>",
            [[("k", "a")], [("l", None)]],
        ),
        (
            pa.DictionaryArray.from_arrays([1, 0, None], pa.array([["a"], None], pa.list_(pa.string_view()))),
            "list<string>",
            [None, ["a"], None],
        ),
        (pa.RunEndEncodedArray.from_arrays([2, 3], _views(["a"], [0, None])).slice(1), "string", ["a", None]),
        (
            pa.RunEndEncodedArray.from_arrays([1, 4], pa.array([None, "a"], pa.string_view())).slice(0, 2),
            "string",
            [None, "a"],
        ),
        (pa.array(["a"], pa.large_string()), "string", ["a"]),
        (pa.array(["a", None], pa.string_view()), "string", ["a", None]),
        (pa.array([b"ab"], pa.binary(2)), "binary", [b"ab"]),
        (pa.array([b"\xff"], pa.large_binary()), "binary", [b"\xff"]),
        (pa.array([b"\xff"], pa.binary_view()), "binary", [b"\xff"]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))), "binary", [b"x" * 16]),
        (pa.array([[1, None], None, []]), "list<int8>", [[1, None], None, []]),
        (pa.array([[1], None], pa.large_list(pa.int64())), "list<int8>", [[1], None]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), "list<int8>", [[1, 2], None]),
        (pa.array([[9], [1], None], pa.list_view(pa.int8())).slice(1), "list<int8>", [[1], None]),
        (pa.array([[["a"], None]], pa.list_(pa.list_(pa.large_string()))), "list<list<string>>", [[["a"], None]]),
        (
            pa.array([[(1, None)], [(2, {"a": 3})]], pa.map_(pa.int8(), pa.struct([pa.field("a", pa.int64(), False)]))),
            "map<int8, struct<a: int8 not null>>",
            [[(1, None)], [(2, {"a": 3})]],
        ),
        (pa.array([], pa.map_(pa.int8(), pa.int64())), "map<int8, int8>", []),
        (pa.array([], pa.list_view(pa.int64())), "list<int8>", []),
        (pa.array([{"a": 1, "b": None}, None]), "struct<b: int8, a: int8>", [{"b": None, "a": 1}, None]),
        (
            pa.array([[("z", 0)], [("a", 1)], None, []], pa.map_(pa.large_string(), pa.int64())).slice(1),
            "map<string, int8>",
            [[("a", 1)], None, []],
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_value_is_kept_through_the_cast(column: pa.Array, text: str, values: list[Any]) -> None:
    assert cast(column, text).to_pylist() == values


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        (pa.array([1, 2, 300]), "int8", "row 102: 300 cannot be cast to int8: Integer value 300 not in range"),
        (pa.array([2**63], pa.uint64()), "int64", "row 100: 9223372036854775808 cannot be cast to int64"),
        (pa.array([2**53 + 1]), "double", "row 100: 9007199254740993 cannot be cast to double"),
        (pa.array([2**24 + 1]), "float32", "no 32-bit float is exactly this number"),
        (pa.array([2**20]), "float16", "no 16-bit float is exactly this number"),
        (pa.array([0.5, 0.1]), "float32", "row 101: 0.1 cannot be cast to float: no 32-bit float is exactly this"),
        (pa.array([1e300]), "float32", "no 32-bit float is exactly this number"),
        (pa.array([1.0, np.nan]), "int64", "row 101: nan cannot be cast to int64"),
        (pa.array([1.5]), "int64", "row 100: 1.5 cannot be cast to int64: Float value 1.500000 was truncated"),
        (pa.array([2.0**63]), "int64", "row 100: 9.22.*cannot be cast to int64: floats round integers from"),
        (pa.array([256], pa.float16()), "uint8", "row 100: 256.0 cannot be cast to uint8: Float value 256.0"),
        (pa.array([1, 341]), "decimal(38, 36)", "row 101: 341 cannot be cast to decimal128"),
        (pa.array([Decimal(1), Decimal(341)]), "decimal(38, 36)", "row 101: 341 cannot be cast to decimal128"),
        (pa.array([5, 50_000]), "decimal(5, 2)", "row 101: 50000 cannot be cast to decimal128.*does not fit"),
        (pa.array([Decimal("1.55")]), "decimal(3, 1)", "row 100: 1.55 cannot be cast to decimal128.*data loss"),
        (pa.array([Decimal("1.50")]), "int64", "row 100: 1.50 cannot be cast to int64"),
        (pa.array([NOON, NOON.replace(microsecond=1)]), "timestamp[s]", "row 101: 2020-01-01 12:00:00.000001 cannot"),
        (pa.array([dt.date(2020, 1, 1), dt.date(9999, 1, 1)]), "timestamp[ns]", "row 101: 9999-01-01 cannot be cast"),
        (pa.array([0, 5], pa.date64()), "date", "row 101: 1970-01-01 cannot be cast to date32.*would lose data: 5"),
        (pa.array([dt.time(1, microsecond=1)]), "time32[s]", "row 100: 01:00:00.000001 cannot be cast to time32"),
        (pa.array([[1], [2, 300]]), "list<int8>", r"row 101: \[2, 300\] cannot be cast to list<item: int8>: Integer"),
        (pa.array([{"a": 1}, {"a": 300}]), "struct<a: int8>", "row 101: {'a': 300} cannot be cast"),
        (pa.array([None, 300, 301]).dictionary_encode(), "int8", "row 101: 300 cannot be cast"),
        (pa.RunEndEncodedArray.from_arrays([2, 3], [1, 300]), "int8", "row 102: 300 cannot be cast"),
        (pa.array([None, ["a"]], pa.list_(pa.string_view())), "list<int8>", "row 101: .* cannot be cast"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_value_that_would_change_is_refused_with_row_value_and_reason(
    column: pa.Array, text: str, message: str
) -> None:
    with pytest.raises(SchemaMismatch, match=message) as caught:
        cast(column, text, first_row=100)
    assert caught.value.details["column"] == "c"
    assert int(caught.value.details["row"]) in (100, 101, 102)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array(["1"]), "int64"),
        (pa.array([1]), "string"),
        (pa.array([1.5]), "decimal(5, 2)"),
        (pa.array([Decimal("1.5")]), "double"),
        (pa.array([True]), "int64"),
        (pa.array([1]), "bool"),
        (pa.array(["true"]), "bool"),
        (pa.array([b"a"]), "string"),
        (pa.array(["a"]), "binary"),
        (pa.array(["2020-01-01"]), "date"),
        (pa.array([1]), "timestamp"),
        (pa.array([NOON]), "int64"),
        (pa.array([NOON]), "date"),
        (pa.array([NOON]), "time"),
        (pa.array([dt.date(2020, 1, 1)]), "timestamptz"),
        (pa.array([dt.timedelta(1)]), "int64"),
        (pa.array([1]), "list<int64>"),
        (pa.array([["1"]]), "list<int64>"),
        (pa.array([[1]]), "int64"),
        (pa.array([{"a": 1}]), "list<int64>"),
        (pa.array([{"a": 1}]), "map<string, int64>"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_value_of_another_kind_is_refused(column: pa.Array, text: str) -> None:
    with pytest.raises(SchemaMismatch, match=r'column "c", row 100: .* are different kinds of values'):
        cast(column, text, first_row=100)


def test_time_zone_is_neither_added_nor_dropped() -> None:
    with pytest.raises(SchemaMismatch, match=r"row 0: 2020-01-01 12:00:00 cannot.*one has a time zone, the other has"):
        cast(pa.array([NOON]), "timestamptz")
    with pytest.raises(SchemaMismatch, match=r"row 0: 2020-01-01 12:00:00\+00:00 cannot.*one has a time zone"):
        cast(pa.array([NOON.replace(tzinfo=UTC)]), "timestamp")


def test_struct_with_other_fields_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"row 0: {'a': 1} cannot be cast.*have different fields"):
        cast(pa.array([{"a": 1}]), "struct<a: int64, b: int64>")


def test_text_is_quoted_and_long_values_are_left_out() -> None:
    with pytest.raises(SchemaMismatch, match='column "c", row 2: "abc" cannot be cast to int64'):
        cast(pa.array([None, None, "abc"]), "int64")
    with pytest.raises(SchemaMismatch, match="row 0: the value cannot be cast to int64"):
        cast(pa.array(["x" * 1000]), "int64")


def test_column_of_another_kind_without_values_is_refused_too() -> None:
    for column in (pa.array([], pa.string()), pa.array([None], pa.string())):
        with pytest.raises(SchemaMismatch, match='column "c" cannot be cast to int64') as caught:
            cast(column, "int64")
        assert caught.value.details == {"column": "c"}


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.list_(pa.string())], ids=str)
def test_text_that_is_not_utf8_is_refused_with_its_row(type_: pa.DataType) -> None:
    text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffb")]
    )
    if type_ == pa.list_(pa.string()):
        column = pa.ListArray.from_arrays([0, 1, 3], text)
    else:
        column = text.cast(pa.binary()).cast(pa.large_binary()).view(type_) if type_ != pa.string() else text
    with pytest.raises(SchemaMismatch, match=r"row 1: the value cannot be cast.*it is not valid UTF-8"):
        cast(column, "list<string>" if type_ == pa.list_(pa.string()) else "string")


def test_row_that_fails_is_found_anywhere_in_a_large_batch() -> None:
    for row in (0, 1, 77_777, 99_999):
        values = np.zeros(100_000)
        values[row] = 0.5
        with pytest.raises(SchemaMismatch, match=f"row {row}: 0.5 cannot be cast to int32"):
            cast(pa.array(values), "int32")


SCORES = parse_schema("player string not null, score int64")


@pytest.mark.parametrize("check", [conform, check_batch])
def test_columns_are_matched_by_name_and_put_in_order(check: Any) -> None:
    batch = check(pa.record_batch({"score": pa.array([1]), "player": pa.array(["ann"])}), SCORES)
    assert batch.schema.equals(SCORES, check_metadata=True)
    assert batch.to_pylist() == [{"player": "ann", "score": 1}]


@pytest.mark.parametrize("check", [conform, check_batch])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["player"], 'column "score" is missing; give all columns: "player", "score"'),
        (["player", "scor"], 'there is no column "scor"; did you mean "score"?'),
        (["player", "score", "x"], 'there is no column "x"'),
        (["player", "score", "score"], 'column "score" is given twice'),
    ],
)
def test_columns_that_are_not_those_of_the_table_are_refused(check: Any, names: list[str], message: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["ann"])] * len(names), names=names)
    with pytest.raises(SchemaMismatch, match=message) as caught:
        check(batch, SCORES)
    assert caught.value.details["column"] in message


@pytest.mark.parametrize("check", [conform, check_batch])
@pytest.mark.parametrize(
    ("text", "values", "path", "row"),
    [
        ("int64 not null", [1, None], "c", 1),
        ("list<int64 not null>", [None, [], [1], [2, None]], r"c\[\]", 3),
        ("struct<a: int64 not null, b: int64>", [{"a": 1}, None, {"b": 1}], r"c\.a", 2),
        ("map<string, int64 not null>", [None, [("a", 1)], [("b", None)]], r"c\[\]\.value", 2),
        (
            "list<struct<x: struct<y: int64 not null>>>",
            [None, [{"x": {"y": 1}}], [None, {"x": None}], [{"x": {"y": 1}}, {"x": {"y": None}}]],
            r"c\[\]\.x\.y",
            3,
        ),
    ],
)
def test_null_where_none_is_allowed_is_refused_with_its_place(
    check: Any, text: str, values: list[Any], path: str, row: int
) -> None:
    schema = parse_schema(f"c {text}")
    # One more row at the start, sliced off, shifts the rows if offsets are handled wrongly.
    column = pa.array([values[0], *values], schema.field("c").type).slice(1)
    with pytest.raises(SchemaMismatch, match=rf'column "c", row {row}: {path} is null, but it is NOT NULL') as caught:
        check(pa.record_batch({"c": column}), schema)
    assert caught.value.details == {"column": "c", "row": str(row)}


@pytest.mark.parametrize("check", [conform, check_batch])
@pytest.mark.parametrize("fields", [[("cafe", pa.int64())], [("c", pa.struct([("cafe", pa.int64())]))]])
def test_name_that_is_not_utf8_is_refused(check: Any, fields: list[tuple[str, pa.DataType]]) -> None:
    schema = with_broken_names(pa.schema(fields))
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, type_) for type_ in schema.types], schema=schema)
    with pytest.raises(SchemaMismatch):
        check(batch, parse_schema("c int64"))


def test_strict_check_casts_nothing_and_tells_no_value() -> None:
    batch = pa.record_batch({"player": pa.array(["secret"]), "score": pa.array([1], pa.int32())})
    with pytest.raises(SchemaMismatch, match='column "score" is int64, not int32') as caught:
        check_batch(batch, SCORES)
    assert "secret" not in str(caught.value)


def have_same_values(left: pa.Array, right: pa.Array) -> bool:
    """Returns whether types and values are equal. For Arrow, NaN differs from NaN."""
    return left.type == right.type and (left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist()))


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Generates rows of one column of any storable type; some of them are slices."""
    field = pa.field("c", draw(storable_types()), draw(st.booleans()))
    values = draw(st.lists(values_of(field.type, not field.nullable), min_size=1, max_size=4))
    column = pa.array(values, field.type)
    return pa.record_batch([column], schema=pa.schema([field])).slice(draw(st.integers(0, 1)))


@given(batches())
def test_rows_of_the_tables_own_types_pass_as_they_are(batch: pa.RecordBatch) -> None:
    for check in (conform, check_batch):
        checked = check(batch, batch.schema)
        assert checked.schema == batch.schema
        assert have_same_values(checked.column(0), batch.column(0))


def _large(type_: pa.DataType) -> pa.DataType:
    """Returns the type in Arrow's layouts with 64-bit offsets."""
    if pa.types.is_string(type_):
        return pa.large_string()
    if pa.types.is_binary(type_):
        return pa.large_binary()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _large(field.type), field.nullable) for field in type_.fields])
    if pa.types.is_map(type_):
        value = pa.field("value", _large(type_.item_type), type_.item_field.nullable)
        return pa.map_(_large(type_.key_type), value)
    if pa.types.is_list(type_):
        return pa.large_list(pa.field("item", _large(type_.value_type), type_.value_field.nullable))
    return type_


@st.composite
def same_rows_in_two_layouts(draw: st.DrawFn) -> tuple[pa.Array, pa.Array]:
    type_ = draw(storable_types())
    values = draw(st.lists(values_of(type_), min_size=1, max_size=4))
    start = draw(st.integers(0, 1))
    normal = pa.array(values, type_)
    return normal.slice(start), normal.cast(_large(type_)).slice(start)


@given(same_rows_in_two_layouts())
def test_rows_in_other_layouts_become_the_same_rows(layouts: tuple[pa.Array, pa.Array]) -> None:
    normal, large = layouts
    schema = pa.schema([pa.field("c", normal.type)])
    conformed = conform(pa.record_batch({"c": large}), schema).column(0)
    conformed.validate(full=True)
    assert have_same_values(conformed, normal)


@given(st.data())
@examples(20)
def test_cast_between_any_two_types_keeps_the_value_or_is_refused(data: st.DataObject) -> None:
    source, target = data.draw(key_types()), data.draw(key_types())
    column = data.draw(columns(source, 1))
    try:
        result = conform(pa.record_batch({"c": column}), pa.schema([pa.field("c", target)])).column(0)
    except SchemaMismatch:
        return
    result.validate(full=True)
    assert result.type == target
    before, after = column.to_pylist()[0], result.to_pylist()[0]
    if isinstance(before, dt.date) and not isinstance(before, dt.datetime):
        before, after = dt.datetime(before.year, before.month, before.day), dt.datetime(*after.timetuple()[:6])
    assert before == after or before != before
