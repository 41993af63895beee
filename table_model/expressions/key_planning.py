"""Which keys can hold the rows that a predicate is true of, and what is left to ask of those rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from table_model.expressions.binding import BoundPredicate
from table_model.expressions.column_bounds import ColumnBounds
from table_model.expressions.nodes import Constant, Predicate, all_of, conjuncts
from table_model.key_range import KeyRange
from table_model.limits import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from table_model.key_codec import KeyCodec


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
    parts = conjuncts(bound.predicate)
    if any(isinstance(part, Constant) and not part.value for part in parts):
        return KeyPlan((), KeyRange(), None)
    bounds = ColumnBounds(codec, [part for part in parts if not isinstance(part, Constant)])
    points = _points(bounds)
    key_range = KeyRange() if points is not None else _key_range(bounds)
    return KeyPlan(points, key_range, residual_of(bounds.left, bound.columns))


def residual_of(parts: Sequence[Predicate], columns: Sequence[str]) -> BoundPredicate | None:
    """The parts of a bound predicate that are left to be asked, None for none; `columns` are those of the predicate."""
    if not parts:
        return None
    predicate = all_of(parts)
    read = {path.names[0] for node in predicate.walk() for path in node.paths}
    return BoundPredicate(predicate, tuple(name for name in columns if name in read))


def _points(bounds: ColumnBounds) -> tuple[bytes, ...] | None:
    columns = len(bounds.codec.names)
    told = [bounds.equal(position) for position in range(columns)]
    if columns == 1 and told[0] is None:
        told = [bounds.listed(0)]
    found = [one for one in told if one is not None]
    if len(found) < columns:
        return None
    points = found[0].encoded if columns == 1 else (b"".join(one.encoded[0] for one in found),)
    if len(points) == 1 and len(points[0]) > MAX_KEY_BYTES:  # found by no lookup, and by no scan either
        return None
    bounds.take(*(one.part for one in found))
    return points


def _key_range(bounds: ColumnBounds) -> KeyRange:
    """The range of equal leading columns, and of the bounds on the column behind them."""
    columns = len(bounds.codec.names)
    prefix, position = bounds.equal_prefix(columns)
    return bounds.narrowed(position, prefix) if position < columns else KeyRange.under(prefix)
