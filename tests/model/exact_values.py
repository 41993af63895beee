"""The model of the round trips: every type that a table stores, with exact values that no library interprets.

Integers stand for themselves and, in units since 1970 or midnight, for dates and times. A list is a list, a struct a
dictionary, and a map a list of pairs. `None` is null.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from scankv.model.types.types import is_key_type, is_storable
from tests.model.exact_calendar import PER_SECOND, date_of, days_of, timestamp_of

Plain = Any
"""A value of the model."""

ZONES: Final = (None, "UTC", "+05:30", "America/St_Johns")
_WIDE: Final = Context(prec=100)
_MIN64: Final = -(2**63)
_MAX64: Final = 2**63 - 1
_INT64: Final = range(_MIN64, _MAX64 + 1)
_LONG: Final = "many words, " * 9000
_TEXTS: Final = [
    "", " ", "a", " a ", "\ta\t", "null", "NULL", "NA", "N/A", "None", "NaN", "nan", "\\N", "true", "1", "01", "1e400",
    "\x00", "a\x00", "\x00b", "\r", "\n", "\r\n", "a\rb\nc", '"', '""', '"a"', 'a"b', "'", ",", "a,b", ";", "\\", "\\n",
    "-0", "{}", "[1]", "a=b", "=1+1", "\\u0041", "\u00e9", "e\u0301", "\u20ac", "\ufeff", "\ufeffa", "\uffff", "\x85",
    "\U0001f600", "\U00020bb7", "\U0010ffff", "\u2028", "\x7f", "\u200b",
]  # fmt: skip
_FLOATS: Final = [0.0, -0.0, 1.0, -1.5, 0.1, math.nan, math.inf, -math.inf]


def scalar_types() -> list[pa.DataType]:
    """Returns every storable type without nesting that pyarrow can make; of decimals, those at the edges."""
    made: list[pa.DataType] = [
        *(getattr(pa, name)() for name in _PLAIN_TYPES),
        *(make(unit) for make in (pa.time32, pa.time64, pa.duration) for unit in PER_SECOND if _has(make, unit)),
        *(pa.timestamp(unit, zone) for unit in PER_SECOND for zone in ZONES),
        *(pa.decimal128(*shape) for shape in _DECIMALS),
    ]
    return [type_ for type_ in made if is_storable(type_)]


_PLAIN_TYPES: Final = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(
        "float16",
        "float32",
        "float64",
        "bool_",
        "string",
        "binary",
        "date32",
        "date64",
        "null",
        "month_day_nano_interval",
    ),
    *("large_string", "large_binary", "string_view", "binary_view", "uuid", "bool8"),
)
_DECIMALS: Final = ((1, 0), (1, 1), (5, 2), (9, 0), (18, 9), (19, 0), (38, 0), (38, 12), (38, 38), (3, -2), (38, -3))


def _has(make: Any, unit: str) -> bool:  # a factory of pyarrow
    try:
        make(unit)
    except ValueError:
        return False
    return True


def nested_types(*, every: bool) -> list[pa.DataType]:
    """Returns nested types with every scalar type in a list, or in a map and its structs; in both if `every`."""
    found: list[pa.DataType] = []
    for index, type_ in enumerate(scalar_types()):
        nested = [pa.list_(type_), pa.map_(type_, pa.struct([("v", type_)]))]
        found += nested if every else [nested[index % 2]]
    a_struct = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string())), ("z", pa.struct([("w", pa.date32())]))])
    return [
        *found,
        a_struct,
        pa.list_(pa.list_(pa.int32())),
        pa.list_(a_struct),
        pa.map_(pa.string(), pa.map_(pa.int8(), pa.binary())),
        pa.struct([pa.field("required", pa.int64(), nullable=False), ("optional", pa.float64())]),
    ]


def values_of(type_: pa.DataType) -> list[Plain]:
    """Returns the values of a type that are tried, without null. Fails for a type that has none here."""
    if pat.is_integer(type_):
        return _integers(type_)
    if pat.is_floating(type_):
        return _floats(type_)
    if pat.is_decimal(type_):
        largest = 10**type_.precision - 1
        unscaled = [0, 1, -1, largest, -largest, largest // 2]
        return [Decimal(number).scaleb(-type_.scale, _WIDE) for number in unscaled]
    if pat.is_boolean(type_):
        return [False, True]
    if pat.is_string(type_):
        return [*_TEXTS, _LONG]
    if pat.is_binary(type_):
        return [b"", b"\x00", b"\xff", b"null", b"\x00" * 3, bytes(range(256)), b'\r\n",', b"ab" * 50_000]
    if pat.is_date32(type_):
        days = [days_of(*date) for date in _DATES]
        return [*days, -(2**31), 2**31 - 1]
    if pat.is_time(type_):
        day = 86_400 * PER_SECOND[type_.unit]
        return [0, 1, day // 2, day - 1, day // 2 - 1]
    if pat.is_timestamp(type_):
        found = _timestamps(type_.unit)
        # Near an edge of what Python or pandas has, the zone decides.
        return (
            found if type_.tz in (None, "UTC") else [each for each in found if not _is_near_an_edge(each, type_.unit)]
        )
    if pat.is_nested(type_):
        return _nested(type_)
    raise AssertionError(f"a table can store {type_}: give it values here, so that its round trips are tested")


_DATES: Final = [
    (1970, 1, 1), (1969, 12, 31), (1, 1, 1), (1582, 10, 4), (1582, 10, 15), (1677, 9, 21), (1900, 2, 28), (2000, 2, 29),
    (2262, 4, 12), (9999, 12, 31), (0, 12, 31), (-1, 1, 1), (10_000, 1, 1),
]  # fmt: skip


def _integers(type_: pa.DataType) -> list[int]:
    signed = pat.is_signed_integer(type_)
    bits = type_.bit_width - signed
    least, most = (-(2**bits) if signed else 0), 2**bits - 1
    found = [0, 1, least, most, least + 1, most - 1]
    found += [sign * (2**53 + more) for sign in (1, -1) for more in (-1, 0, 1)]
    found += [2**31, 2**32 + 1, 2**63 - 1, 10**18]
    return list(dict.fromkeys(each for each in found if least <= each <= most))


def _floats(type_: pa.DataType) -> list[float]:
    info = np.finfo(type_.to_pandas_dtype())
    least = info.smallest_subnormal
    edges = [info.max, info.min, info.tiny, least, info.tiny - least, 1 + info.eps, 1 - info.epsneg]
    wanted = [*_FLOATS, *map(float, edges), 2.0**24 + 2, 1 / 3, 1e22]
    narrow = type_.to_pandas_dtype()
    rounded = [float(narrow(each)) for each in wanted if math.isinf(each) or not abs(each) > float(info.max)]
    unique = {struct.pack("<d", each): each for each in rounded}
    return list(unique.values())


def _timestamps(unit: str) -> list[int]:
    found = [timestamp_of(unit, *date) for date in _DATES]
    found += [timestamp_of(unit, 2262, 4, 11, 85_636), timestamp_of(unit, 9999, 12, 31, 86_399, PER_SECOND[unit] - 1)]
    found += [
        1,
        -1,
        timestamp_of(unit, 2024, 2, 29, 3661),
        timestamp_of(unit, 2024, 3, 10, 7 * 3600, 5 % PER_SECOND[unit]),
    ]
    found += [_MIN64, _MAX64, _MIN64 + 1, _MAX64 // 1000, _MIN64 // 10**6]
    return list(dict.fromkeys(each for each in found if _MIN64 <= each <= _MAX64))


def _is_near_an_edge(value: int, unit: str) -> bool:
    day = 86_400 * PER_SECOND[unit]
    edges = (timestamp_of(unit, 1, 1, 1), timestamp_of(unit, 10_000, 1, 1), _MIN64 if unit == "ns" else None, _MAX64)
    return any(edge is not None and abs(value - edge) <= day for edge in edges)


def _nested(type_: pa.DataType) -> list[Plain]:
    if pat.is_struct(type_):
        columns = [_inner(field.type, nullable=field.nullable) for field in type_.fields]
        rows = max(map(len, columns))
        return [
            {field.name: column[row % len(column)] for field, column in zip(type_.fields, columns, strict=True)}
            for row in range(rows)
        ]
    if pat.is_map(type_):
        keys, items = _inner(type_.key_type, nullable=False), _inner(type_.item_type, nullable=True)
        pairs = [(key, items[index % len(items)]) for index, key in enumerate(keys) if not _is_nan(key)]
        return [[], *_grouped(pairs, type_)]
    items = _inner(type_.value_type, nullable=type_.value_field.nullable)
    return [[], [None], [None, None], *_grouped(items, type_)]


def _inner(type_: pa.DataType, *, nullable: bool) -> list[Plain]:
    return [*([None] if nullable else []), *(each for each in values_of(type_) if each is not _LONG)]


def _grouped(items: list[Plain], type_: pa.DataType) -> list[list[Plain]]:
    """Puts the items without traits of their own into one list, and each of the others into a list alone."""
    groups: dict[frozenset[str], list[Plain]] = {}
    for item in items:
        groups.setdefault(frozenset(value_traits([item], type_)), []).append(item)
    return list(groups.values())


def _is_nan(value: Plain) -> bool:
    return isinstance(value, float) and math.isnan(value)


def key_values_of(type_: pa.DataType) -> list[Plain]:
    """Returns the values of a type that are tried as a part of a key."""
    return [each for each in values_of(type_) if not (isinstance(each, str | bytes) and len(each) > 1000)]


def key_types() -> list[pa.DataType]:
    """Returns the scalar types that can be in a key."""
    return [type_ for type_ in scalar_types() if is_key_type(type_)]


def type_traits(type_: pa.DataType) -> set[str]:
    """Returns for what reasons a way may refuse a column of a type."""
    if pat.is_map(type_):
        return {"map"} | type_traits(type_.key_type) | type_traits(type_.item_type)
    if pat.is_struct(type_):
        own = {"struct"} if all(field.nullable for field in type_.fields) else {"struct", "NOT NULL field"}
        return own.union(*(type_traits(field.type) for field in type_.fields))
    if pat.is_nested(type_):
        return {"list"} | type_traits(type_.value_type)
    if pat.is_decimal(type_):
        return {"decimal"} | ({"negative scale"} if type_.scale < 0 else set())
    if pat.is_timestamp(type_):
        return {f"timestamp[{type_.unit}]", f"zone {type_.tz}"}
    if pat.is_time(type_):
        return {"time", str(type_)}
    return {str(type_)}


def value_traits(value: Plain, type_: pa.DataType) -> set[str]:
    """Returns for what reasons a way may refuse a value, at any depth."""
    if value is None:
        return set()
    if pat.is_map(type_):
        return set().union(*(value_traits(k, type_.key_type) | value_traits(v, type_.item_type) for k, v in value))
    if pat.is_struct(type_):
        return set().union(*(value_traits(value[field.name], field.type) for field in type_.fields))
    if pat.is_nested(type_):
        return set().union(*(value_traits(each, type_.value_type) for each in value))
    if pat.is_timestamp(type_) or pat.is_date32(type_):
        return _time_traits(value, type_)
    if pat.is_time(type_) and type_.unit == "ns" and value % 1000:
        return {"nanoseconds of a day"}
    return set()


def _time_traits(value: int, type_: pa.DataType) -> set[str]:
    unit = "" if pat.is_date32(type_) else type_.unit
    seconds = value // PER_SECOND[unit] if unit else value * 86_400
    year = date_of(seconds // 86_400)[0]
    found = {
        "year before 0": year < 0,
        "year before 1": year < 1,
        "year after 9999": year > 9999,
        "year of five digits": abs(year) > 32_000,
        "more seconds than milliseconds": unit == "s" and value * 1000 not in _INT64,
        "more than microseconds": unit in ("s", "ms") and value * 10**6 // PER_SECOND[unit] not in _INT64,
        "first second of nanoseconds": unit == "ns" and value < -9_223_372_036 * 10**9,
        "nanoseconds": unit == "ns" and value % 1000 != 0,
        "NaT": unit != "" and value == _MIN64,
        "NaT of nanoseconds": unit == "ns" and value == _MIN64,
    }
    return {trait for trait, applies in found.items() if applies}


@dataclass(frozen=True)
class Mismatch:
    """What stands in the place of a value that the model does not have."""

    shown: str


def to_arrow(values: list[Plain], type_: pa.DataType) -> pa.Array:
    """Returns an Arrow column of values of the model."""
    if pat.is_struct(type_):
        # Writers of Parquet want a value in a field that is NOT NULL even where the struct is null.
        fillers = {f.name: None if f.nullable else values_of(f.type)[0] for f in type_.fields}
        children = [
            to_arrow([(fillers if row is None else row)[f.name] for row in values], f.type) for f in type_.fields
        ]
        mask = pa.array([row is None for row in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(type_.fields), mask=mask)
    if pat.is_map(type_):
        offsets, flat = _offsets(values)
        keys = to_arrow([key for key, _ in flat], type_.key_type)
        items = to_arrow([item for _, item in flat], type_.item_type)
        mask = pa.array([row is None for row in values], pa.bool_())
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=mask)
    if pat.is_nested(type_):
        offsets, flat = _offsets(values)
        mask = pa.array([row is None for row in values], pa.bool_())
        return pa.ListArray.from_arrays(offsets, to_arrow(flat, type_.value_type), type=type_, mask=mask)
    if pat.is_floating(type_):
        return pa.array([None if each is None else type_.to_pandas_dtype()(each) for each in values], type_)
    if pat.is_decimal(type_):
        return _decimals(values, type_)
    return pa.array(values, type_)


def _offsets(values: list[Plain]) -> tuple[pa.Array, list[Plain]]:
    ends: list[int] = [0]
    flat: list[Plain] = []
    for each in values:
        flat += each or []
        ends.append(len(flat))
    return pa.array(ends, pa.int32()), flat


def _decimals(values: list[Plain], type_: pa.DataType) -> pa.Array:
    # pyarrow refuses some Decimals of a negative scale, so the column is made from the unscaled integers.
    raw = b"".join(
        int(Decimal(each or 0).scaleb(type_.scale, _WIDE)).to_bytes(16, "little", signed=True) for each in values
    )
    valid = pa.array([each is not None for each in values], pa.bool_())
    return pa.Array.from_buffers(type_, len(values), [valid.buffers()[1], pa.py_buffer(raw)])


def from_arrow(column: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> list[Plain]:
    """Returns the values of an Arrow column, of whatever width and unit, as values of the model for `type_`."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in from_arrow(chunk, type_)]
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    source = column.type
    if pat.is_dictionary(source):
        return from_arrow(column.dictionary_decode(), type_)
    if pat.is_struct(type_):
        flat = [from_arrow(child, type_.field(source.field(i).name).type) for i, child in enumerate(column.flatten())]
        order = [source.field(i).name for i in range(source.num_fields)]
        assert sorted(order) == sorted(type_.names), f"{source} instead of {type_}"
        valid = column.is_valid().to_pylist()
        return [dict(zip(order, row, strict=True)) if there else None for there, *row in zip(valid, *flat, strict=True)]
    if pat.is_map(type_):
        return [None if not each.is_valid else _pairs(each.values, type_) for each in column]
    if pat.is_nested(type_):
        return [None if not each.is_valid else from_arrow(each.values, type_.value_type) for each in column]
    if pat.is_temporal(type_):
        return _times(column, type_)
    if pat.is_floating(type_):
        return [None if each is None else float(each) for each in column.to_pylist()]
    if pat.is_integer(type_) and pat.is_decimal(source):
        return [None if each is None else int(each) if each == int(each) else each for each in column.to_pylist()]
    return list(column.to_pylist())


