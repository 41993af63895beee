"""Single rows as Python values: encoded to stored rows and decoded from them, without Arrow.

For one row, most of the time of code that works on columns would be fixed costs. Here each layout gets two functions of
its own, generated as `dataclasses` generates methods: they unpack a row with one call of `struct` and branch once for
each column. Ten columns take 2 us instead of 400.

Only values of exact types are encoded. Whatever else a caller may give for a column, such as a NumPy number or a date
for a timestamp, takes the path through Arrow, which knows all conversions and their errors.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.rows.row_layout import RowLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EPOCH: Final = dt.datetime(1970, 1, 1)  # of columns without a time zone
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_EXACT: Final = decimal.Context(prec=100, traps=[decimal.Inexact, decimal.InvalidOperation])
"""Arithmetic on decimals that raises ArithmeticError rather than rounding."""
_BITMAP_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


class NotExactError(Exception):
    """A value is not of the exact Python type of its column, or does not fit it."""


class DamagedRowError(Exception):
    """Bytes are not a row of the layout."""


class RowValues:
    """Encodes and decodes single rows of one schema. Immutable, thread-safe.

    Attributes:
        header: The bytes that all rows of the schema begin with.
        decode: Decodes a row to a tuple with the Python value of each column, as `pyarrow.Array.to_pylist` has them.
            Raises DamagedRowError; ValueError or OverflowError for a time that Python does not have, as `to_pylist`.
        encode: Encodes a sequence with the value of each column to a row, the same bytes as the code for columns.
            Raises NotExactError.
    """

    def __init__(self, schema_id: int, types: Sequence[pa.DataType]) -> None:
        """Generates the functions.

        Args:
            schema_id: The id of the schema.
            types: The types of its columns, for which `has_row_values` is true.
        """
        layout = RowLayout(schema_id, types)
        self.header: Final = layout.header
        self.decode: Final[Callable[[bytes], tuple[Any, ...]]] = _decoder(layout, types)
        self.encode: Final[Callable[[Sequence[Any]], bytes]] = _encoder(layout, types)


def has_row_values(types: Sequence[pa.DataType]) -> bool:
    """Returns whether rows of columns of these types can be decoded without Arrow: those without nested columns can."""
    return not any(map(pat.is_nested, types))


def _decoder(layout: RowLayout, types: Sequence[pa.DataType]) -> Callable[[bytes], tuple[Any, ...]]:
    names: dict[str, Any] = {
        "unpack": _struct(layout, types).unpack_from,
        "error": struct.error,
        "Damaged": DamagedRowError,
        "int_of": int.from_bytes,
    }
    parts: list[str] = []
    for slot, type_ in zip(layout.slots, types, strict=True):
        if slot.width is None:
            start = f"e{slot.segment - 1}" if slot.segment else str(layout.fixed_bytes)
            value = f"row[{start}:e{slot.segment}]" + (".decode()" if pat.is_string(type_) else "")
        else:
            value = f"c{slot.index}"
            convert = loaded_form(type_)
            if convert is not None:
                names[f"convert{slot.index}"] = convert
                value = f"convert{slot.index}({value})"
        parts.append(f"{value} if valid & {1 << slot.index} else None")
    ends = [str(layout.fixed_bytes), *(f"e{number}" for number in range(layout.segments))]
    lines = [
        "def decode(row):",
        "    try:",
        f"        {_targets(layout)} = unpack(row)",
        "    except error as e:",
        "        raise Damaged('it is too short') from e",
        f"    if header != {layout.header!r}:",
        "        raise Damaged('it has another header')",
        f"    if not {' <= '.join(ends)} == len(row):",
        "        raise Damaged('its length is not the length of its columns')",
        *([] if layout.bitmap_bytes in _BITMAP_CODES else ["    valid = int_of(valid, 'little')"]),
        f"    return ({', '.join(parts)},)",
    ]
    return _generate("decode", lines, names)


def _encoder(layout: RowLayout, types: Sequence[pa.DataType]) -> Callable[[Sequence[Any]], bytes]:
    names: dict[str, Any] = {
        "pack": _struct(layout, types).pack,
        "failures": (struct.error, OverflowError, UnicodeEncodeError),
        "NotExact": NotExactError,
    }
    columns = "".join(f"c{slot.index}, " for slot in layout.slots)
    lines = ["def encode(values):", f"    {columns} = values", "    valid = 0", "    try:"]
    end = str(layout.fixed_bytes)
    for slot, type_ in zip(layout.slots, types, strict=True):
        name, class_, store = f"c{slot.index}", exact_class(type_), stored_form(type_)
        lines += [
            f"        if {name} is None:",
            f"            {name} = {_null(type_)}",
        ]
        if class_ is not None:
            names[class_.__name__] = class_
            lines += [f"        elif type({name}) is {class_.__name__}:", f"            valid |= {1 << slot.index}"]
        if class_ is not None and store is not None:
            names[f"store{slot.index}"] = store
            lines.append(f"            {name} = store{slot.index}({name})")
        lines += ["        else:", "            raise NotExact"]
        if slot.width is None:
            lines.append(f"        e{slot.segment} = {end} + len({name})")
            end = f"e{slot.segment}"
    slots = [f"c{slot.index}" for slot in layout.slots if slot.width is not None]
    segments = [f"c{slot.index}" for slot in layout.slots if slot.width is None]
    ends = [f"e{number}" for number in range(layout.segments)]
    valid = "valid" if layout.bitmap_bytes in _BITMAP_CODES else f"valid.to_bytes({layout.bitmap_bytes}, 'little')"
    packed = f"pack({', '.join([repr(layout.header), valid, *slots, *ends])})"
    lines += [
        f"        return {' + '.join([packed, *segments])}",
        "    except failures as e:",
        "        raise NotExact from e",
    ]
    return _generate("encode", lines, names)


def _generate(name: str, lines: Sequence[str], names: dict[str, Any]) -> Callable[[Any], Any]:
    """Compiles a function. Its source has numbers and fixed words only, nothing that came from outside."""
    exec("\n".join(lines), names)
    function: Callable[[Any], Any] = names[name]
    return function


def _targets(layout: RowLayout) -> str:
    slots = [f"c{slot.index}" for slot in layout.slots if slot.width is not None]
    return ", ".join(["header", "valid", *slots, *(f"e{number}" for number in range(layout.segments))])


def _struct(layout: RowLayout, types: Sequence[pa.DataType]) -> struct.Struct:
    """Returns the format of the part of a row before its segments: header, bitmap, slots, ends."""
    bitmap = _BITMAP_CODES.get(layout.bitmap_bytes, f"{layout.bitmap_bytes}s")
    slots = "".join(_code(type_) for slot, type_ in zip(layout.slots, types, strict=True) if slot.width is not None)
    return struct.Struct(f"<{len(layout.header)}s{bitmap}{slots}{'I' * layout.segments}")


def _code(type_: pa.DataType) -> str:
    """Returns the code of a slot in a format of `struct`."""
    if pat.is_boolean(type_):
        return "?"
    if pat.is_decimal(type_):
        return "16s"
    if pat.is_floating(type_):
        return {2: "e", 4: "f", 8: "d"}[type_.bit_width // 8]
    code = {1: "b", 2: "h", 4: "i", 8: "q"}[type_.bit_width // 8]
    return code.upper() if pat.is_unsigned_integer(type_) else code


def _null(type_: pa.DataType) -> str:
    """Returns the source of what stands for a null in the row."""
    if pat.is_string(type_) or pat.is_binary(type_):
        return "b''"
    return repr(bytes(16)) if pat.is_decimal(type_) else "0"


def loaded_form(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that converts the stored form of a fixed-width value to the value. None: they are the same."""
    if pat.is_integer(type_) or pat.is_floating(type_) or pat.is_boolean(type_):
        return None
    if pat.is_date32(type_):
        return lambda days: dt.date.fromordinal(_EPOCH_DAY + days)
    if pat.is_timestamp(type_) and type_.unit == "us":
        if type_.tz is None:
            return lambda micros: _EPOCH + dt.timedelta(0, 0, micros)
        zone = pa.scalar(0, type_).as_py().tzinfo
        return lambda micros: zone.fromutc((_EPOCH + dt.timedelta(0, 0, micros)).replace(tzinfo=zone))
    if pat.is_decimal(type_):
        return _decimal_loader(type_)
    pack = struct.Struct(f"<{_code(type_)}").pack

    def load(slot: int) -> Any:  # noqa: ANN401  # of whatever class pyarrow has
        # A time of day has no nanoseconds in Python, and the least timestamp is NaT in pandas.
        if type_.unit == "ns" and (slot == -(2**63) or (slot % 1000 and pat.is_time(type_))):
            raise ValueError("Python has no such value")
        return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(pack(slot))])[0].as_py()

    return load


