"""Encoded keys are decoded, and ranges of them are formatted as text."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_parts import leading_columns, point_text, range_text
from scankv.model.keys.key_range import NO_KEYS, KeyRange
from tests.support.examples import examples

NAMES = ["n", "s", "b"]
CODEC = KeyCodec([pa.int32(), pa.string(), pa.binary()], NAMES)
NULLABLE = KeyCodec(CODEC.types, NAMES, [True, True, True])
TEXT = KeyCodec([pa.string()], ["s"])
NUMBER = KeyCodec([pa.int32()], ["n"])


@given(st.integers(-(2**31), 2**31 - 1), st.text(), st.binary(), st.binary(max_size=3))
@examples(10)
def test_a_key_is_its_columns_and_a_rest(number: int, text: str, data: bytes, rest: bytes) -> None:
    columns = [
        KeyCodec([type_]).encode_one([value]) for type_, value in zip(CODEC.types, (number, text, data), strict=True)
    ]
    assert leading_columns(b"".join(columns) + rest, CODEC.types) == (columns, rest)
    for count in range(3):
        assert leading_columns(b"".join(columns[:count]), CODEC.types) == (columns[:count], b"")


@given(st.binary(max_size=12))
def test_bytes_that_are_no_key_are_taken_and_put_into_words(data: bytes) -> None:
    columns, rest = leading_columns(data, CODEC.types)
    assert b"".join(columns) + rest == data
    assert range_text(KeyRange(data, None), CODEC)
    assert range_text(KeyRange(None, data), CODEC)
    assert range_text(KeyRange(data, data + b"\3"), NULLABLE)
    assert range_text(KeyRange(None, data), NULLABLE)
    assert point_text(data, CODEC)


def test_ranges_in_words() -> None:
    ann, bob = TEXT.encode_one(["ann"]), TEXT.encode_one(["bob"])
    assert range_text(KeyRange(), TEXT) == "all keys"
    assert range_text(NO_KEYS, TEXT) == "no keys"
    assert range_text(KeyRange(ann, bob), TEXT) == "s >= 'ann' and s < 'bob'"
    assert range_text(KeyRange(ann, KeyRange.under(bob).end), TEXT) == "s >= 'ann' and s <= 'bob'"
    assert range_text(KeyRange(KeyRange.under(ann).end, None), TEXT) == "s > 'ann'"
    assert range_text(KeyRange(ann + b"\0", bob + b"\0"), TEXT) == "s > 'ann' and s <= 'bob'"
    assert range_text(KeyRange.under(b"an"), TEXT) == "s >= 'an'... and s < 'ao'..."
    assert range_text(KeyRange(NUMBER.encode_one([-5]), KeyRange.under(NUMBER.encode_one([7])).end), NUMBER) == (
        "n >= -5 and n < 8"
    )
    assert range_text(KeyRange(None, KeyRange.under(NUMBER.encode_one([255])).end), NUMBER) == "n < 256"
    key = CODEC.encode_one([1, "x", b"y"])
    assert range_text(KeyRange(key, None), CODEC) == "(n, s, b) >= (1, 'x', b'y')"
    assert point_text(key, CODEC) == "(n, s, b) = (1, 'x', b'y')"
    assert range_text(KeyRange.under(key[:-5]), CODEC) == "n = 1 and s >= 'x'... and s < 'y'..."


def test_a_range_of_a_single_value_is_that_value_in_words() -> None:
    ann, key = TEXT.encode_one(["ann"]), CODEC.encode_one([1, "x", b"y"])
    assert range_text(KeyRange.under(ann), TEXT) == "s = 'ann'"
    assert range_text(KeyRange(ann, ann + b"\0"), TEXT) == "s = 'ann'"
    assert range_text(KeyRange.under(NUMBER.encode_one([7])), NUMBER) == "n = 7"
    assert range_text(KeyRange.under(NUMBER.encode_one([2**31 - 1])), NUMBER) == "n = 2147483647"
    assert range_text(KeyRange.under(key), CODEC) == "(n, s, b) = (1, 'x', b'y')"
    assert range_text(KeyRange.under(key[:7]), CODEC) == "(n, s) = (1, 'x')"
    assert range_text(KeyRange(key, KeyRange.under(key[:4]).end), CODEC) == "n = 1 and (s, b) >= ('x', b'y')"
    assert range_text(KeyRange(key[:7], key), CODEC) == "(n, s) = (1, 'x') and b < b'y'"


def test_ranges_of_columns_with_nulls_in_words() -> None:
    codec = KeyCodec([pa.string(), pa.float32()], ["s", "x"], [True, True])

    def encoded(*values: object) -> bytes:
        arrays = [pa.array([value], type_) for value, type_ in zip(values, codec.types, strict=False)]
        columns = KeyCodec(codec.types[: len(values)], nullable=codec.nullable[: len(values)])
        return bytes(columns.encode(arrays)[0].as_py())

    ann, five, null = encoded("ann"), encoded("ann", 5.0), encoded(None)
    behind, nulls = KeyRange.under(ann).end, KeyRange.under(encoded("ann", None))
    assert range_text(KeyRange.under(ann), codec) == "s = 'ann'"
    assert range_text(KeyRange.under(five), codec) == "(s, x) = ('ann', 5)"
    assert range_text(nulls, codec) == "s = 'ann' and x is null"
    assert range_text(KeyRange.under(null), codec) == "s is null"
    assert range_text(KeyRange.under(encoded(None, None)), codec) == "s is null and x is null"
    assert range_text(KeyRange(b"", null), codec) == "s is not null"
    assert range_text(KeyRange(b"\1", None), codec) == "all keys"
    assert range_text(KeyRange(ann, null), codec) == "s >= 'ann'"
    assert range_text(KeyRange(ann, None), codec) == "(s >= 'ann' or s is null)"
    assert range_text(KeyRange(b"", ann), codec) == "s < 'ann'"
    assert range_text(KeyRange(ann, nulls.start), codec) == "s = 'ann' and x is not null"
    assert range_text(KeyRange(five, nulls.start), codec) == "s = 'ann' and x >= 5"
    assert range_text(KeyRange(five, behind), codec) == "s = 'ann' and (x >= 5 or x is null)"
    assert range_text(KeyRange(ann, five), codec) == "s = 'ann' and x < 5"
    assert range_text(KeyRange.under(b"\1an"), codec) == "s >= 'an'... and s < 'ao'..."
    assert range_text(KeyRange(five, encoded("bob")), codec) == "(s, x) >= ('ann', 5) and s < 'bob'"


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (pa.bool_(), True, "k = true"),
        (pa.uint8(), 255, "k = 255"),
        (pa.int64(), -(2**63), "k = -9223372036854775808"),
        (pa.float64(), -1.5, "k = -1.5"),
        (pa.float32(), float("nan"), "k = nan"),
        (pa.decimal128(10, 2), 12, "k = 12.00"),
        (pa.date32(), dt.date(2024, 2, 29), "k = '2024-02-29'"),
        (pa.timestamp("us"), dt.datetime(2024, 2, 29, 1), "k = '2024-02-29 01:00:00.000000'"),
        (pa.string(), "it's", 'k = "it\'s"'),
    ],
)
def test_values_of_all_kinds_in_words(type_: pa.DataType, value: object, text: str) -> None:
    codec = KeyCodec([type_], ["k"])
    assert point_text(codec.encode_one([value]), codec) == text
