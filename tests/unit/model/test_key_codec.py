"""The encoding of keys: byte order is column order, a key has one encoding, and the format on disk never changes."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidKey, SchemaMismatch
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.limits import MAX_KEY_BYTES
from tests.support.examples import examples
from tests.unit.model.strategies import columns, key_types, order_of


@st.composite
def keys(draw: st.DrawFn) -> list[pa.Array]:
    """Generates key columns of random types and equal length."""
    rows = draw(st.integers(1, 6))
    return [draw(columns(draw(key_types()), rows)) for _ in range(draw(st.integers(1, 4)))]


def codec_for(key: list[pa.Array]) -> KeyCodec:
    return KeyCodec([column.type for column in key])


@given(keys())
@examples(25)
def test_byte_order_is_column_order(key: list[pa.Array]) -> None:
    encoded = codec_for(key).encode(key).to_pylist()
    rows = list(zip(*(order_of(column) for column in key), strict=True))
    for (left, left_bytes), (right, right_bytes) in itertools.combinations(zip(rows, encoded, strict=True), 2):
        assert (left < right) == (left_bytes < right_bytes)
        assert (left == right) == (left_bytes == right_bytes)


@given(keys())
def test_no_key_is_the_beginning_of_another(key: list[pa.Array]) -> None:
    encoded = set(codec_for(key).encode(key).to_pylist())
    for left, right in itertools.permutations(encoded, 2):
        assert not left.startswith(right)


@given(keys())
def test_one_key_is_encoded_as_in_a_batch(key: list[pa.Array]) -> None:
    codec = codec_for(key)
    rows = zip(*key, strict=True)
    assert [codec.encode_one(row) for row in rows] == codec.encode(key).to_pylist()


@given(keys())
def test_leading_columns_are_a_prefix(key: list[pa.Array]) -> None:
    whole = codec_for(key).encode(key).to_pylist()
    leading = codec_for(key[:1]).encode(key[:1]).to_pylist()
    for key_bytes, prefix in zip(whole, leading, strict=True):
        assert key_bytes.startswith(prefix)


@given(keys())
def test_canonical_columns_have_the_same_encoding(key: list[pa.Array]) -> None:
    codec = codec_for(key)
    assert codec.encode([codec.canonical(column) for column in key]).equals(codec.encode(key))


# These bytes are on disk: a change here makes tables unreadable.
@pytest.mark.parametrize(
    ("type_", "value", "encoded"),
    [
        (pa.int8(), -1, "7f"),
        (pa.int16(), 1, "8001"),
        (pa.int32(), -(2**31), "00000000"),
        (pa.int64(), 1, "8000000000000001"),
        (pa.uint8(), 255, "ff"),
        (pa.uint64(), 2**64 - 1, "ffffffffffffffff"),
        (pa.float16(), 1.0, "bc00"),
        (pa.float32(), -1.5, "403fffff"),
        (pa.float64(), -0.0, "8000000000000000"),
        (pa.float64(), math.inf, "fff0000000000000"),
        (pa.float64(), math.nan, "fff8000000000000"),
        (pa.decimal128(5, 2), Decimal("-0.01"), "7fffffffffffffffffffffffffffffff"),
        (pa.bool_(), True, "01"),
        (pa.string(), "a\x00b", "6100ff620000"),
        (pa.string(), "", "0000"),
        (pa.binary(), b"\x00\x00", "00ff00ff0000"),
        (pa.date32(), dt.date(1970, 1, 2), "80000001"),
        (pa.time32("s"), dt.time(0, 0, 1), "80000001"),
        (pa.time64("us"), dt.time(0, 0, 1), "80000000000f4240"),
        (pa.timestamp("s"), dt.datetime(1970, 1, 1), "8000000000000000"),
        (pa.timestamp("ms", "UTC"), dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "8000000000000000"),
    ],
    ids=str,
)
def test_encoding_is_the_one_on_disk(type_: pa.DataType, value: object, encoded: str) -> None:
    codec = KeyCodec([type_])
    assert codec.encode([pa.array([value], type_)])[0].as_py().hex() == encoded
    assert codec.encode_one([value]).hex() == encoded


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floats_are_ordered_with_nan_last(type_: pa.DataType) -> None:
    ascending = [-math.inf, -2.0, -(2.0**-24), 0.0, 2.0**-24, 1.0, math.inf, math.nan]
    encoded = KeyCodec([type_]).encode([pa.array(ascending, type_)]).to_pylist()
    assert encoded == sorted(set(encoded))


@pytest.mark.parametrize("type_", [pa.int64(), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.time64("ns")], ids=str)
def test_ends_of_64_bits_are_ordered(type_: pa.DataType) -> None:
    ascending = pa.array([-(2**63), -1, 0, 1, 2**63 - 1])
    encoded = KeyCodec([type_]).encode([ascending.view(type_)]).to_pylist()
    assert encoded == sorted(set(encoded))


def test_every_nan_and_both_zeros_are_one_key() -> None:
    bits = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF, 0, 1 << 63]
    column = pa.array(np.array(bits, np.uint64).view(np.float64))
    codec = KeyCodec([pa.float64()])
    assert len(set(codec.encode([column]).to_pylist())) == 2
    stored = np.frombuffer(codec.canonical(column).buffers()[1], np.uint64)
    assert [hex(value) for value in stored] == ["0x7ff8000000000000"] * 4 + ["0x0"] * 2


def test_canonical_keeps_nulls_and_leaves_other_columns_alone() -> None:
    canonical = KeyCodec.canonical(pa.array([None, -0.0, math.nan], pa.float32()))
    assert canonical.null_count == 1
    assert math.copysign(1, canonical[1].as_py()) == 1
    for column in (pa.array([1.5, None]), pa.array(["a"]), pa.array([], pa.float64())):
        assert KeyCodec.canonical(column) is column


def test_no_rows_give_no_keys() -> None:
    for type_ in (pa.int64(), pa.string(), pa.decimal128(5, 2), pa.bool_(), pa.float16()):
        empty = pa.array([None, None], type_).slice(1, 0)
        assert len(KeyCodec([type_]).encode([empty])) == 0
        assert len(KeyCodec([type_, pa.string()]).encode([empty, pa.array([], pa.string())])) == 0


def test_null_is_refused_with_column_and_row() -> None:
    codec = KeyCodec([pa.int64(), pa.string()], ["id", "name"])
    with pytest.raises(InvalidKey, match='key column "name", row 2: null') as caught:
        codec.encode([pa.array([1, 2, 3]), pa.array(["a", "b", None])])
    assert caught.value.details == {"column": "name", "row": "2"}
    with pytest.raises(InvalidKey, match='"name": null'):
        codec.encode_one([1, None])


def test_key_at_the_limit_is_taken_and_over_it_refused_with_its_row() -> None:
    codec = KeyCodec([pa.string()])
    longest = "x" * (MAX_KEY_BYTES - 2)
    assert len(codec.encode([pa.array([longest])])[0].as_py()) == len(codec.encode_one([longest])) == MAX_KEY_BYTES
    with pytest.raises(InvalidKey, match="row 1: the key has 16,385 bytes when encoded; the limit is 16,384") as caught:
        codec.encode([pa.array([longest, longest + "x"])])
    assert caught.value.details == {"row": "1"}
    with pytest.raises(InvalidKey, match="16,385 bytes"):
        codec.encode_one([longest + "x"])


def test_columns_that_are_not_the_key_are_refused() -> None:
    codec = KeyCodec([pa.int64(), pa.string()], ["id", "name"])
    with pytest.raises(InvalidKey, match=r"the key is \(id int64, name string\), but 1 columns were given"):
        codec.encode([pa.array([1])])
    with pytest.raises(InvalidKey, match='key column "id" is int64, not int32'):
        codec.encode([pa.array([1], pa.int32()), pa.array(["a"])])
    with pytest.raises(InvalidKey, match="but 3 values were given"):
        codec.encode_one([1, "a", 2])


@pytest.mark.parametrize("type_", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.large_string(), pa.null()])
def test_type_that_cannot_be_in_a_key_is_refused(type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r'column "k".*cannot be in a key'):
        KeyCodec([type_], ["k"])


def test_key_without_columns_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="at least one column"):
        KeyCodec([])


BERLIN_NOON = pd.Timestamp("2020-01-01 12:00", tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("type_", "value", "same_as"),
    [
        (pa.int64(), np.int8(3), 3),
        (pa.int64(), 3.0, 3),
        (pa.int64(), pa.scalar(3, pa.uint8()), 3),
        (pa.float64(), 3, 3.0),
        (pa.decimal128(10, 2), 3, Decimal("3.00")),
        (pa.decimal128(38, 0), 10**37, Decimal(10**37)),
        (pa.string(), np.str_("a"), "a"),
        (pa.bool_(), np.bool_(True), True),
        (pa.timestamp("us"), dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)),
        (pa.timestamp("ns"), np.datetime64("2020-01-01T00:00:00.000000001"), pd.Timestamp(1577836800000000001)),
        (pa.timestamp("us"), pd.Timestamp("3000-01-01"), dt.datetime(3000, 1, 1)),
        (pa.timestamp("s", "UTC"), BERLIN_NOON, dt.datetime(2020, 1, 1, 11, tzinfo=dt.UTC)),
    ],
    ids=str,
)
def test_values_of_other_classes_are_the_same_key(type_: pa.DataType, value: object, same_as: object) -> None:
    codec = KeyCodec([type_])
    assert codec.encode_one([value]) == codec.encode_one([same_as])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), True),
        (pa.int64(), "1"),
        (pa.int8(), 128),
        (pa.int64(), 2**64),
        (pa.int64(), [1]),
        (pa.int64(), Ellipsis),
        (pa.float32(), 0.1),
        (pa.float64(), 2**53 + 1),
        (pa.decimal128(5, 2), Decimal("0.001")),
        (pa.string(), 1),
        (pa.string(), b"a"),
        (pa.string(), "\ud800"),
        (pa.bool_(), 1),
        (pa.date32(), dt.datetime(2020, 1, 1, 3)),
        (pa.timestamp("s"), dt.datetime(2020, 1, 1, microsecond=1)),
        (pa.timestamp("us"), pd.Timestamp(1)),
        (pa.timestamp("us"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1)),
        (pa.timestamp("us"), pd.NaT),
    ],
    ids=str,
)
def test_value_that_would_change_is_refused(type_: pa.DataType, value: Any) -> None:
    with pytest.raises(InvalidKey, match='key column "k"') as caught:
        KeyCodec([type_], ["k"]).encode_one([value])
    assert caught.value.details == {"column": "k"}


def test_codec_survives_pickling() -> None:
    codec = KeyCodec([pa.string(), pa.timestamp("us", "UTC")], ["name", "at"])
    copy = pickle.loads(pickle.dumps(codec))
    assert (copy.types, copy.names) == (codec.types, codec.names)