def _decimal_loader(type_: pa.Decimal128Type) -> Callable[[bytes], decimal.Decimal]:
    exponent, limit = -type_.scale, 10**type_.precision

    def load(slot: bytes) -> decimal.Decimal:
        number = int.from_bytes(slot, "little", signed=True)
        if not -limit < number < limit:
            raise ValueError("a decimal has too many digits")
        return _EXACT.scaleb(decimal.Decimal(number), exponent)

    return load


def exact_class(type_: pa.DataType) -> type | None:
    """Returns the class of the Python values of a column that are encoded. None: no values are."""
    if pat.is_integer(type_):
        return int
    if pat.is_floating(type_):
        return float
    if pat.is_boolean(type_):
        return bool
    if pat.is_string(type_):
        return str
    if pat.is_binary(type_):
        return bytes
    if pat.is_decimal(type_):
        # Arrow refuses some decimals from Python if the scale is negative or above the precision.
        return decimal.Decimal if 0 <= type_.scale <= type_.precision else None
    if pat.is_date32(type_):
        return dt.date
    return dt.datetime if pat.is_timestamp(type_) and type_.unit == "us" else None


def stored_form(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that converts a value of the exact class to its stored form. None: they are the same."""
    if pat.is_string(type_):
        return str.encode
    if pat.is_date32(type_):
        return lambda date: date.toordinal() - _EPOCH_DAY
    if pat.is_timestamp(type_):
        return _store_naive if type_.tz is None else _store_aware
    if pat.is_decimal(type_):
        return lambda value: unscaled(value, type_).to_bytes(16, "little", signed=True)
    return None


def unscaled(value: decimal.Decimal, type_: pa.Decimal128Type) -> int:
    """Returns the integer that stands for a decimal. Raises NotExactError if the type cannot have it exactly."""
    try:
        scaled = _EXACT.scaleb(value, type_.scale)
        number = int(_EXACT.to_integral_exact(scaled))
    except (ArithmeticError, ValueError) as error:
        raise NotExactError from error
    if abs(number) >= 10**type_.precision:
        raise NotExactError
    return number


def _store_naive(time: dt.datetime) -> int:
    if time.tzinfo is not None:
        raise NotExactError
    return (time - _EPOCH) // _MICROSECOND


def _store_aware(time: dt.datetime) -> int:
    if time.tzinfo is None:
        raise NotExactError
    return (time - _EPOCH_UTC) // _MICROSECOND
