"""Computes the bounds that the parts of a predicate set on encoded columns of a key or an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.errors import InvalidKey
from scankv.model.expressions.like_patterns import prefix_of
from scankv.model.expressions.literals import Literal, ValueList
from scankv.model.expressions.nodes import (
    Comparison,
    FieldPath,
    IsIn,
    IsNull,
    Match,
    Operator,
    Predicate,
    TextMatch,
)
from scankv.model.keys.key_codec import NOT_NULL_MARK, NULL_MARK, TEXT_END_BYTES, KeyCodec, encode_nan, encode_scalar
from scankv.model.keys.key_range import NO_KEYS, KeyRange
from scankv.model.keys.key_ranges import shared_length
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.types.casts import cast_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_SORTED: Final = 10_000
_MOST_APART: Final = 256
_LOWER: Final = (Operator.GREATER, Operator.GREATER_EQUAL)
_UPPER: Final = (Operator.LESS, Operator.LESS_EQUAL)


class KnownValues(NamedTuple):
    """The values of a column for which one part of a predicate is true; it is true for no other rows.

    The encodings ascend. Values that no row can have, such as a text longer than any key, are left out.
    """

    part: Predicate
    encoded: tuple[bytes, ...]


class Truth(NamedTuple):
    """The ranges of a column's encodings in which a comparison is true; elsewhere it is false, and for null unknown.

    Attributes:
        pairs: The start and end of each range. An end of None means the end of the column.
        values: The starts that are encodings of single values. Each of these values has its own range.
        negated: Whether the comparison is true outside the ranges instead.
        has_null: Whether the comparison is unknown instead of false, as `is_in` is for a list with a null.
        of_nulls: Whether the comparison tests for null, and so is never unknown.
        exact: Whether the comparison is true for all values in the ranges. Otherwise it may be true in the ranges, and
            is not true elsewhere.
    """

    pairs: Sequence[tuple[bytes, bytes | None]]
    values: Sequence[bytes] = ()
    negated: bool = False
    has_null: bool = False
    of_nulls: bool = False
    exact: bool = True


class ColumnBounds:
    """The parts of a conjunction, and their bounds on the columns of a key or an index.

    Attributes:
        codec: Encodes the columns.
        left: The parts that ranges do not express yet, in their order. `take` removes parts.
    """

    def __init__(self, codec: KeyCodec, parts: Sequence[Predicate]) -> None:
        self.codec = codec
        self.left: list[Predicate] = list(parts)
        self._codecs: dict[int, KeyCodec] = {}

    def truth(self, position: int, atom: Predicate, longest: int) -> Truth | None:
        """Returns where one comparison with a column is true; None if that is unknown or it compares another column.

        Args:
            position: The position of the column.
            atom: A node without operands.
            longest: The most values of a list that are distinguished. In a longer list, neighboring values form
                ranges in which the comparison may be true. More than 10,000 values form a single range.
        """
        path = self._path(position)
        match atom:
            case Comparison(left=left, right=Literal() as value) if left == path and value.is_null:
                return Truth((), has_null=True)
            case Comparison(
                left=left, operator=Operator.EQUAL | Operator.NOT_EQUAL as operator, right=Literal() as value
            ) if left == path:
                equal = self._encoding(position, value)
                return Truth(_ranges_of(equal), equal, negated=operator is Operator.NOT_EQUAL)
            case IsIn(path=left, values=values) if left == path:
                return self._truth_of_list(position, values, longest)
            case IsNull(path=left) if left == path:
                nulls = [NULL_MARK] if self.codec.nullable[position] else []
                return Truth(_ranges_of(nulls), nulls, of_nulls=True)
            case Comparison() | TextMatch():
                bounds = self._bounds(position, atom)
                if bounds is None:
                    return None
                # No encoding precedes the first value, so the first range begins at the start of the column.
                start = b"" if bounds.start in (None, NOT_NULL_MARK[: self.codec.nullable[position]]) else bounds.start
                exact = not (isinstance(atom, TextMatch) and atom.match is Match.LIKE)
                return Truth(() if bounds.is_empty else ((start or b"", bounds.end),), exact=exact)
        return None

    def _truth_of_list(self, position: int, values: ValueList, longest: int) -> Truth:
        if not len(values):
            return Truth((), of_nulls=True)  # false for every row, including null
        encoded = self._encodings(position, values.candidates)
        if len(encoded) > _MOST_SORTED:
            ends = pc.min_max(encoded).as_py()
            pairs = [(ends["min"], KeyRange.under(ends["max"]).end)]
            return Truth(pairs, has_null=values.has_null, exact=False)
        each = sorted(set(encoded.to_pylist()))
        if len(each) > longest:
            return Truth(_near_together(each, _MOST_APART), has_null=values.has_null, exact=False)
        return Truth(_ranges_of(each), each, has_null=values.has_null)

    def nulls(self, position: int) -> KeyRange:
        """Returns the range of null in a column, which is empty if the column is not nullable."""
        return KeyRange.under(NULL_MARK) if self.codec.nullable[position] else NO_KEYS

    def take(self, *parts: Predicate) -> None:
        """Removes parts from `left`."""
        for part in parts:
            self.left.remove(part)

    def equal(self, position: int) -> KnownValues | None:
        """Returns the first part that restricts a column to one value, or to null."""
        path = self._path(position)
        for part in self.left:
            match part:
                case Comparison(left=left, operator=Operator.EQUAL, right=Literal() as value) if left == path:
                    return KnownValues(part, tuple(self._encodings(position, value.as_array()).to_pylist()))
            if self.codec.nullable[position] and part == IsNull(path):
                return KnownValues(part, (NULL_MARK,))
        return None

    def list_of_values(self, position: int, most: int) -> KnownValues | None:
        """Returns the first part that restricts a column to a list of at most `most` values."""
        for part in self._lists(position):
            if len(part.values) <= most:
                encoded = self._encodings(position, part.values.candidates).to_pylist()
                return KnownValues(part, tuple(sorted(set(encoded))))
        return None

    def _lists(self, position: int) -> Iterator[IsIn]:
        path = self._path(position)
        return (part for part in self.left if isinstance(part, IsIn) and part.path == path)

    def _bounds(self, position: int, part: Predicate) -> KeyRange | None:
        """Returns the range in which a comparison with the column is true; None if the part does not have one.

        For LIKE, it is the range of the prefix of the pattern, in which LIKE may be true.
        """
        path = self._path(position)
        match part:
            case Comparison(left=left, operator=operator, right=Literal() as value) if left == path:
                nearest = self._nearest(position, operator, value)
                if nearest is None:
                    return None
                operator, encoded = nearest
            case TextMatch(path=left, match=Match.STARTS_WITH, text=text) if left == path:
                operator = Operator.EQUAL
                encoded = self._encode(position, text.as_array())
                encoded = encoded and encoded[:-TEXT_END_BYTES]
            case TextMatch(path=left, match=Match.LIKE, text=text) if left == path:
                prefix = prefix_of(text.scalar.as_py())
                operator = Operator.EQUAL
                encoded = self._encode(position, pa.array([prefix])) if prefix else None
                encoded = encoded and encoded[:-TEXT_END_BYTES]
            case _:
                return None
        return None if encoded is None else self._compare(position, operator, encoded)

    def _compare(self, position: int, operator: Operator, encoded: bytes) -> KeyRange | None:
        same = KeyRange.under(encoded)
        if operator is Operator.EQUAL:
            return same
        if operator not in _LOWER + _UPPER:
            return None
        within = self._comparable(position)
        if not any(encoded[self.codec.nullable[position] :]):  # No encoding precedes one that is all zeros.
            if operator is Operator.GREATER_EQUAL:
                return within
            if operator is Operator.LESS:
                return NO_KEYS
        if operator in _LOWER:
            start = same.start if operator is Operator.GREATER_EQUAL else same.end
            return within & KeyRange(start, None) if start is not None else NO_KEYS
        return within & KeyRange(None, same.start if operator is Operator.LESS else same.end)

    def _comparable(self, position: int) -> KeyRange:
        """Returns the range of all encodings except null and NaN, which come last in key order."""
        type_ = self.codec.types[position]
        mark = NOT_NULL_MARK * self.codec.nullable[position]
        values = KeyRange.under(mark)
        return values & KeyRange(None, mark + encode_nan(type_)) if pa.types.is_floating(type_) else values

    def _nearest(self, position: int, operator: Operator, value: Literal) -> tuple[Operator, bytes | None] | None:
        """Returns an equivalent comparison with the nearest value of the column; None if no such value exists."""
        array = value.as_array()
        exact = self._key_values(position, array)
        if exact is not None:
            return operator, self._encode(position, exact)
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
        return operator, self._encode(position, near)

    def _encoding(self, position: int, value: Literal) -> list[bytes]:
        """Returns the same as `_encodings` for one value, usually in a fraction of the time."""
        type_ = self.codec.types[position]
        if value.scalar.type != type_ or pa.types.is_floating(type_):
            return list(self._encodings(position, value.as_array()).to_pylist())
        encoded = NOT_NULL_MARK * self.codec.nullable[position] + encode_scalar(value.scalar)
        return [encoded] if len(encoded) <= MAX_KEY_BYTES else []

    def _encodings(self, position: int, values: pa.Array) -> pa.BinaryArray:
        """Returns the encodings of those values that the column can have."""
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
        """Returns values in the column's type; None if one is null or NaN, or cannot be cast without loss."""
        if values.null_count or (pa.types.is_floating(values.type) and any(v != v for v in values.to_pylist())):
            return None
        try:
            return cast_exactly(values, self.codec.types[position])
        except (TypeError, ValueError, pa.ArrowException):
            return None

    def _encode(self, position: int, values: pa.Array) -> bytes | None:
        try:
            encoded: bytes = self._codec_of(position).encode([values])[0].as_py()
        except InvalidKey:
            return None
        return encoded

    def _codec_of(self, position: int) -> KeyCodec:
        found = self._codecs.get(position)
        if found is None:
            codec = self.codec
            found = KeyCodec([codec.types[position]], [codec.names[position]], [codec.nullable[position]])
            self._codecs[position] = found
        return found

    def _path(self, position: int) -> FieldPath:
        return FieldPath((self.codec.names[position],))


def _ranges_of(values: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
    """Returns the range of each encoding, which ends where the next possible value begins."""
    return [(value, KeyRange.under(value).end) for value in values]


def _near_together(values: Sequence[bytes], most: int) -> list[tuple[bytes, bytes | None]]:
    """Returns at most `most` ranges that cover ascending encodings, separated at the widest gaps between these."""
    same = shared_length(values[0], values[-1])
    heads = np.frombuffer(b"".join([value[same : same + 8].ljust(8, b"\0") for value in values]), ">u8")
    gaps = np.diff(heads.astype(np.uint64))
    cuts = np.sort(np.argsort(gaps, kind="stable")[::-1][: most - 1]).tolist()
    firsts, lasts = [0, *(cut + 1 for cut in cuts)], [*cuts, len(values) - 1]
    return [(values[first], KeyRange.under(values[last]).end) for first, last in zip(firsts, lasts, strict=True)]
