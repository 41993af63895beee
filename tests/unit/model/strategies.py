"""Random storable types, and arrays of them, for property tests.

Strategies are cached, because Hypothesis takes longer to build and validate one than to draw from it.
"""

from __future__ import annotations

import datetime as dt
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from scankv.model.tables.columns import CHANGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
ZONES = [None, "UTC", "Europe/Berlin", "+05:30"]
TIMES = [
    pa.date32(),
    *(pa.time32(unit) for unit in ("s", "ms")),
    *(pa.time64(unit) for unit in ("us", "ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ZONES),
]
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_1 = int(dt.datetime(1, 1, 2, tzinfo=dt.UTC).timestamp())
_YEAR_9999 = int(dt.datetime(9999, 12, 30, tzinfo=dt.UTC).timestamp())
# Types whose strategies are kept.
_KEPT = 256
_NUL_HEAVY = st.sampled_from("\x00\x01ab\u00ff\U0001f600")


@cache
def decimal_types() -> st.SearchStrategy[pa.DataType]:
    return st.integers(1, 38).flatmap(
        lambda precision: st.integers(-3, precision).map(lambda scale: pa.decimal128(precision, scale))
    )


@cache
def key_types() -> st.SearchStrategy[pa.DataType]:
    """Generates every scalar type; text and binary often, because they have no fixed width."""
    return st.one_of(
        st.sampled_from([pa.string(), pa.binary()]),
        st.sampled_from([*INTEGERS, *FLOATS, *TIMES, pa.bool_()]),
        decimal_types(),
    )


@cache
def storable_types() -> st.SearchStrategy[pa.DataType]:
    return st.recursive(key_types(), _nested, max_leaves=6)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    lists = st.builds(lambda type_, null: pa.list_(pa.field("item", type_, null)), inner, st.booleans())
    maps = st.builds(
        lambda key, value, null: pa.map_(key, pa.field("value", value, null)), key_types(), inner, st.booleans()
    )
    fields = st.builds(pa.field, field_names(), inner, st.booleans())
    structs = st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name).map(pa.struct)
    return st.one_of(lists, maps, structs)


@cache
def field_names() -> st.SearchStrategy[str]:
    # Hypothesis uses words of the code that it tests, so the refused names do occur.
    characters = st.characters(exclude_categories=["C", "Z"], include_characters=" ")  # the printable ones
    printable = st.text(characters, min_size=1, max_size=8).filter(lambda text: text not in CHANGE_COLUMNS)
    return st.one_of(st.sampled_from(["a", "b", "not", "Null", "int64", "list"]), printable)


@cache
def schemas() -> st.SearchStrategy[pa.Schema]:
    fields = st.builds(pa.field, field_names(), storable_types(), st.booleans())
    return st.lists(fields, min_size=1, max_size=5, unique_by=lambda field: field.name).map(pa.schema)


@lru_cache(_KEPT)
def scalars(type_: pa.DataType) -> st.SearchStrategy[pa.Scalar]:
    """Generates values of a scalar type, including extreme and unusual ones; times are in the years 1 to 9999."""
    if type_ in INTEGERS:
        bits = type_.bit_width
        low = 0 if pa.types.is_unsigned_integer(type_) else -(2 ** (bits - 1))
        return st.integers(low, low + 2**bits - 1).map(lambda value: pa.scalar(value, type_))
    if pa.types.is_floating(type_):
        return st.floats(width=type_.bit_width).map(lambda value: pa.scalar(value, type_))
    if pa.types.is_boolean(type_):
        return st.booleans().map(pa.scalar)
    if pa.types.is_string(type_):
        return st.one_of(st.text(_NUL_HEAVY, max_size=6), st.text(max_size=6)).map(lambda text: pa.scalar(text, type_))
    if pa.types.is_binary(type_):
        nul_heavy = st.lists(st.sampled_from([0, 0, 1, 255]), max_size=6).map(bytes)
        return st.one_of(nul_heavy, st.binary(max_size=6)).map(lambda data: pa.scalar(data, type_))
    if pa.types.is_decimal(type_):
        return _unscaled(type_)
    return _times(type_)


def _unscaled(type_: pa.Decimal128Type) -> st.SearchStrategy[pa.Scalar]:
    digits = 10**type_.precision - 1

    def scalar(unscaled: int) -> pa.Scalar:
        data = unscaled.to_bytes(16, "little", signed=True)
        return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(data)])[0]

    return st.integers(-digits, digits).map(scalar)


