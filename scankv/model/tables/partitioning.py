"""Partitions: the rows of a table that agree in the first columns of the key. Pure computation on encoded keys.

The keys of a partition are exactly the keys that begin with its encoded values, because no encoded value is a prefix of
another: see `key_codec`. So a partition is a key range in every bucket, and is named by these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.errors import InvalidKey, InvalidRequest, SchemaMismatch, did_you_mean
from scankv.model.keys.key_codec import KeyCodec, encode_scalar
from scankv.model.keys.key_parts import column_width, decode_column, leading_columns
from scankv.model.keys.key_range import KeyRange
from scankv.model.limits import MAX_KEY_BYTES, MAX_PARTITION_COLUMNS
from scankv.model.types.python_values import python_value
from scankv.model.types.types import check_unique

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.tables.columns import Schema

_TEXT_END = b"\x00\x00"


@dataclass(frozen=True, slots=True)
class PartitionDrop:
    """The latest drop of partitions of a table. The definition has it, and every bucket follows it. Immutable.

    Attributes:
        number: The number of the drop, from 1.
        prefixes: What the keys of the dropped rows begin with, ascending. None of them is a prefix of another.
    """

    number: int
    prefixes: tuple[bytes, ...]

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        """The ranges of the keys of the dropped rows."""
        return tuple(map(KeyRange.under, self.prefixes))

    def to_json(self) -> dict[str, Any]:
        """Returns the drop as JSON values for the definition of the table."""
        return {"number": self.number, "prefixes": [prefix.hex() for prefix in self.prefixes]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PartitionDrop:
        """Reads the result of `to_json`. Raises KeyError or ValueError."""
        return cls(values["number"], tuple(map(bytes.fromhex, values["prefixes"])))


class Partitioning:
    """How the keys of a table divide into partitions. Immutable, thread-safe.

    Attributes:
        names: The columns that the table is partitioned by: the first ones of the key.
        types: Their types.
    """

    def __init__(self, names: Sequence[str], types: Sequence[pa.DataType]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self.types: tuple[pa.DataType, ...] = tuple(types)

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Returns what the keys of one partition begin with; of several, if only the first columns have a value.

        Raises:
            InvalidKey: A column is missing before one that has a value, or is not a partition column; or a value is not
                of its column's type.
        """
        names = self.names[: len(values)]
        if not values or set(names) != set(values):
            raise InvalidKey(
                f"a partition is named by values of {self._columns_text}, or of the first of these columns, not by "
                f"{', '.join(map(repr, values)) or 'no column'}"
            )
        return KeyCodec(self.types[: len(names)], names).encode_one([values[name] for name in names])

    def decode(self, prefix: bytes) -> dict[str, Any]:
        """Returns the values of a partition, or of the first columns of several, as Python values.

        A value that Python does not have, such as a date after the year 9999, is an Arrow scalar.
        """
        columns, _ = leading_columns(prefix, self.types)
        return {
            name: python_value(decode_column(column, type_))
            for name, column, type_ in zip(self.names, columns, self.types, strict=False)
        }

    def check(self, prefix: bytes, *, complete: bool) -> None:
        """Raises InvalidKey unless bytes are encoded values of the partition columns; of all of them if `complete`."""
        columns, rest = leading_columns(prefix, self.types)
        try:
            scalars = [decode_column(column, type_) for column, type_ in zip(columns, self.types, strict=False)]
            is_valid = b"".join(map(encode_scalar, scalars)) == prefix and not rest and bool(columns)
        except (pa.ArrowException, ValueError, OverflowError):
            is_valid = False
        if not is_valid or (complete and len(columns) < len(self.names)) or len(prefix) > MAX_KEY_BYTES:
            raise InvalidKey(
                f"0x{prefix[:40].hex()} does not name a partition: encode a value of each of {self._columns_text} as "
                "in a key"
            )

    def prefix_of(self, key: bytes) -> bytes:
        """Returns the partition of an encoded key."""
        columns, _ = leading_columns(key, self.types)
        return b"".join(columns)

    def prefixes(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Returns the partition of each encoded key, without a loop over keys."""
        widths = np.zeros(len(keys), np.int64)
        for type_ in self.types:
            if (width := column_width(type_)) is not None:
                widths += width
                continue
            rest = _split(keys, widths)[1] if widths.any() else keys
            widths += pc.find_substring(rest, _TEXT_END).to_numpy(zero_copy_only=False) + len(_TEXT_END)
        return _split(keys, widths)[0]

    @property
    def _columns_text(self) -> str:
        return f"({', '.join(self.names)})"


def _split(
    keys: pa.BinaryArray, widths: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Splits each key after so many bytes: returns the first parts, and the last parts."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, count=len(keys) + 1, offset=keys.offset * 4)
    between = np.empty(2 * len(keys) + 1, np.int32)
    between[::2] = offsets
    between[1::2] = offsets[:-1] + widths
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * len(keys), [None, pa.py_buffer(between), keys.buffers()[2]], null_count=0
    )
    places = np.arange(0, 2 * len(keys), 2)
    return pieces.take(pa.array(places)), pieces.take(pa.array(places + 1))


def check_partition_by(schema: Schema, primary_key: tuple[str, ...], partition_by: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that a table is partitioned by.

    Raises:
        InvalidRequest: The table has no key, or they are not the first columns of the key, all of them, or too many;
            the message shows a key that would do.
        SchemaMismatch: A column does not exist, or its type is a float, whose values are rarely equal.
    """
    chosen = tuple(partition_by)
    if chosen and not primary_key:
        raise InvalidRequest(
            f"partition_by ({', '.join(chosen)}): a table without a primary key has no partitions: let old rows go by "
            "age with log_retention_seconds, or create the table with a primary key that begins with these columns"
        )
    check_unique(chosen, "is in partition_by twice", InvalidRequest)
    for name in chosen:
        type_ = schema.column(name).type
        if name not in primary_key:
            raise InvalidRequest(
                f'column "{name}" is in partition_by but not in the primary key{did_you_mean(name, primary_key)}: '
                f"partition by key columns, such as with primary_key={[*chosen, *_without(primary_key, chosen)]}",
                column=name,
            )
        if pa.types.is_floating(type_):
            raise SchemaMismatch(
                f'column "{name}": a table cannot be partitioned by {type_}; use integers, bool, string, binary, '
                "decimals, dates or times",
                column=name,
            )
    if len(chosen) > MAX_PARTITION_COLUMNS:
        raise InvalidRequest(
            f"a table can be partitioned by at most {MAX_PARTITION_COLUMNS} columns, not {len(chosen)}"
        )
    if chosen != primary_key[: len(chosen)]:
        raise InvalidRequest(
            f"partition_by ({', '.join(chosen)}) must be the first columns of the primary key "
            f"({', '.join(primary_key)}), in the same order: create the table with "
            f"primary_key={[*chosen, *_without(primary_key, chosen)]}"
        )
    if chosen and len(chosen) == len(primary_key):
        raise InvalidRequest(
            f"partition_by ({', '.join(chosen)}) is the complete primary key, so that each partition would be one row: "
            "leave out its last column"
        )
    return chosen


def _without(names: tuple[str, ...], chosen: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in chosen]
