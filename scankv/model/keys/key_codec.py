"""Encodes keys as bytes whose order is the order of the key columns.

Every column is encoded separately, and a key is the concatenation of its columns:

    integers, dates, times, timestamps   big-endian, sign bit flipped (unsigned integers: unchanged)
    floats                               big-endian bits, all flipped when negative, else the sign bit; -0.0 as 0.0,
                                         every NaN as one NaN, which is above infinity
    decimal128                           the unscaled integer, 16 bytes
    bool                                 one byte, 0 or 1
    string, binary                       0x00 becomes 0x00 0xFF; 0x00 0x00 marks the end, even in the last column

In an index, a nullable column has one more byte in front: 1 before a value, and 2, with no value, for null. Nulls
therefore come last. Columns of a primary key are not nullable.

No encoded value is a prefix of another encoded value. Keys therefore compare column by column, and the keys with given
values in the first `n` columns are exactly the keys that begin with the encodings of these values.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.errors import InvalidKey, RequestTooLarge, SchemaMismatch
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.types.casts import cast_exactly
from scankv.model.types.types import is_key_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    ByteMatrix = npt.NDArray[np.uint8]

_END: Final = b"\x00\x00"
_ESCAPED_ZERO: Final = b"\x00\xff"
NOT_NULL_MARK: Final = b"\x01"
"""The first byte of a value in a nullable column."""
NULL_MARK: Final = b"\x02"
"""The encoding of null."""
TEXT_END_BYTES: Final = len(_END)
"""The length of the end mark of a string or binary column. Without the mark, the encoding is a prefix of all keys whose
value begins with this value."""

_MAX_ARRAY_BYTES: Final = 2**31 - 1


class KeyCodec:
    """Encodes the primary keys or bucket keys of a table, or the keys of an index. Immutable, thread-safe, picklable.

    `encode`, `encode_one` and `encode_stored` return the same bytes for the same key. `encode_one` and `encode_stored`
    are for keys without nullable columns.

    Attributes:
        types: The types of the columns, in key order.
        names: The names of the columns.
        nullable: Whether each column is nullable.
    """

    def __init__(
        self,
        types: Sequence[pa.DataType],
        names: Sequence[str] | None = None,
        nullable: Sequence[bool] | None = None,
    ) -> None:
        """Prepares the encoding.

        Args:
            types: The types of the key columns, in key order; storable types other than list, struct and map.
            names: The names of the key columns, for messages. Default: `key[0]`, `key[1]`, ...
            nullable: Whether each column is nullable; nulls come last. Default: no column is nullable.

        Raises:
            SchemaMismatch: No column was given, or a type cannot be in a key.
        """
        self.types: tuple[pa.DataType, ...] = tuple(types)
        self.names: tuple[str, ...] = (
            tuple(names) if names is not None else tuple(f"key[{i}]" for i in range(len(self.types)))
        )
        self.nullable: tuple[bool, ...] = tuple(nullable) if nullable is not None else (False,) * len(self.types)
        if not self.types:
            raise SchemaMismatch("a key must have at least one column")
        for name, type_ in zip(self.names, self.types, strict=True):
            if not is_key_type(type_):
                raise SchemaMismatch(f'column "{name}": {type_} cannot be in a key', column=name)
        self._stored_encoders = tuple(map(_stored_encoder, self.types))

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """Encodes keys, column-wise.

        Args:
            columns: The key columns in key order, with exactly the codec's types and one common length.

        Returns:
            One binary value per key, without nulls.

        Raises:
            InvalidKey: A column is missing, has another type or a null, or a key is over 16 KiB. Names column or row.
            RequestTooLarge: The encoded keys are over 2 GiB together.
        """
        self._check(columns)
        parts: list[pa.Array | pa.Scalar] = []
        fixed: list[ByteMatrix] = []
        for column, nullable in zip(columns, self.nullable, strict=True):
            if not _is_variable(column.type) and not column.null_count:
                if nullable:
                    fixed.append(np.full((len(column), 1), NOT_NULL_MARK[0], np.uint8))
                fixed.append(_fixed_bytes(column))
                continue
            if fixed:
                parts.append(_binary_array(fixed))
                fixed = []
            parts += _nullable_parts(column) if nullable else [_escape(column), pa.scalar(_END)]
        if fixed:
            parts.append(_binary_array(fixed))
        if len(parts) == 1:
            _check_lengths(parts[0])
            return parts[0]
        try:
            keys = pc.binary_join_element_wise(*parts, b"")
        except pa.ArrowCapacityError as error:
            raise _over_array_limit() from error
        _check_lengths(keys)
        return keys

    def encode_one(self, values: Sequence[object]) -> bytes:
        """Encodes one key from Python, NumPy or pandas values; each must be exactly a value of its column.

        Args:
            values: One value per key column, in key order.

        Raises:
            InvalidKey: The number of values differs, one is None or cannot be a value of its column without loss, or
                the key is over 16 KiB.
        """
        if len(values) != len(self.types):
            raise InvalidKey(f"the key is {self._columns_text()}, but {len(values)} values were given")
        key = b"".join(
            encode_scalar(_exact_scalar(value, type_, name))
            for value, type_, name in zip(values, self.types, self.names, strict=True)
        )
        if len(key) > MAX_KEY_BYTES:
            raise InvalidKey(f"the key has {len(key):,} bytes when encoded; the limit is {MAX_KEY_BYTES:,}")
        return key

    def encode_stored(self, values: Sequence[bytes]) -> bytes:
        """Encodes one key from Arrow's bytes of its values: numbers are little-endian, a bool is one byte.

        Takes a few microseconds, a fraction of the time of `encode` for an array of one. Checks nothing: the number of
        values and their lengths must be right.
        """
        return b"".join([encode(value) for encode, value in zip(self._stored_encoders, values, strict=True)])

    @staticmethod
    def canonical(column: pa.Array) -> pa.Array:
        """Returns a key column as it is stored: -0.0 becomes 0.0, every NaN the same NaN; other types are unchanged."""
        if not pa.types.is_floating(column.type) or not len(column):
            return column
        width = column.type.bit_width // 8
        floats = _numbers(column, np.dtype(f"<f{width}"))
        plain = _canonical_floats(floats)
        if np.array_equal(plain.view(f"u{width}"), floats.view(f"u{width}")):
            return column
        nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return pa.array(plain, column.type, mask=nulls, from_pandas=False)

    def _check(self, columns: Sequence[pa.Array]) -> None:
        if len(columns) != len(self.types):
            raise InvalidKey(f"the key is {self._columns_text()}, but {len(columns)} columns were given")
        for name, type_, nullable, column in zip(self.names, self.types, self.nullable, columns, strict=True):
            if column.type != type_:
                raise InvalidKey(f'key column "{name}" is {type_}, not {column.type}', column=name)
            if column.null_count and not nullable:
                row = pc.index(column.is_null(), True).as_py()
                raise InvalidKey(f'key column "{name}", row {row}: null; a key has no nulls', column=name, row=row)

    def _columns_text(self) -> str:
        return "(" + ", ".join(f"{name} {type_}" for name, type_ in zip(self.names, self.types, strict=True)) + ")"


def _is_variable(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _numbers(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns the values buffer of a fixed-width column, without a copy. Values at nulls are arbitrary."""
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, count=len(column), offset=column.offset * dtype.itemsize)


