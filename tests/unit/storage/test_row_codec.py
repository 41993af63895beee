"""Stored rows: every type round-trips exactly, and equal rows are equal bytes, whatever the slices, nulls and order."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss, SchemaMismatch
from scankv.model.limits import MAX_ROW_BYTES
from streaming_server.storage.rows import fixed_parts
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.examples import examples
from tests.support.tables import define, exact_rows, exact_values
from tests.unit.storage.strategies import batches, definitions

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition

few = examples(12)
many = examples(16)

KEY = pa.field("k", pa.int32(), nullable=False)
COPIED_AND_IN_PLACE = (fixed_parts._COPIED_BYTES, 0)
"""With `fixed_parts._COPIED_BYTES` of 0, all decoders read the fixed parts of rows in place."""


def codec_of(*types: pa.DataType | pa.Field) -> RowCodec:
    """Returns the codec of a table with the key `k` and columns `c0`, `c1`, ... of these types."""
    fields = [t if isinstance(t, pa.Field) else pa.field(f"c{i}", t) for i, t in enumerate(types)]
    return RowCodec(define(pa.schema([KEY, *fields])))


def batch_of(codec: RowCodec, *columns: pa.Array) -> pa.RecordBatch:
    """Returns a batch of the codec's schema with the keys 0, 1, 2, ..."""
    rows = len(columns[0])
    return pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int32()), *columns], schema=codec.schema)


def assert_comes_back(codec: RowCodec, batch: pa.RecordBatch) -> None:
    stored = codec.encode(batch)
    assert stored.type == pa.binary()
    assert stored.null_count == 0
    decoded = codec.decoder().decode(stored)
    decoded.validate(full=True)
    assert decoded.schema.equals(codec.schema, check_metadata=True)
    assert exact_rows(decoded) == exact_rows(batch)


