"""Single keys as Python values: encoded without Arrow, to the same bytes as `KeyCodec` encodes.

Only values of exact types are encoded, as in `row_values`: others take the path through Arrow, which knows all
conversions and their errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow.types as pat

from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.rows.row_values import NotExactError, exact_class, stored_form

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa


class KeyValues:
    """Encodes single keys of some columns. Immutable, thread-safe.

    Args:
        types: The types of the key columns, in key order.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._columns: Final = [(exact_class(type_), _encoder(type_)) for type_ in types]

    def encode(self, values: Sequence[Any]) -> bytes:
        """Encodes a key with one value for each column.

        Raises:
            NotExactError: A value is not of its column's exact type, or does not fit it; or the key is too long.
        """
        parts = []
        for (class_, encode), value in zip(self._columns, values, strict=True):
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


def _encoder(type_: pa.DataType) -> Callable[[Any], bytes]:
    if pat.is_string(type_):
        return lambda text: text.encode().replace(b"\0", b"\0\xff") + b"\0\0"
    if pat.is_binary(type_):
        return lambda plain: plain.replace(b"\0", b"\0\xff") + b"\0\0"
    if pat.is_boolean(type_):
        return lambda true: b"\1" if true else b"\0"
    if not (pat.is_integer(type_) or pat.is_temporal(type_)):
        return _refuse
    width, store = type_.bit_width // 8, stored_form(type_)
    if pat.is_unsigned_integer(type_):
        return lambda number: number.to_bytes(width, "big")
    bias = 1 << (type_.bit_width - 1)
    if store is None:
        return lambda number: (number + bias).to_bytes(width, "big")
    return lambda value: (store(value) + bias).to_bytes(width, "big")


def _refuse(value: object) -> bytes:
    """Refuses floats, of which several are one key, and decimals."""
    raise NotExactError
