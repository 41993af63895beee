"""Plans which keys can have the rows that match a predicate, and the residual predicate for them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

from scankv.model.expressions.binding import BoundPredicate
from scankv.model.expressions.column_bounds import ColumnBounds, KnownValues
from scankv.model.expressions.nodes import IsIn, Predicate, all_of, conjuncts
from scankv.model.expressions.range_planning import MAX_POINTS, RangePlan, plan_ranges
from scankv.model.keys.key_ranges import KeyRanges
from scankv.model.limits import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.keys.key_codec import KeyCodec

_SHORT_LIST: Final = 256
_MOST_BYTES_OF_LISTS: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The keys to read for a predicate, and its residual. Immutable, picklable.

    The predicate is true of exactly the rows whose keys are in one of the ranges, and of which the residual is true.

    Attributes:
        ranges: The ranges and single keys; all keys when the predicate says nothing of keys, none when it is never
            true.
        residual: What to ask of the rows found. None: nothing.
    """

    ranges: KeyRanges
    residual: BoundPredicate | None


def plan_keys(bound: BoundPredicate, codec: KeyCodec) -> KeyPlan:
    """Converts a predicate into ranges of keys, single keys and a residual predicate.

    Everything that compares key columns with values counts, however it is joined by AND, OR and NOT: values, lists,
    `<`, `<=`, `>`, `>=`, `!=` and `starts_with` of the first column, and below each single value of it the same of the
    next one. The ranges are at most 512, with single keys at most 10,000; beyond that, neighbours are read as one range
    and the predicate is asked of the rows. A list of over 10,000 values is one range from the first to the last.

    Args:
        bound: A predicate bound to the table's schema.
        codec: The codec of the table's key, or of the columns of an index, with the names of the columns.
    """
    parts = conjuncts(bound.predicate)
    listed = _listed_keys(parts, codec)
    if listed is not None:
        return KeyPlan(listed.ranges, residual_of(listed.left, bound.columns))
    planned = plan_ranges(parts, ColumnBounds(codec, ()))
    return KeyPlan(planned.ranges, residual_of(planned.left, bound.columns))


def _listed_keys(parts: Sequence[Predicate], codec: KeyCodec) -> RangePlan | None:
    """The keys that long lists of values of all key columns name, up to 10,000; None where it is not so.

    A short cut for what is common: `plan_ranges` finds the same, and takes some microseconds for each key.
    """
    if not any(isinstance(part, IsIn) and len(part.values) > _SHORT_LIST for part in parts):
        return None
    bounds = ColumnBounds(codec, parts)
    known: list[KnownValues] = []
    for position in range(len(codec.names)):
        one = bounds.equal(position) or bounds.listed(position, MAX_POINTS)
        if one is None:
            return None
        known.append(one)
    keys = prod(len(one.encoded) for one in known)
    longest = sum(max(map(len, one.encoded), default=0) for one in known)
    if len(known) > 1 and (keys > MAX_POINTS or keys * longest > _MOST_BYTES_OF_LISTS):
        return None
    bounds.take(*(one.part for one in known))
    # No encoding is the beginning of another one, so that these ascend, too.
    found = map(b"".join, product(*(one.encoded for one in known)))
    points = KeyRanges.of_keys([key for key in found if len(key) <= MAX_KEY_BYTES])  # no row has a longer one
    return RangePlan(points, tuple(bounds.left))


def residual_of(parts: Sequence[Predicate], columns: Sequence[str]) -> BoundPredicate | None:
    """The residual predicate of some parts, None if nothing remains; `columns` are those of the predicate."""
    if not parts:
        return None
    predicate = all_of(parts)
    read = {path.names[0] for node in predicate.walk() for path in node.paths}
    return BoundPredicate(predicate, tuple(name for name in columns if name in read))