@given(st.data())
@many
def test_any_batch_comes_back_to_the_bit(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    assert_comes_back(RowCodec(definition), data.draw(batches(definition.schema.arrow)))


@pytest.mark.parametrize("columns", [1, 6, 7, 8, 15, 16, 63, 64, 65, 130])
def test_the_nulls_of_any_number_of_columns_come_back(columns: int) -> None:
    codec = codec_of(*[pa.int8() if number % 3 else pa.string() for number in range(columns)])
    arrays = [
        # Four of the first eight columns have no nulls, and the other four of the next eight.
        pa.array([None if (number + number // 8) % 2 and row == number % 5 else row for row in range(5)], pa.int8())
        for number in range(columns)
    ]
    batch = batch_of(codec, *(array.cast(codec.schema.types[n + 1]) for n, array in enumerate(arrays)))
    assert_comes_back(codec, batch)
    last = codec.schema.names[-1]
    assert codec.decoder([last]).decode(codec.encode(batch)).column(last).equals(batch.column(last))


@given(st.data())
@many
def test_equal_rows_are_equal_bytes_wherever_they_lie(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    codec = RowCodec(definition)
    batch = data.draw(batches(codec.schema, min_rows=1))
    copy = codec.decoder().decode(codec.encode(batch))
    stored = codec.encode(batch).to_pylist()
    assert codec.encode(copy).to_pylist() == stored
    alone = [codec.encode(batch.slice(row, 1)).to_pylist()[0] for row in range(batch.num_rows)]
    assert alone == stored


@given(st.data())
@few
def test_rows_that_differ_are_bytes_that_differ(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    codec = RowCodec(definition)
    left, right = data.draw(batches(codec.schema, 1, 1)), data.draw(batches(codec.schema, 1, 1))
    same_rows = exact_rows(left) == exact_rows(right)
    assert (codec.encode(left).to_pylist() == codec.encode(right).to_pylist()) == same_rows


@given(st.data())
@many
def test_any_columns_in_any_order_are_what_they_are_among_all(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    codec = RowCodec(definition)
    batch = data.draw(batches(codec.schema))
    names = data.draw(st.lists(st.sampled_from(codec.schema.names), unique=True))
    decoder = codec.decoder(names)
    for copied_bytes in COPIED_AND_IN_PLACE:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fixed_parts, "_COPIED_BYTES", copied_bytes)
            decoded = decoder.decode(codec.encode(batch))
        decoded.validate(full=True)
        assert decoded.num_rows == batch.num_rows
        assert decoded.schema.equals(decoder.schema)
        assert decoded.schema.names == names
        assert exact_rows(decoded) == exact_rows(batch.select(names))


@given(st.data())
@few
def test_stored_rows_may_be_a_slice(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    codec = RowCodec(definition)
    batch = data.draw(batches(codec.schema, min_rows=2))
    start = data.draw(st.integers(0, batch.num_rows))
    stored = codec.encode(batch).slice(start)
    assert exact_rows(codec.decoder().decode(stored)) == exact_rows(batch.slice(start))


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match='did you mean "c0"'):
        codec_of(pa.string()).decoder(["c"])


def integers() -> list[tuple[pa.DataType, list[Any]]]:
    cases: list[tuple[pa.DataType, list[Any]]] = []
    for bits in (8, 16, 32, 64):
        signed, unsigned = getattr(pa, f"int{bits}")(), getattr(pa, f"uint{bits}")()
        cases.append((signed, [-(2 ** (bits - 1)), -1, 0, None, 1, 2 ** (bits - 1) - 1]))
        cases.append((unsigned, [0, None, 1, 2**bits - 1]))
    return cases


def times() -> list[tuple[pa.DataType, list[Any]]]:
    cases: list[tuple[pa.DataType, list[Any]]] = [
        (pa.date32(), [-(2**31), -1, 0, None, 2**31 - 1]),
        (pa.time32("s"), [0, None, 86_399]),
        (pa.time32("ms"), [0, None, 86_399_999]),
        (pa.time64("us"), [0, 1, None, 86_399_999_999]),
        (pa.time64("ns"), [0, 1, None, 86_399_999_999_999]),
    ]
    cases += [
        (pa.timestamp(unit, zone), [-(2**63), -1, 0, 1, None, 1_700_000_000_123_456_789, 2**63 - 1])
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin", "+05:30")
    ]
    return cases


@pytest.mark.parametrize(("type_", "numbers"), [*integers(), *times()], ids=str)
def test_the_ends_of_integers_and_times_come_back(type_: pa.DataType, numbers: list[Any]) -> None:
    codec = codec_of(type_)
    carrier = pa.int32() if type_.bit_width == 32 else pa.int64()
    column = pa.array(numbers, type_) if pa.types.is_integer(type_) else pa.array(numbers, carrier).view(type_)
    assert_comes_back(codec, batch_of(codec, column))


@pytest.mark.parametrize("width", [2, 4, 8])
def test_floats_come_back_to_the_bit_also_nan_with_a_payload(width: int) -> None:
    type_ = {2: pa.float16(), 4: pa.float32(), 8: pa.float64()}[width]
    letter = {2: "e", 4: "f", 8: "d"}[width]
    top = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}[width]
    plain = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]
    bits = [int.from_bytes(struct.pack("<" + letter, value), "little") for value in plain]
    bits += [1, top | 1, top | (1 << (width * 8 - 1)) | 3, top - 1]
    column = pa.array(np.array(bits, f"<u{width}")).view(type_)
    codec = codec_of(type_, pa.list_(type_))
    nested = pa.ListArray.from_arrays(pa.array(range(len(bits) + 1), pa.int32()), column)
    batch = batch_of(codec, column, nested.cast(pa.list_(type_)))
    decoded = codec.decoder().decode(codec.encode(batch))
    unsigned = {2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}[width]
    assert decoded.column("c0").view(unsigned).to_pylist() == bits
    assert decoded.column("c1").flatten().view(unsigned).to_pylist() == bits


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (38, 0), (38, 38), (38, -3), (10, 2)])
def test_the_ends_of_decimals_come_back(precision: int, scale: int) -> None:
    type_ = pa.decimal128(precision, scale)
    largest = 10**precision - 1
    words = b"".join(number.to_bytes(16, "little", signed=True) for number in (largest, -largest, 0, 1, -1))
    codec = codec_of(type_)
    assert_comes_back(codec, batch_of(codec, pa.Array.from_buffers(type_, 5, [None, pa.py_buffer(words)])))


def test_long_and_odd_text_and_binary_come_back() -> None:
    codec = codec_of(pa.string(), pa.binary(), pa.list_(pa.binary()))
    text = ["", None, "a\x00b", "\U0001f600" * 10, "x" * 2**20, "\ue000é"]
    data = [b"", None, b"\xff\xfe\x00", bytes(range(256)), b"\x80" * 2**20, b"\x00"]
    batch = batch_of(
        codec, pa.array(text), pa.array(data), pa.array([[d, None, b""] for d in data], pa.list_(pa.binary()))
    )
    assert_comes_back(codec, batch)


def test_a_row_of_the_greatest_size_comes_back() -> None:
    codec = codec_of(pa.binary())
    assert_comes_back(codec, batch_of(codec, pa.array([b"\xff" * (MAX_ROW_BYTES - 64), b""])))


def test_a_thousand_columns_come_back() -> None:
    types = [pa.bool_(), pa.int8(), pa.string(), pa.float64(), pa.list_(pa.int8())]
    codec = codec_of(*(types[i % 5] for i in range(999)))
    row: dict[str, Any] = {"k": 7}
    values = [True, -1, "é", -0.0, [1, None]]
    row.update({f"c{i}": values[i % 5] if i % 7 else None for i in range(999)})
    assert_comes_back(codec, pa.RecordBatch.from_pylist([row, {"k": 8}], schema=codec.schema))


def test_seven_hundred_rows_of_bools_come_back_from_any_offset() -> None:
    codec = codec_of(pa.bool_())
    column = pa.array([None if i % 5 == 0 else i % 3 == 0 for i in range(700)])
    for start in (0, 1, 7, 8, 9, 63, 64, 699):
        part = column.slice(start)
        assert_comes_back(codec, batch_of(codec, part))


DEEP = pa.list_(
    pa.struct(
        [
            pa.field("m", pa.map_(pa.string(), pa.list_(pa.struct([pa.field("s", pa.string()), ("n", pa.int16())])))),
            pa.field("t", pa.timestamp("ns", "Europe/Berlin")),
        ]
    )
)


def test_every_level_of_a_nested_value_can_be_null_or_empty() -> None:
    values = [
        None,
        [],
        [None],
        [{"m": None, "t": None}],
        [{"m": [], "t": 5}],
        [{"m": [("", None)], "t": -1}, None],
        [{"m": [("a", []), ("b", [None])], "t": 0}],
        [{"m": [("c", [{"s": None, "n": None}, {"s": "", "n": -1}, None])], "t": 2**63 - 1}],
    ]
    codec = codec_of(DEEP)
    column = pa.array(values, DEEP)
    batch = batch_of(codec, column)
    assert_comes_back(codec, batch)
    for start in range(len(values)):
        assert_comes_back(codec, batch.slice(start))
        assert_comes_back(codec, batch.slice(start, 1))


def test_a_null_struct_in_a_map_with_a_required_field_comes_back_again_and_again() -> None:
    type_ = pa.map_(pa.int8(), pa.struct([pa.field("a", pa.string(), nullable=False)]))
    codec = codec_of(type_)
    batch = batch_of(codec, pa.array([[(0, None), (1, {"a": "x"})], None, []], type_))
    for _ in range(3):
        assert_comes_back(codec, batch)
        batch = codec.decoder().decode(codec.encode(batch))


def test_thirty_levels_of_lists_come_back() -> None:
    type_: pa.DataType = pa.int8()
    value: object = 3
    for level in range(30):
        type_, value = pa.list_(type_), [value] if level % 2 else [value, None]
    codec = codec_of(type_)
    assert_comes_back(codec, batch_of(codec, pa.array([value, None, []], type_)))


def test_what_lies_under_a_null_does_not_show_in_the_bytes() -> None:
    """Arrow allows any value under a null. Stored rows must not depend on it, or equal rows would look changed."""
    number = pa.array(np.array([1, 99], np.int64), mask=np.array([False, True]))
    text = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(struct.pack("<3i", 0, 1, 6)), pa.py_buffer(b"ahello")]
    )
    items = pa.array([1, 2, 3], pa.int32())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), items, mask=pa.array([False, True]))
    structs = pa.StructArray.from_arrays(
        [pa.array(["a", "hidden"]), items.slice(0, 2)], names=["s", "i"], mask=pa.array([False, True])
    )
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 3], pa.int32()), pa.array(["x", "y", "z"]), items, mask=pa.array([False, True])
    )
    arrays = [number, text, lists, structs, maps]
    codec = codec_of(*(array.type for array in arrays))
    dirty = batch_of(codec, *arrays)
    clean = batch_of(codec, *(pa.array(array.to_pylist(), array.type) for array in arrays))
    assert codec.encode(dirty).to_pylist() == codec.encode(clean).to_pylist()
    assert_comes_back(codec, dirty)


