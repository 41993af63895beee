"""Which keys can hold the rows that a predicate is true of, and what is left to ask of those rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

from table_model.expressions.binding import BoundPredicate
from table_model.expressions.column_bounds import ColumnBounds, Told
from table_model.expressions.nodes import Constant, Predicate, all_of, conjuncts
from table_model.key_range import KeyRange
from table_model.limits import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from table_model.key_codec import KeyCodec

MAX_POINTS: Final = 10_000
"""Keys that are looked up one by one. Where there are more, a range is read."""

_MOST_BYTES_OF_LISTS: Final = 4 * 1024 * 1024


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

    Where every key column is equal to a value, or is one of a list, the keys with these values are the points, up to
    10,000, and of several columns up to 4 MiB. Else equality on leading key columns gives a range, narrowed by `<`,
    `<=`, `>`, `>=` and `starts_with` on the column after them; a longer list of a key of one column is read from its
    first to its last value. All else is residual.

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
    told: list[Told] = []
    for position in range(len(bounds.codec.names)):
        one = bounds.equal(position) or bounds.listed(position, MAX_POINTS)
        if one is None:
            return None
        told.append(one)
    keys = prod(len(one.encoded) for one in told)
    longest = sum(max(map(len, one.encoded), default=0) for one in told)
    if len(told) > 1 and (keys > MAX_POINTS or keys * longest > _MOST_BYTES_OF_LISTS):
        return None
    bounds.take(*(one.part for one in told))
    # No encoding is the beginning of another one, so that these ascend, too.
    points = map(b"".join, product(*(one.encoded for one in told)))
    return tuple(point for point in points if len(point) <= MAX_KEY_BYTES)  # no row has a longer one


def _key_range(bounds: ColumnBounds) -> KeyRange:
    """The range of equal leading columns, and of the bounds on the column behind them."""
    columns = len(bounds.codec.names)
    prefix, position = bounds.equal_prefix(columns)
    if position == columns:
        return KeyRange.under(prefix)
    key_range = bounds.narrowed(position, prefix)
    return key_range & bounds.between_listed(position, prefix) if columns == 1 else key_range
