"""Digests of rows: equal for equal rows in the same order, whatever Arrow stores where a value is null."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES: Final = 16


def digest_of(rows: pa.RecordBatch) -> bytes:
    """Returns the digest of rows with the columns of a table: 16 bytes."""
    digest = hashlib.sha256()
    for column in rows.columns:
        _add(digest.update, column)
    return digest.digest()[:_BYTES]


def _add(update: Callable[[bytes | memoryview], None], values: pa.Array) -> None:
    """Adds values to a digest. Numbers come before what they count, so different values never give the same bytes."""
    update(f"{len(values)} {values.null_count};".encode())
    if values.null_count:
        _add(update, values.is_valid())
        values = values.drop_null()
    if not len(values):
        return
    type_ = values.type
    if pat.is_boolean(type_):
        _add_numbers(update, values.cast(pa.uint8()))
    elif pat.is_struct(type_):
        for field in values.flatten():
            _add(update, field)
    elif pat.is_map(type_):
        first, count = _add_lengths(update, values)
        for each in (values.keys, values.items):
            _add(update, each.slice(first, count))
    elif pat.is_list(type_):
        _add(update, values.values.slice(*_add_lengths(update, values)))
    elif pat.is_string(type_) or pat.is_binary(type_):
        first, count = _add_lengths(update, values)
        if count:
            update(memoryview(values.buffers()[2])[first : first + count])
    else:
        _add_numbers(update, values)


def _add_lengths(update: Callable[[bytes | memoryview], None], values: pa.Array) -> tuple[int, int]:
    """Adds the length of each value. Returns where the first one begins, and the length of all of them together."""
    ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, values.buffers()[1]], offset=values.offset)
    _add_numbers(update, pc.subtract(ends[1:], ends[:-1]))
    first = ends[0].as_py()
    return first, ends[-1].as_py() - first


def _add_numbers(update: Callable[[bytes | memoryview], None], values: pa.Array) -> None:
    """Adds values of a fixed width."""
    width = values.type.bit_width // 8
    update(memoryview(values.buffers()[1])[values.offset * width : (values.offset + len(values)) * width])