@pytest.fixture
def versions() -> list[TableDefinition]:
    """Generates a table with three versions of its schema."""
    first = define(pa.schema([KEY, ("a", pa.string())]))
    second = first.add_columns(pa.schema([("b", pa.list_(pa.string())), ("c", pa.float64())]))
    third = second.add_columns(pa.schema([("d", pa.struct([("x", pa.bool_())])), ("e", pa.timestamp("ns", "UTC"))]))
    return [first, second, third]


def row_of(key: int, version: int) -> dict[str, Any]:
    row: dict[str, Any] = {"k": key, "a": "a" * (key % 4)}
    if version >= 1:
        row |= {"b": [str(key), None], "c": float(key)}
    if version >= 2:
        row |= {"d": {"x": True}, "e": key}
    return row


def test_rows_of_all_versions_decode_to_the_current_one_in_their_order(versions: list[TableDefinition]) -> None:
    order = [0, 2, 1, 1, 0, 2, 2, 0]
    stored: list[bytes] = []
    for key, version in enumerate(order):
        codec = RowCodec(versions[version])
        stored += codec.encode(pa.RecordBatch.from_pylist([row_of(key, version)], schema=codec.schema)).to_pylist()
    newest = RowCodec(versions[2])
    expected = pa.RecordBatch.from_pylist([row_of(k, v) for k, v in enumerate(order)], schema=newest.schema)
    values = pa.array(stored, pa.binary())
    decoded = newest.decoder().decode(values)
    decoded.validate(full=True)
    assert exact_rows(decoded) == exact_rows(expected)
    for names in (["k"], ["e", "a"], ["d"], ["c", "k", "b"]):
        assert exact_rows(newest.decoder(names).decode(values)) == exact_rows(expected.select(names))
    assert newest.decoder([]).decode(values).num_rows == len(order)


