"""Which keys can hold the rows that a predicate is true of, and what is left to ask of those rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from table_model.casts import cast_exactly
from table_model.errors import InvalidKey
from table_model.expressions.binding import BoundPredicate
from table_model.expressions.literals import Literal
from table_model.expressions.nodes import (
    Comparison,
    Constant,
    FieldPath,
    IsIn,
    Match,
    Operator,
    Predicate,
    TextMatch,
    all_of,
    conjuncts,
)
from table_model.key_codec import TEXT_END_BYTES, KeyCodec
from table_model.key_range import NO_KEYS, KeyRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOWER: Final = (Operator.GREATER, Operator.GREATER_EQUAL)
_UPPER: Final = (Operator.LESS, Operator.LESS_EQUAL)


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Where to look for the rows of a predicate. Immutable, picklable.

    The predicate is true of exactly the rows whose keys are among the points, or in the range, and of which the
    residual is true.

    Attributes:
        points: Encoded keys, ascending, each once: look these up. Empty: no row. None: read the range.
        key_range: The keys to read when there are no points; all keys when the predicate says nothing of keys.
        residual: What to ask of the rows found. None: nothing.
    """

    points: tuple[bytes, ...] | None
    key_range: KeyRange
    residual: BoundPredicate | None


def plan_keys(bound: BoundPredicate, codec: KeyCodec) -> KeyPlan:
    """Turns what a predicate says about the key into points or one range.

    Equality on the whole key is a point, and `is_in` on a key of one column gives points. Equality on leading key
    columns gives a range, narrowed by `<`, `<=`, `>`, `>=` and `starts_with` on the column after them. All else is
    residual.

    Args:
        bound: A predicate bound to the table's schema.
        codec: The codec of the table's key, with the names of its columns; these are NOT NULL.
    """
    left = conjuncts(bound.predicate)
    if any(isinstance(part, Constant) and not part.value for part in left):
        return KeyPlan((), KeyRange(), None)
    left = [part for part in left if not isinstance(part, Constant)]
    planner = _Planner(codec, left)
    points = planner.points()
    key_range = KeyRange() if points is not None else planner.key_range()
    return KeyPlan(points, key_range, _residual(planner.left, bound.columns))


def _residual(parts: Sequence[Predicate], columns: Sequence[str]) -> BoundPredicate | None:
    if not parts:
        return None
    predicate = all_of(parts)
    read = {path.names[0] for node in predicate.walk() for path in node.paths}
    return BoundPredicate(predicate, tuple(name for name in columns if name in read))


class _Planner:
    """Takes conjuncts out of `left` as it turns them into keys."""

    def __init__(self, codec: KeyCodec, left: Sequence[Predicate]) -> None:
        self.codec = codec
        self.left = list(left)

    def points(self) -> tuple[bytes, ...] | None:
        found: list[tuple[Predicate, pa.Array]] = []
        for position in range(len(self.codec.names)):
            equal = self._first(position, self._equal_values)
            if equal is None and len(self.codec.names) == 1:
                equal = self._first(position, self._listed_values)
            if equal is None:
                return None
            found.append(equal)
        try:
            keys = self.codec.encode([values for _, values in found])
        except InvalidKey:  # too long; found by no lookup, and by no scan either
            return None
        self._take([part for part, _ in found])
        return tuple(sorted(set(keys.to_pylist())))

    def key_range(self) -> KeyRange:
        """The range of equal leading columns, and of the bounds on the column behind them."""
        prefix, position = b"", 0
        while position < len(self.codec.names):
            equal = self._first(position, self._equal_values)
            encoded = None if equal is None else self._encoded(position, equal[1])
            if equal is None or encoded is None:
                break
            self._take([equal[0]])
            prefix, position = prefix + encoded, position + 1
        key_range = KeyRange.under(prefix)
        if position < len(self.codec.names):
            for part in list(self.left):
                bounds = self._bounds(position, prefix, part)
                if bounds is not None:
                    self._take([part])
                    key_range &= bounds
        return key_range

    def _bounds(self, position: int, prefix: bytes, part: Predicate) -> KeyRange | None:
        """The keys with this prefix for which a comparison with the column behind it is true, None for no such part."""
        path = FieldPath((self.codec.names[position],))
        match part:
            case Comparison(left=left, operator=operator, right=Literal() as value) if left == path:
                encoded = self._encoded(position, self._key_values(position, value.as_array()))
            case TextMatch(path=left, match=Match.STARTS_WITH, text=text) if left == path:
                operator = Operator.EQUAL
                encoded = self._encoded(position, text.as_array())
                encoded = encoded and encoded[:-TEXT_END_BYTES]
            case _:
                return None
        if encoded is None:
            return None
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
        """The keys with this prefix but those with a NaN behind it, which is above all other floats in key order."""
        under, type_ = KeyRange.under(prefix), self.codec.types[position]
        if not pa.types.is_floating(type_):
            return under
        nan = self._codec_of(position).encode([pa.array([float("nan")], type_, from_pandas=False)])[0].as_py()
        return under & KeyRange(None, prefix + nan)

    def _first(
        self, position: int, values_of: Callable[[int, Predicate], pa.Array | None]
    ) -> tuple[Predicate, pa.Array] | None:
        for part in self.left:
            values = values_of(position, part)
            if values is not None:
                return part, values
        return None

    def _equal_values(self, position: int, part: Predicate) -> pa.Array | None:
        path = FieldPath((self.codec.names[position],))
        match part:
            case Comparison(left=left, operator=Operator.EQUAL, right=Literal() as value) if left == path:
                return self._key_values(position, value.as_array())
            case _:
                return None

    def _listed_values(self, position: int, part: Predicate) -> pa.Array | None:
        if isinstance(part, IsIn) and part.path == FieldPath((self.codec.names[position],)):
            return self._key_values(position, part.values.candidates)
        return None

    def _key_values(self, position: int, values: pa.Array) -> pa.Array | None:
        """Values as the key column has them, None where a key cannot have them: null, NaN, or no float32."""
        if values.null_count or (pa.types.is_floating(values.type) and any(v != v for v in values.to_pylist())):
            return None
        try:
            return cast_exactly(values, self.codec.types[position])
        except (TypeError, ValueError, pa.ArrowException):
            return None

    def _encoded(self, position: int, values: pa.Array | None) -> bytes | None:
        if values is None:
            return None
        try:
            encoded: bytes = self._codec_of(position).encode([values])[0].as_py()
        except InvalidKey:
            return None
        return encoded

    def _codec_of(self, position: int) -> KeyCodec:
        return KeyCodec([self.codec.types[position]], [self.codec.names[position]])

    def _take(self, parts: Sequence[Predicate]) -> None:
        for part in parts:
            self.left.remove(part)