def _canonical_floats(floats: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a copy with -0.0 replaced by 0.0 and every NaN replaced by the positive quiet NaN."""
    with np.errstate(invalid="ignore"):  # adding to a signalling NaN
        plain: npt.NDArray[Any] = floats + floats.dtype.type(0)
    plain[np.isnan(plain)] = np.nan
    return plain


def _fixed_bytes(column: pa.Array) -> ByteMatrix:
    """Returns the encoding of a fixed-width column, one matrix row per key."""
    type_, rows = column.type, len(column)
    if pa.types.is_boolean(type_):
        return _numbers(column.cast(pa.uint8()), np.dtype(np.uint8)).reshape(rows, 1)
    if pa.types.is_decimal128(type_):
        words = _numbers(column, np.dtype("V16")).view("<u8").reshape(rows, 2)
        swapped = np.empty((rows, 2), ">u8")
        swapped[:, 0] = words[:, 1] ^ np.uint64(1 << 63)
        swapped[:, 1] = words[:, 0]
        return swapped.view(np.uint8)
    width = type_.bit_width // 8
    bits = _numbers(column, np.dtype(f"<u{width}"))
    sign = bits.dtype.type(1 << (width * 8 - 1))
    if pa.types.is_floating(type_):
        bits = _canonical_floats(bits.view(f"<f{width}")).view(bits.dtype)
        bits = np.where(bits & sign, ~bits, bits ^ sign)
    elif not pa.types.is_unsigned_integer(type_):
        bits = bits ^ sign
    return bits.astype(f">u{width}").view(np.uint8).reshape(rows, width)


def _binary_array(columns: list[ByteMatrix]) -> pa.BinaryArray:
    """Joins encoded fixed-width columns, without a loop over rows."""
    matrix = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    rows, width = matrix.shape
    if matrix.size > _MAX_ARRAY_BYTES:
        raise _over_array_limit()
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)], null_count=0)


def _escape(column: pa.Array) -> pa.BinaryArray:
    """Returns a string or binary column as binary, with zero bytes escaped and without the end mark."""
    plain = column.cast(pa.binary())
    if not len(plain):
        return plain
    offsets = np.frombuffer(plain.buffers()[1], np.int32, count=len(plain) + 1, offset=plain.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last or np.frombuffer(plain.buffers()[2], np.uint8, count=last - first, offset=first).min() > 0:
        return plain
    try:
        return pc.replace_substring(plain, b"\x00", _ESCAPED_ZERO)
    except pa.ArrowCapacityError as error:
        raise _over_array_limit() from error


def _nullable_parts(column: pa.Array) -> list[pa.Array | pa.Scalar]:
    """Returns the encoding of a nullable column, in parts to be joined."""
    if _is_variable(column.type):
        values = pc.binary_join_element_wise(pa.scalar(NOT_NULL_MARK), _escape(column), pa.scalar(_END), b"")
    else:
        mark = np.full((len(column), 1), NOT_NULL_MARK[0], np.uint8)
        values = _binary_array([mark, _fixed_bytes(column)])
    return [pc.if_else(column.is_valid(), values, pa.scalar(NULL_MARK)) if column.null_count else values]


def _check_lengths(keys: pa.BinaryArray) -> None:
    lengths = pc.binary_length(keys).to_numpy(zero_copy_only=False)
    if len(lengths) and lengths.max() > MAX_KEY_BYTES:
        row = int(np.argmax(lengths > MAX_KEY_BYTES))
        raise InvalidKey(
            f"row {row}: the key has {lengths[row]:,} bytes when encoded; the limit is {MAX_KEY_BYTES:,}", row=row
        )


def _over_array_limit() -> RequestTooLarge:
    return RequestTooLarge("the keys have more than 2 GiB together: send fewer rows at once")


def _exact_scalar(value: object, type_: pa.DataType, name: str) -> pa.Scalar:
    """Converts a value to a scalar of the type without loss.

    Raises InvalidKey. Its message does not contain the value, because keys must not appear in logs.
    """
    try:
        scalar = cast_exactly(_infer(value, type_), type_)[0]
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        raise InvalidKey(
            f'key column "{name}" is {type_}; this {type(value).__name__} cannot be one without loss', column=name
        ) from error
    if not scalar.is_valid:
        raise InvalidKey(f'key column "{name}": null; a key has no nulls', column=name)
    return scalar


def _infer(value: object, type_: pa.DataType) -> pa.Array:
    """Returns the value as an array of one, with the type that Arrow infers."""
    exact_integers = pa.types.is_integer(type_) or pa.types.is_decimal128(type_)
    if exact_integers and isinstance(value, int) and not isinstance(value, bool):
        # Arrow infers int64 for an int, which is too small for some values of uint64 and decimal128.
        return pa.array([value], type_)
    nanosecond: object = getattr(value, "nanosecond", None)
    if isinstance(value, dt.datetime) and nanosecond:
        # Arrow treats a pandas Timestamp as a datetime and drops its nanoseconds.
        return pa.array([value], pa.timestamp("ns", None if value.tzinfo is None else "UTC"))
    return pa.array([value])


def encode_scalar(scalar: pa.Scalar) -> bytes:
    """Encodes one value that is not null: the scalar counterpart of the vectorized encoding."""
    type_, value = scalar.type, scalar.as_py() if not pa.types.is_temporal(scalar.type) else scalar.value
    if _is_variable(type_):
        return _encode_bytes(value.encode() if isinstance(value, str) else value)
    if pa.types.is_boolean(type_):
        return b"\x01" if value else b"\x00"
    width = type_.bit_width // 8
    if pa.types.is_floating(type_):
        return encode_float(value, width)
    if pa.types.is_decimal128(type_):
        value = int(Fraction(value) * Fraction(10) ** type_.scale)
    return _encode_integer(int(value), width, signed=not pa.types.is_unsigned_integer(type_))


def encode_nan(type_: pa.DataType) -> bytes:
    """Returns the encoding of NaN in a float column. NaN comes after all numbers."""
    return encode_float(math.nan, type_.bit_width // 8)


def _encode_bytes(plain: bytes) -> bytes:
    return plain.replace(b"\x00", _ESCAPED_ZERO) + _END


def _encode_integer(value: int, width: int, *, signed: bool) -> bytes:
    return (value + (1 << (width * 8 - 1)) if signed else value).to_bytes(width, "big")


def encode_float(value: float, width: int) -> bytes:
    """Returns the encoding of a float of so many bytes. Raises OverflowError if it is too large for them."""
    plain = abs(value) if value == 0 or math.isnan(value) else value
    bits = int.from_bytes(struct.pack({2: ">e", 4: ">f", 8: ">d"}[width], math.nan if math.isnan(plain) else plain))
    sign = 1 << (width * 8 - 1)
    return (((sign << 1) - 1 - bits) if bits & sign else bits | sign).to_bytes(width, "big")


def _stored_encoder(type_: pa.DataType) -> Callable[[bytes], bytes]:
    """Returns the function that encodes a value of the type from Arrow's bytes of the value. It is picklable."""
    if _is_variable(type_):
        return _encode_bytes
    if pa.types.is_boolean(type_):
        return _encode_stored_bool
    if pa.types.is_floating(type_):
        return _encode_stored_float
    return partial(_encode_stored_integer, signed=not pa.types.is_unsigned_integer(type_))


def _encode_stored_bool(value: bytes) -> bytes:
    return b"\x01" if any(value) else b"\x00"


def _encode_stored_float(value: bytes) -> bytes:
    return encode_float(struct.unpack({2: "<e", 4: "<f", 8: "<d"}[len(value)], value)[0], len(value))


def _encode_stored_integer(value: bytes, *, signed: bool) -> bytes:
    return _encode_integer(int.from_bytes(value, "little", signed=signed), len(value), signed=signed)