@given(st.data())
@examples(10)
def test_any_columns_added_later_are_null_in_rows_written_before(data: st.DataObject) -> None:
    definition, other = data.draw(definitions()), data.draw(definitions())
    added = pa.schema([pa.field(f"new {f.name}"[:100], f.type) for f in list(other.schema.arrow)[1:]])
    altered = definition.add_columns(added) if len(added) else definition
    old, new = RowCodec(definition), RowCodec(altered)
    before, after = data.draw(batches(old.schema)), data.draw(batches(new.schema))
    stored = pa.concat_arrays([old.encode(before), new.encode(after)])
    decoded = new.decoder().decode(stored)
    decoded.validate(full=True)
    nulls = tuple(exact_values(pa.nulls(1, field.type))[0] for field in added)
    assert exact_rows(decoded) == [row + nulls for row in exact_rows(before)] + exact_rows(after)


def test_the_bytes_of_a_row_stay_what_they_are() -> None:
    """These bytes are on disk: a change here makes tables unreadable."""
    codec = codec_of(pa.string(), pa.bool_(), pa.list_(pa.int8()))
    batch = batch_of(codec, pa.array(["é"]), pa.array([True]), pa.array([[5, None]], pa.list_(pa.int8())))
    assert codec.encode(batch)[0].as_py() == bytes.fromhex(
        "01 00 01000000"  # format, flags, schema id
        "0f"  # none of the four columns is null
        "00000000 01"  # k, c1
        "1e000000 22000000 24000000 26000000"  # where the segments end
        "c3a9"  # c0
        "02000000 0100 0500"  # c2: length, validity, values
    )


@pytest.mark.parametrize("copied_bytes", COPIED_AND_IN_PLACE)
@pytest.mark.parametrize(("ends", "problem"), [((3, 2), "overlap"), ((-1, 2), "overlap"), ((1, 3), "length")])
def test_a_row_whose_columns_have_other_bounds_than_its_bytes_is_damaged(
    ends: tuple[int, int], problem: str, copied_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_parts, "_COPIED_BYTES", copied_bytes)
    codec = codec_of(pa.string(), pa.string())
    row = bytearray(codec.encode(batch_of(codec, pa.array(["a"]), pa.array(["b"])))[0].as_py())
    fixed = len(row) - 2
    row[fixed - 8 : fixed] = struct.pack("<2i", *(fixed + end for end in ends))
    with pytest.raises(DataLoss, match=problem):
        codec.decoder(["c0"]).decode(pa.array([bytes(row)]))
