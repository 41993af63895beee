"""What the parts of a predicate say about the columns of a key or an index, as bytes and ranges of their encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from table_model import lazy_compute as pc
from table_model.casts import cast_exactly
from table_model.errors import InvalidKey
from table_model.expressions.literals import Literal
from table_model.expressions.nodes import (
    Comparison,
    FieldPath,
    IsIn,
    IsNull,
    Match,
    Not,
    Operator,
    Predicate,
    TextMatch,
)
from table_model.key_codec import NOT_NULL_MARK, NULL_MARK, TEXT_END_BYTES, KeyCodec
from table_model.key_range import NO_KEYS, KeyRange
from table_model.limits import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOWER: Final = (Operator.GREATER, Operator.GREATER_EQUAL)
_UPPER: Final = (Operator.LESS, Operator.LESS_EQUAL)


class Told(NamedTuple):
    """What one part of a predicate says of a column: true of exactly the rows with one of these encodings in it.

    They ascend. Of values that no row can have in it, such as a text longer than any key, there is none.
    """

    part: Predicate
    encoded: tuple[bytes, ...]


class ColumnBounds:
    """The parts of a conjunction, and what they say about the columns of a key or an index.

    Attributes:
        codec: Encodes the columns.
        left: The parts that were not taken, in their order.
        taken: Those that were, because ranges say the same.
    """

    def __init__(self, codec: KeyCodec, parts: Sequence[Predicate]) -> None:
        self.codec = codec
        self.left = list(parts)
        self.taken: list[Predicate] = []

    def take(self, *parts: Predicate) -> None:
        """Leaves parts out of `left`."""
        for part in parts:
            self.left.remove(part)
            self.taken.append(part)

    def equal(self, position: int) -> Told | None:
        """The first part that says that a column has one value, or is null."""
        path = self._path(position)
        for part in self.left:
            match part:
                case Comparison(left=left, operator=Operator.EQUAL, right=Literal() as value) if left == path:
                    return Told(part, tuple(self._encodings(position, value.as_array()).to_pylist()))
            if self.codec.nullable[position] and part == IsNull(path):
                return Told(part, (NULL_MARK,))
        return None

    def listed(self, position: int, most: int) -> Told | None:
        """The first part that says that a column has one of at most so many values."""
        for part in self._lists(position):
            if len(part.values) <= most:
                encoded = self._encodings(position, part.values.candidates).to_pylist()
                return Told(part, tuple(sorted(set(encoded))))
        return None

    def between_listed(self, position: int, prefix: bytes) -> KeyRange:
        """The keys with a prefix, and behind it a column from the first to the last value of each list of it."""
        key_range = KeyRange.under(prefix)
        for part in self._lists(position):
            ends = pc.min_max(self._encodings(position, part.values.candidates)).as_py()
            if ends["min"] is None:
                return NO_KEYS
            key_range &= KeyRange(prefix + ends["min"], KeyRange.under(prefix + ends["max"]).end)
        return key_range

    def _lists(self, position: int) -> Iterator[IsIn]:
        path = self._path(position)
        return (part for part in self.left if isinstance(part, IsIn) and part.path == path)

    def equal_prefix(self, positions: int) -> tuple[bytes, int]:
        """What the leading columns are equal to, of at most so many, and how many those are; takes their parts."""
        prefix, position = b"", 0
        while position < positions and (told := self.equal(position)) is not None and told.encoded:
            self.take(told.part)
            prefix, position = prefix + told.encoded[0], position + 1
        return prefix, position

    def narrowed(self, position: int, prefix: bytes) -> KeyRange:
        """The keys with a prefix for which all comparisons with the column behind it are true; takes those."""
        key_range = KeyRange.under(prefix)
        for part in list(self.left):
            bounds = self._bounds(position, prefix, part)
            if bounds is not None:
                self.take(part)
                key_range &= bounds
        return key_range

    def values(self, position: int, prefix: bytes) -> KeyRange:
        """The keys with a prefix and a column behind it that is not null."""
        return KeyRange.under(prefix + NOT_NULL_MARK if self.codec.nullable[position] else prefix)

    def _bounds(self, position: int, prefix: bytes, part: Predicate) -> KeyRange | None:
        """The keys with this prefix for which a comparison with the column behind it is true, None for no such part."""
        path = self._path(position)
        match part:
            case Comparison(left=left, operator=operator, right=Literal() as value) if left == path:
                nearest = self._nearest(position, operator, value)
                if nearest is None:
                    return None
                operator, encoded = nearest
            case TextMatch(path=left, match=Match.STARTS_WITH, text=text) if left == path:
                operator = Operator.EQUAL
                encoded = self._encoded(position, text.as_array())
                encoded = encoded and encoded[:-TEXT_END_BYTES]
            case Not(operand=IsNull(path=left)) if left == path and self.codec.nullable[position]:
                return self.values(position, prefix)
            case _:
                return None
        return None if encoded is None else self._compared(position, prefix, operator, encoded)

    def _compared(self, position: int, prefix: bytes, operator: Operator, encoded: bytes) -> KeyRange | None:
        same = KeyRange.under(prefix + encoded)
        if operator is Operator.EQUAL:
            return same
        if operator not in _LOWER + _UPPER:
            return None
        within = self._comparable(position, prefix)
        if operator in _LOWER:
            start = same.start if operator is Operator.GREATER_EQUAL else same.end
            return within & KeyRange(start, None) if start is not None else NO_KEYS
        return within & KeyRange(None, same.start if operator is Operator.LESS else same.end)

    def _comparable(self, position: int, prefix: bytes) -> KeyRange:
        """The keys with this prefix but those with null or NaN behind it, which are above all others in key order."""
        values, type_ = self.values(position, prefix), self.codec.types[position]
        if not pa.types.is_floating(type_):
            return values
        nan = self._codec_of(position).encode([pa.array([float("nan")], type_, from_pandas=False)])[0].as_py()
        return values & KeyRange(None, prefix + nan)

    def _nearest(self, position: int, operator: Operator, value: Literal) -> tuple[Operator, bytes | None] | None:
        """A comparison with the value nearest to this one that the column can have, which is true of the same rows."""
        array = value.as_array()
        exact = self._key_values(position, array)
        if exact is not None:
            return operator, self._encoded(position, exact)
        type_ = self.codec.types[position]
        if value.is_null or value.is_nan or not pa.types.is_floating(type_) or operator not in _LOWER + _UPPER:
            return None
        wide = array.cast(pa.float64())
        near = wide.cast(type_)
        above = pc.greater(near.cast(pa.float64()), wide)[0].as_py()
        if operator in _LOWER:
            operator = Operator.GREATER_EQUAL if above else Operator.GREATER
        else:
            operator = Operator.LESS if above else Operator.LESS_EQUAL
        return operator, self._encoded(position, near)

    def _encodings(self, position: int, values: pa.Array) -> pa.BinaryArray:
        """The encodings of the values to which a row can be equal in the column."""
        type_ = self.codec.types[position]
        values = values.drop_null()
        if pa.types.is_floating(type_):
            near = values.cast(type_)
            wide = near.cast(pa.float64())  # Arrow has no comparisons of float16
            values = near.filter(pc.equal(wide, values.cast(pa.float64())))
        elif pa.types.is_string(type_) or pa.types.is_binary(type_):
            plain = values.cast(pa.binary())
            lengths = pc.add(pc.binary_length(plain), pc.count_substring(plain, b"\0"))
            others = TEXT_END_BYTES + self.codec.nullable[position]
            values = values.filter(pc.less_equal(lengths, MAX_KEY_BYTES - others))
        return self._codec_of(position).encode([values])

    def _key_values(self, position: int, values: pa.Array) -> pa.Array | None:
        """Values as the column has them, None where it cannot have them so that they compare: null, NaN, no float32."""
        if values.null_count or (pa.types.is_floating(values.type) and any(v != v for v in values.to_pylist())):
            return None
        try:
            return cast_exactly(values, self.codec.types[position])
        except (TypeError, ValueError, pa.ArrowException):
            return None

    def _encoded(self, position: int, values: pa.Array) -> bytes | None:
        try:
            encoded: bytes = self._codec_of(position).encode([values])[0].as_py()
        except InvalidKey:
            return None
        return encoded

    def _codec_of(self, position: int) -> KeyCodec:
        codec = self.codec
        return KeyCodec([codec.types[position]], [codec.names[position]], [codec.nullable[position]])

    def _path(self, position: int) -> FieldPath:
        return FieldPath((self.codec.names[position],))
