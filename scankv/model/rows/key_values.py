"""Single keys as Python values: encoded to the same bytes as `KeyCodec` encodes, and decoded, without Arrow.

Only values of exact types are encoded, as in `row_values`: others take the path through Arrow, which knows all
conversions and their errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow.types as pat

from scankv.model.keys.key_codec import encode_float
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.rows.row_values import NotExactError, exact_class, loaded_form, stored_form, unscaled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

_END: Final = b"\0\0"  # of a text


class KeyValues:
    """Encodes and decodes single keys of some columns. Immutable, thread-safe.

    Args:
        types: The types of the key columns, in key order.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._columns: Final = [(exact_class(type_), value_encoder(type_), _decoder(type_)) for type_ in types]

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encodes a key with one value for each column.

        Raises:
            NotExactError: A value is not of its column's exact type, or does not fit it; or the key is too long.
        """
        parts = []
        for (class_, encode, _), value in zip(self._columns, values, strict=True):
            if type(value) is not class_:
                raise NotExactError
            try:
                parts.append(encode(value))
            except (OverflowError, UnicodeEncodeError) as error:
                raise NotExactError from error
        key = b"".join(parts)
        if len(key) > MAX_KEY_BYTES:
            raise NotExactError
        return key

    def decode(self, key: bytes) -> tuple[Any, ...]:
        """Decodes a key to the value of each column. Trusts nothing: only what `encode` returns is a key.

        Raises:
            NotExactError: The bytes are not a key of these columns.
        """
        values, rest = [], key
        try:
            for _, _, decode in self._columns:
                value, rest = decode(rest)
                values.append(value)
        except (ValueError, OverflowError) as error:
            raise NotExactError from error
        if rest or self.encode(values) != key:
            raise NotExactError
        return tuple(values)


def has_key_values(types: Sequence[pa.DataType]) -> bool:
    """Returns whether keys of columns of these types can be encoded without Arrow: not those of floats or decimals."""
    return all(
        exact_class(type_) is not None and not pat.is_floating(type_) and not pat.is_decimal(type_) for type_ in types
    )


def value_encoder(type_: pa.DataType) -> Callable[[Any], bytes]:
    """Returns the function that encodes the values of a key column or of an index's column that are not null.

    It raises OverflowError, UnicodeEncodeError or NotExactError for values that the type does not have.
    """
    if pat.is_string(type_):
        return lambda text: text.encode().replace(b"\0", b"\0\xff") + _END
    if pat.is_binary(type_):
        return lambda plain: plain.replace(b"\0", b"\0\xff") + _END
    if pat.is_boolean(type_):
        return lambda true: b"\1" if true else b"\0"
    if pat.is_floating(type_):
        return lambda value: encode_float(value, type_.bit_width // 8)
    if pat.is_decimal(type_):
        return lambda value: (unscaled(value, type_) + (1 << 127)).to_bytes(16, "big")
    if not _has_number(type_):
        return _refuse
    width, store = type_.bit_width // 8, stored_form(type_)
    if pat.is_unsigned_integer(type_):
        return lambda number: number.to_bytes(width, "big")
    bias = 1 << (type_.bit_width - 1)
    if store is None:
        return lambda number: (number + bias).to_bytes(width, "big")
    return lambda value: (store(value) + bias).to_bytes(width, "big")


def _decoder(type_: pa.DataType) -> Callable[[bytes], tuple[Any, bytes]]:
    """Returns a function that takes the first value off the bytes of a key. It raises ValueError or OverflowError."""
    if pat.is_string(type_):
        return lambda key: _take_text(key, bytes.decode)
    if pat.is_binary(type_):
        return lambda key: _take_text(key, bytes)
    if pat.is_boolean(type_):
        return lambda key: (key[:1] == b"\1", key[1:])
    if not _has_number(type_):
        return _refuse
    width, load = type_.bit_width // 8, loaded_form(type_)
    bias = 0 if pat.is_unsigned_integer(type_) else 1 << (type_.bit_width - 1)
    if load is None:
        return lambda key: (int.from_bytes(key[:width], "big") - bias, key[width:])
    return lambda key: (load(int.from_bytes(key[:width], "big") - bias), key[width:])


def _take_text(key: bytes, convert: Callable[[bytes], Any]) -> tuple[Any, bytes]:
    end = key.find(_END)
    # Within a value, each zero byte is followed by 0xff, so the first pair of zeros is the end.
    if end < 0:
        raise ValueError("a value has no end")
    return convert(key[:end].replace(b"\0\xff", b"\0")), key[end + len(_END) :]


def _has_number(type_: pa.DataType) -> bool:
    return bool(pat.is_integer(type_) or pat.is_temporal(type_))


def _refuse(value: object) -> NoReturn:
    """Refuses floats, of which several are one key, and decimals."""
    raise NotExactError