def _pairs(entries: pa.StructArray, type_: pa.MapType) -> list[tuple[Plain, Plain]]:
    keys, items = entries.flatten()
    return list(zip(from_arrow(keys, type_.key_type), from_arrow(items, type_.item_type), strict=True))


def _times(column: pa.Array, type_: pa.DataType) -> list[Plain]:
    source = column.type
    kinds = (pat.is_timestamp, pat.is_date, pat.is_time)
    if not any(kind(source) and kind(type_) for kind in kinds) or (
        pat.is_timestamp(type_) and (source.tz is None) != (type_.tz is None)
    ):
        return [
            None if each is None else Mismatch(f"{each} of {source}") for each in column.cast(pa.string()).to_pylist()
        ]
    raw = column.view(pa.int32() if source.bit_width == 32 else pa.int64()).to_pylist()
    return [None if each is None else _scaled(each, _per_day(source), _per_day(type_)) for each in raw]


def _per_day(type_: pa.DataType) -> int:
    if pat.is_date32(type_):
        return 1
    return 86_400_000 if pat.is_date64(type_) else 86_400 * PER_SECOND[type_.unit]


def _scaled(value: int, source: int, target: int) -> Plain:
    result, lost = divmod(value * target, source)
    return Mismatch(f"{value} of {source} a day") if lost else result


def without_null_items(value: Plain, type_: pa.DataType) -> Plain:
    """Returns an empty list in the place of a null list or map of structs."""
    is_of_structs = pat.is_map(type_) and pat.is_struct(type_.item_type)
    is_of_structs = is_of_structs or (pat.is_list(type_) and pat.is_struct(type_.value_type))
    return [] if value is None and is_of_structs else value


def same(found: Plain, wanted: Plain) -> bool:
    """Returns whether two values of the model are the same: floats to the bit, but any NaN; decimals by their value."""
    if isinstance(wanted, float) and isinstance(found, float):
        if math.isnan(wanted) or math.isnan(found):
            return math.isnan(wanted) and math.isnan(found)
        return struct.pack("<d", wanted) == struct.pack("<d", found)
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        return len(wanted) == len(found) and all(map(same, found, wanted))
    if isinstance(wanted, Decimal):
        return isinstance(found, Decimal | int) and not isinstance(found, bool) and found == wanted
    return type(found) is type(wanted) and bool(found == wanted)
