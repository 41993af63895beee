"""The types that a table can store, and their text forms."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.limits import MAX_NESTING
from scankv.model.types.types import format_schema, format_type, is_key_type, is_storable, parse_schema, storable_type
from tests.unit.model.strategies import FLOATS, INTEGERS, TIMES, schemas, storable_types

SCALARS = [*INTEGERS, *FLOATS, *TIMES, pa.bool_(), pa.string(), pa.binary(), pa.decimal128(38, 38)]


@given(storable_types())
def test_normal_form_of_a_storable_type_is_itself(type_: pa.DataType) -> None:
    assert storable_type(type_) == type_
    assert is_storable(type_)


@pytest.mark.parametrize("type_", SCALARS, ids=str)
def test_every_scalar_type_can_be_in_a_key(type_: pa.DataType) -> None:
    assert is_key_type(type_)


@pytest.mark.parametrize(
    ("given_type", "normal"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int8()), pa.int8()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.decimal256(38, 2), pa.decimal128(38, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.map_(pa.large_string(), pa.int8(), keys_sorted=True), pa.map_(pa.string(), pa.int8())),
        (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
    ],
    ids=str,
)
def test_type_of_another_layout_has_a_normal_form(given_type: pa.DataType, normal: pa.DataType) -> None:
    assert storable_type(given_type).equals(normal, check_metadata=True)
    assert not is_storable(given_type)


def test_item_names_and_metadata_are_dropped_and_not_null_is_kept() -> None:
    item = pa.field("element", pa.int8(), nullable=False, metadata={"from": "a file"})
    normal = storable_type(pa.list_(item))
    assert normal.value_field.equals(pa.field("item", pa.int8(), nullable=False), check_metadata=True)


@pytest.mark.parametrize(
    ("type_", "hint"),
    [
        (pa.date64(), r"use date32 or timestamp\[ms\]"),
        (pa.duration("s"), "use int64 with the unit"),
        (pa.month_day_nano_interval(), "use int64 with the unit"),
        (pa.null(), "give the column the type"),
        (pa.uuid(), r"use its storage type, fixed_size_binary\[16\]"),
        (pa.decimal256(39, 2), "at most 38 digits"),
        (pa.decimal128(5, 39), "its scale must be at most 38"),
        (pa.dense_union([pa.field("a", pa.int8())]), "use a struct"),
        (pa.struct([]), "a struct must have between 1 and 1,000 fields, not 0"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), 'a struct has two fields "a"'),
        (pa.struct([("", pa.int8())]), "between 1 and 128 characters"),
        (pa.struct([("a\nb", pa.int8())]), "printable"),
        (pa.list_(pa.struct([("a", pa.date64())])), "use date32"),
        (pa.map_(pa.duration("s"), pa.int8()), "use int64"),
        (pa.timestamp("us", "a]b"), "'a]b' is not the name of a time zone"),
    ],
    ids=str,
)
def test_type_that_cannot_be_stored_is_refused_with_a_way_out(type_: pa.DataType, hint: str) -> None:
    with pytest.raises(SchemaMismatch, match=f'column "c": .*{hint}') as caught:
        storable_type(type_, "c")
    assert caught.value.details == {"column": "c"}
    assert not is_key_type(type_)


def test_nesting_has_a_limit() -> None:
    type_ = pa.int8()
    for _ in range(MAX_NESTING):
        type_ = pa.list_(type_)
    assert storable_type(type_) == type_
    with pytest.raises(SchemaMismatch, match="more than 32 levels"):
        storable_type(pa.list_(type_))


@given(schemas())
def test_schema_is_read_as_it_was_written(schema: pa.Schema) -> None:
    assert parse_schema(format_schema(schema)) == schema


@pytest.mark.parametrize("type_", [*SCALARS, pa.list_(pa.int8()), pa.map_(pa.string(), pa.list_(pa.int8()))], ids=str)
def test_type_as_pyarrow_prints_it_is_read(type_: pa.DataType) -> None:
    assert format_type(type_) == str(type_)
    assert parse_schema(f"c {type_}").field("c").type == type_


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("TinyInt", pa.int8()),
        ("smallint", pa.int16()),
        ("INTEGER", pa.int32()),
        ("int", pa.int32()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("float16", pa.float16()),
        ("text", pa.string()),
        ("varchar", pa.string()),
        ("varchar(20)", pa.string()),
        ("boolean", pa.bool_()),
        ("bytes", pa.binary()),
        ("blob", pa.binary()),
        ("date", pa.date32()),
        ("date32", pa.date32()),
        ("time", pa.time64("us")),
        ("timestamp", pa.timestamp("us")),
        ("timestamptz", pa.timestamp("us", "UTC")),
        ("TIMESTAMP [ MS , TZ = Europe/Berlin ]", pa.timestamp("ms", "Europe/Berlin")),
        ("decimal(10,2)", pa.decimal128(10, 2)),
        ("numeric(10)", pa.decimal128(10, 0)),
        ("decimal128(10, -2)", pa.decimal128(10, -2)),
        ("list<int8>", pa.list_(pa.int8())),
        ("list<item: int8 not null>", pa.list_(pa.field("item", pa.int8(), nullable=False))),
        ("struct<a int8, b: int8>", pa.struct([("a", pa.int8()), ("b", pa.int8())])),
    ],
)
def test_other_words_for_a_type_are_read(text: str, type_: pa.DataType) -> None:
    assert parse_schema(f"c {text}") == pa.schema([pa.field("c", type_)])


def test_columns_are_read_with_quotes_nulls_and_spaces() -> None:
    schema = parse_schema(' Player:string NOT NULL,\n"not ""plain""" int64 null , größe double')
    assert schema == pa.schema(
        [
            pa.field("Player", pa.string(), nullable=False),
            pa.field('not "plain"', pa.int64()),
            pa.field("größe", pa.float64()),
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at the end: expected a column name"),
        ("a", "at the end: expected a type, such as int64"),
        ("a strng", r'at "strng" \(character 3\): there is no such type; did you mean "string"; expected'),
        ("a int64 b int64", r'at "b" \(character 9\): expected "," or the end'),
        ("a int64,", "at the end: expected a column name"),
        ("1a int64", r'at "1a" \(character 1\): expected a column name \(in double quotes'),
        ("a int64 not", 'at the end: expected "null" after "not"'),
        ("a decimal", r'expected "\(" after "decimal", as in decimal\(10, 2\)'),
        ("a decimal(40)", r'at "40" \(character 11\): a decimal must have between 1 and 38 digits'),
        ("a decimal(x)", r'at "x" \(character 11\): expected the number of digits'),
        ("a list<int64", 'at the end: expected ">" to end "list<"'),
        ("a map<string>", r'at ">" \(character 13\): expected "," between the types'),
        ("a struct<>", r'at ">" \(character 10\): expected a column name'),
        ("a timestamp[us, UTC]", r'at "UTC" \(character 17\): expected "tz=" and a time zone'),
        ("a timestamp[us, tz=]", "expected a time zone, such as UTC"),
        ("a timestamp[m]", r'at "m" \(character 13\): expected the unit: s or ms or us or ns'),
        ("a time64", 'expected "\\[" and a unit after "time64", as in time64\\[us\\]'),
        ("a time64[s]", "expected the unit: us or ns"),
        ("a " + "list<" * 40, "nested more than 32 levels"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_position(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_schema(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a int8, b int8, a int8", 'column "a" exists twice'),
        ('"" int8', "between 1 and 128 characters"),
        ("a struct<b: int8, b: int8>", 'column "a": a struct has two fields "b"'),
    ],
)
def test_text_of_columns_that_no_table_has_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        parse_schema(text)


@given(st.one_of(st.text(), st.text('abint64liststrucmp<>[](),:" =-09', max_size=40)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        schema = parse_schema(text)
    except InvalidRequest:
        return
    assert parse_schema(format_schema(schema)) == schema
