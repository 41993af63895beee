"""Single rows as Python values: the same bytes and values as the code that works on columns, and no other."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scankv.model.rows.row_values import DamagedRowError, NotExactError, RowValues, has_row_values
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.examples import examples
from tests.support.tables import define
from tests.unit.storage.strategies import batches, definitions

many = examples(30)


def values_of(codec: RowCodec) -> RowValues:
    return RowValues(codec.definition.schema.id, codec.schema.types)


def same(one: object, other: object) -> bool:
    """Whether two Python values are equal to the bit."""
    if isinstance(one, float) and isinstance(other, float) and (math.isnan(one) or one == 0):
        return math.isnan(other) if math.isnan(one) else math.copysign(1, one) == math.copysign(1, other)
    # Decimals may be equal and have another number of digits.
    return type(one) is type(other) and one == other and str(one) == str(other)


def python_rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows as `to_pylist` gives them; rejects examples with values that Python does not have."""
    try:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except (ValueError, OverflowError):
        assume(False)
        raise


@given(st.data())
@many
def test_rows_decode_to_the_values_of_their_columns(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    assume(has_row_values(definition.schema.arrow.types))
    codec, batch = RowCodec(definition), data.draw(batches(definition.schema.arrow))
    expected = python_rows(batch)
    values = values_of(codec)
    for stored, row in zip(codec.encode(batch).to_pylist(), expected, strict=True):
        assert all(map(same, values.decode(stored), row)), (values.decode(stored), row)


@given(st.data())
@many
def test_values_encode_to_the_bytes_of_their_columns_or_not_at_all(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    assume(has_row_values(definition.schema.arrow.types))
    codec, batch = RowCodec(definition), data.draw(batches(definition.schema.arrow))
    for stored, row in zip(codec.encode(batch).to_pylist(), python_rows(batch), strict=True):
        try:
            encoded = values_of(codec).encode(row)
        except NotExactError:
            continue
        assert encoded == stored


ALL = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("i", pa.int8()),
        ("u", pa.uint16()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("t", pa.date32()),
        ("m", pa.timestamp("us")),
        ("z", pa.timestamp("us", "Europe/Berlin")),
        ("n", pa.decimal128(5, 2)),
    ]
)
ROW = (
    7,
    -128,
    65535,
    1.5,
    -0.0,
    False,
    "ä\0b",
    b"\xff\0",
    dt.date(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1969, 7, 20, 20, 17, 40, tzinfo=dt.UTC),
    None,
)


def test_every_exact_type_is_encoded() -> None:
    codec = RowCodec(define(ALL))
    row = dict(zip(ALL.names, ROW, strict=True))
    stored = codec.encode(pa.RecordBatch.from_pylist([row], schema=ALL))[0].as_py()
    assert values_of(codec).encode(ROW) == stored
    assert values_of(codec).decode(stored) == ROW
    nothing = (7, *[None] * 11)
    assert values_of(codec).decode(values_of(codec).encode(nothing)) == nothing


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("k", True),
        ("k", 1.0),
        ("k", 1 << 63),
        ("i", 128),
        ("u", -1),
        ("f", 1),
        ("f", 1e39),
        ("d", 3),
        ("b", 1),
        ("s", b"x"),
        ("s", "\ud800"),
        ("y", "x"),
        ("y", bytearray(b"x")),
        ("t", dt.datetime(2020, 1, 1)),
        ("m", dt.date(2020, 1, 1)),
        ("m", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        ("z", dt.datetime(2020, 1, 1)),
        ("n", 3),
    ],
)
def test_other_values_are_not_encoded(column: str, value: object) -> None:
    row: list[object] = list(ROW)
    row[ALL.names.index(column)] = value
    with pytest.raises(NotExactError):
        values_of(RowCodec(define(ALL))).encode(row)


@given(st.data())
@many
def test_damaged_rows_are_refused_or_decoded_but_nothing_else(data: st.DataObject) -> None:
    values = values_of(RowCodec(define(ALL)))
    whole = values.encode(ROW)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    for damaged in (flipped, whole[:place], whole + b"\0"):
        try:
            values.decode(damaged)
        except DamagedRowError:
            continue
        except (ValueError, OverflowError):
            pass  # a time that Python does not have, or a string that is not UTF-8
        assert damaged is flipped
