"""Converts key ranges, given by values of all or the leading key columns, to ranges of encoded keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pyarrow as pa

from aio_client._input.keys import keys_of
from scankv.model.errors import InvalidKey, UsageError, did_you_mean
from scankv.model.keys.key_codec import TEXT_END_BYTES, KeyCodec
from scankv.model.keys.key_range import NO_KEYS, KeyRange

if TYPE_CHECKING:
    from collections.abc import Sequence

Inclusive: TypeAlias = Literal["both", "left", "right", "neither"]
"""Which bounds belong to a range, named as in pandas: `left` is the start, `right` the end."""


def range_between(start: object, end: object, inclusive: Inclusive, key_schema: pa.Schema) -> KeyRange:
    """Returns the keys from `start` to `end`: each a value, a tuple or dictionary of leading values, or None.

    Raises:
        UsageError: `start` is greater than `end`, or `inclusive` is invalid.
        InvalidKey: A value is null, or not of its key column's type.
    """
    if inclusive not in get_args(Inclusive):
        raise UsageError(f"inclusive must be {' or '.join(get_args(Inclusive))}, not {inclusive!r}", option="inclusive")
    key_range = KeyRange()
    if start is not None:
        begin = KeyRange.under(_encode(_values(start, key_schema), key_schema))
        key_range &= _from(begin.start if inclusive in ("both", "left") else begin.end)
    if end is not None:
        last = KeyRange.under(_encode(_values(end, key_schema), key_schema))
        key_range &= KeyRange(None, last.end if inclusive in ("both", "right") else last.start)
    if start is not None and end is not None:
        _check_order(_values(start, key_schema), _values(end, key_schema), key_schema)
    return key_range


def range_of_prefix(prefix: object, key_schema: pa.Schema) -> KeyRange:
    """Returns the keys whose leading columns have these values. If the last value is text or bytes, it is a prefix.

    Raises:
        InvalidKey: A value is null, or not of its key column's type.
    """
    values = _values(prefix, key_schema)
    encoded = _encode(values, key_schema)
    last = key_schema.field(len(values) - 1).type
    is_text = pa.types.is_string(last) or pa.types.is_binary(last)
    return KeyRange.under(encoded[:-TEXT_END_BYTES] if is_text else encoded)


def _from(start: bytes | None) -> KeyRange:
    """Returns the keys from `start` on; no keys if `start` is after all possible keys."""
    return NO_KEYS if start is None else KeyRange(start, None)


def _check_order(start: Sequence[object], end: Sequence[object], key_schema: pa.Schema) -> None:
    common = min(len(start), len(end))
    if _encode(start[:common], key_schema) > _encode(end[:common], key_schema):
        raise UsageError(
            "the start of the key range is greater than its end: swap them; reverse() returns descending keys"
        )


def _values(given: object, key_schema: pa.Schema) -> tuple[object, ...]:
    if isinstance(given, Mapping):
        return _values_by_name(given, key_schema)
    values = given if isinstance(given, tuple) else (given,)
    if not 1 <= len(values) <= len(key_schema):
        names = ", ".join(key_schema.names)
        raise InvalidKey(f"{len(values)} values were given: give values of leading columns of the key ({names})")
    return values


def _values_by_name(given: Mapping[Any, object], key_schema: pa.Schema) -> tuple[object, ...]:
    for name in given:
        if name not in key_schema.names:
            hint = did_you_mean(str(name), key_schema.names)
            raise InvalidKey(f'"{name}" is not a key column{hint}', column=name)
    leading = key_schema.names[: len(given)]
    if not given or set(given) != set(leading):
        raise InvalidKey(
            f"values of {', '.join(given) or 'no column'} were given: give values of leading columns of the key "
            f"({', '.join(key_schema.names)})"
        )
    return tuple(given[name] for name in leading)


def _encode(values: Sequence[object], key_schema: pa.Schema) -> bytes:
    columns = pa.schema([key_schema.field(position) for position in range(len(values))])
    encoded: bytes = KeyCodec(columns.types, columns.names).encode(keys_of([tuple(values)], columns).columns)[0].as_py()
    return encoded
