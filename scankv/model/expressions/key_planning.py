"""Plans which keys to read for a predicate, and the residual predicate for their rows."""

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

    The predicate is true for exactly the rows whose keys are in one of the ranges and for which the residual is true.

    Attributes:
        ranges: The ranges and single keys. All keys if the predicate does not restrict them, and no keys if it is never
            true.
        residual: The residual predicate for the rows found. None: the rows need no filter.
    """

    ranges: KeyRanges
    residual: BoundPredicate | None


def plan_keys(bound: BoundPredicate, codec: KeyCodec) -> KeyPlan:
    """Converts a predicate to ranges of keys, single keys and a residual predicate.

    The planner uses all comparisons of key columns with values, in any combination of AND, OR and NOT: equality, lists,
    `<`, `<=`, `>`, `>=`, `!=` and `starts_with` of the first column, and for each single value of that column, the same
    for the next one. A plan has at most 512 ranges, and at most 10,000 ranges and single keys together. Beyond that,
    neighbors are read as one range, and the predicate filters the rows. A list of more than 10,000 values becomes one
    range from the first value to the last.

    Args:
        bound: A predicate bound to the table's schema.
        codec: The codec of the table's key, or of the columns of an index, with the names of the columns.
    """
    parts = conjuncts(bound.predicate)
    listed = _plan_listed_keys(parts, codec)
    if listed is not None:
        return KeyPlan(listed.ranges, residual_of(listed.left, bound.columns))
    planned = plan_ranges(parts, ColumnBounds(codec, ()))
    return KeyPlan(planned.ranges, residual_of(planned.left, bound.columns))


def _plan_listed_keys(parts: Sequence[Predicate], codec: KeyCodec) -> RangePlan | None:
    """Plans long lists of values for all key columns, up to 10,000 keys; returns None for other predicates.

    A shortcut for a common case. `plan_ranges` finds the same keys but takes some microseconds per key.
    """
    if not any(isinstance(part, IsIn) and len(part.values) > _SHORT_LIST for part in parts):
        return None
    bounds = ColumnBounds(codec, parts)
    known: list[KnownValues] = []
    for position in range(len(codec.names)):
        one = bounds.equal(position) or bounds.list_of_values(position, MAX_POINTS)
        if one is None:
            return None
        known.append(one)
    keys = prod(len(one.encoded) for one in known)
    longest = sum(max(map(len, one.encoded), default=0) for one in known)
    if len(known) > 1 and (keys > MAX_POINTS or keys * longest > _MOST_BYTES_OF_LISTS):
        return None
    bounds.take(*(one.part for one in known))
    # No encoded value is a prefix of another, so the concatenations ascend as well.
    found = map(b"".join, product(*(one.encoded for one in known)))
    points = KeyRanges.of_keys([key for key in found if len(key) <= MAX_KEY_BYTES])  # no row has a longer one
    return RangePlan(points, tuple(bounds.left))


def residual_of(parts: Sequence[Predicate], columns: Sequence[str]) -> BoundPredicate | None:
    """Returns the residual predicate of some parts; None without parts. `columns` are those of the whole predicate."""
    if not parts:
        return None
    predicate = all_of(parts)
    read = {path.names[0] for node in predicate.walk() for path in node.paths}
    return BoundPredicate(predicate, tuple(name for name in columns if name in read))