def _times(type_: pa.DataType) -> st.SearchStrategy[pa.Scalar]:
    if pa.types.is_date32(type_):
        numbers = st.integers(_YEAR_1 // 86_400, _YEAR_9999 // 86_400)
    elif pa.types.is_time(type_):
        numbers = st.integers(0, 86_400 * _PER_SECOND[type_.unit] - 1)
    else:
        per_second = _PER_SECOND[type_.unit]
        # pandas, which Arrow uses for nanoseconds, overflows at days that another time zone shifts.
        furthest = 2**63 - 1 - 86_400 * per_second
        numbers = st.integers(max(_YEAR_1 * per_second, -furthest), min(_YEAR_9999 * per_second, furthest))
    carrier = pa.int32() if type_.bit_width == 32 else pa.int64()
    return numbers.map(lambda number: pa.scalar(number, carrier).cast(type_))


@lru_cache(_KEPT)
def columns(type_: pa.DataType, rows: int) -> st.SearchStrategy[pa.Array]:
    """Generates arrays of a scalar type without nulls; some of them are slices."""

    def build(values: list[pa.Scalar]) -> pa.Array:
        return pa.array(values, type_).slice(len(values) - rows)

    return st.integers(0, 2).flatmap(
        lambda extra: st.lists(scalars(type_), min_size=rows + extra, max_size=rows + extra).map(build)
    )


def order_of(column: pa.Array) -> list[Any]:
    """Returns Python values that compare as the column's values do, with NaN as the greatest."""
    return [_order(scalar) for scalar in column]


def _order(scalar: pa.Scalar) -> Any:
    type_ = scalar.type
    if pa.types.is_floating(type_):
        value = scalar.as_py()
        return (1, 0.0) if value != value else (0, value)
    if pa.types.is_string(type_):
        return scalar.as_py().encode()
    return scalar.value if pa.types.is_temporal(type_) else scalar.as_py()


def with_broken_names(schema: pa.Schema) -> pa.Schema:
    """Returns the schema as sent by a client that writes `caf?` in Latin-1 for every `cafe` in a name."""
    return pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes().replace(b"cafe", b"caf\xe9")))


@lru_cache(_KEPT)
def values_of(type_: pa.DataType, required: bool = False) -> st.SearchStrategy[Any]:
    """Makes Python values or scalars that `pa.array(..., type_)` accepts, nested ones too, with nulls if allowed."""
    value = _VALUES.get(type_.id, scalars)(type_)
    return value if required else st.one_of(st.none(), value)


def _list_values(type_: pa.ListType) -> st.SearchStrategy[Any]:
    return st.lists(values_of(type_.value_type, not type_.value_field.nullable), max_size=3)


def _map_values(type_: pa.MapType) -> st.SearchStrategy[Any]:
    entry = st.tuples(values_of(type_.key_type, True), values_of(type_.item_type, not type_.item_field.nullable))
    return st.lists(entry, max_size=3)


def _struct_values(type_: pa.StructType) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({field.name: values_of(field.type, not field.nullable) for field in type_.fields})


_VALUES: dict[int, Callable[[Any], st.SearchStrategy[Any]]] = {
    pa.list_(pa.int8()).id: _list_values,
    pa.map_(pa.int8(), pa.int8()).id: _map_values,
    pa.struct([]).id: _struct_values,
}
