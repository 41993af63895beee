"""Values of every type that a table can store: extremes, nulls, NaN, negative scales, text beyond ASCII, nesting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DECIMALS: Final = ((1, 0), (3, 5), (5, 2), (5, -2), (38, 0), (38, 38), (38, -38))
"""Precision and scale."""

ZONES: Final = (None, "UTC", "Europe/Berlin", "-03:30")
TEXTS: Final = ("", "a", "aa", "b\0", "\u00fc", "\ue000", "\U00020bb7")

NOT_STORABLE: Final = frozenset(
    {
        *("DATE64", "DURATION", "INTERVAL_DAY_TIME", "INTERVAL_MONTHS", "INTERVAL_MONTH_DAY_NANO", "NA"),
        *("DENSE_UNION", "SPARSE_UNION"),
    }
)
"""The names of Arrow's type ids of which no table can store a type."""

OTHER_LAYOUTS: Final = frozenset(
    {
        *("LARGE_STRING", "STRING_VIEW", "LARGE_BINARY", "BINARY_VIEW", "FIXED_SIZE_BINARY", "DICTIONARY"),
        *("LARGE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW", "FIXED_SIZE_LIST", "RUN_END_ENCODED"),
        *("DECIMAL32", "DECIMAL64", "DECIMAL256"),
    }
)
"""The names of Arrow's type ids that tables store as another type."""


def decimals(type_: pa.Decimal128Type, numbers: Sequence[int | None]) -> pa.Array:
    """Returns decimals by the integers that stand for them. Arrow cannot convert all of them from Python."""
    words = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in numbers)
    valid = np.packbits([number is not None for number in numbers], bitorder="little").tobytes()
    return pa.Array.from_buffers(type_, len(numbers), [pa.py_buffer(valid), pa.py_buffer(words)])


def _integers(type_: pa.DataType) -> pa.Array:
    bounds = np.iinfo(type_.to_pandas_dtype())
    return pa.array(sorted({int(bounds.min), -1 if bounds.min else 0, 0, 1, 2, 100, int(bounds.max)}), type_)


def _floats(type_: pa.DataType) -> pa.Array:
    most = float(np.finfo(type_.to_pandas_dtype()).max)
    values = [-math.inf, -most, -1.5, -0.0, 0.0, 0.1, most, math.inf, math.nan]
    return pa.array(np.array(values).astype(type_.to_pandas_dtype()), type_, from_pandas=False)


def _times(type_: pa.DataType, numbers: Sequence[int]) -> pa.Array:
    return pa.array(numbers, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)


def _scalars() -> Iterator[pa.Array]:
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        yield _integers(type_)
    for type_ in (pa.float16(), pa.float32(), pa.float64()):
        yield _floats(type_)
    yield pa.array([False, True])
    yield pa.array(TEXTS)
    yield pa.array([b"", b"\0", b"a", b"a\xff", b"\xff\xff"])
    for precision, scale in DECIMALS:
        most = 10**precision - 1
        numbers = {-most, -min(256, most), -1, 0, 1, min(255, most), min(256, most), most}
        yield decimals(pa.decimal128(precision, scale), sorted(numbers))
    yield _times(pa.date32(), [-(2**31), -719_162, -1, 0, 19_000, 2_932_896, 2**31 - 1])
    for unit, day in (("s", 86_400), ("ms", 86_400_000)):
        yield _times(pa.time32(unit), [0, 1, day - 1])
    for unit, day in (("us", 86_400_000_000), ("ns", 86_400_000_000_000)):
        yield _times(pa.time64(unit), [0, 1, day - 1])
    for unit, second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        for zone in ZONES if unit == "us" else ZONES[1:3]:
            # In Berlin, 2:30 came twice on that day. The years 1 and 9999 are the limits of Python.
            seconds = {-62_135_596_800, 1_761_438_600, 1_761_442_200, 253_402_300_799}
            times = {each * second for each in seconds if abs(each * second) < 2**63}
            yield _times(pa.timestamp(unit, zone), sorted({-(2**63), -256, -1, 0, *times, 2**63 - 1}))


def _nested() -> Iterator[pa.Array]:
    for values in ([[], [1], [1, None, 2]], [[-1], [2**63 - 1]]):
        yield pa.array(values, pa.list_(pa.int64()))
    texts = pa.list_(pa.list_(pa.string()))
    yield pa.array([[], [[]], [None, ["\U00020bb7", None]]], texts)
    yield pa.ListArray.from_arrays([0, 0, 2], decimals(pa.decimal128(3, 5), [-999, None]))
    struct = pa.struct([("a", pa.float64()), ("b", pa.list_(pa.string()))])
    yield pa.array([{"a": math.nan, "b": ["x"]}, {"a": -0.0, "b": None}, {"a": None, "b": []}], struct)
    yield pa.array([[], [("x", 1)], [("x", 2), ("\u00fc", None)]], pa.map_(pa.string(), pa.int64()))


def samples() -> Mapping[pa.DataType, pa.Array]:
    """Returns values of many types, each type's in ascending order if it has an order, without null."""
    found: dict[pa.DataType, pa.Array] = {}
    for array in (*_scalars(), *_nested()):
        found[array.type] = array if array.type not in found else pa.concat_arrays([found[array.type], array])
    return found


def type_id_names() -> dict[int, str]:
    """Returns the names of all of Arrow's type ids, without `Type_`."""
    lib: Any = pa.lib
    return {getattr(lib, name): name.removeprefix("Type_") for name in dir(lib) if name.startswith("Type_")}
