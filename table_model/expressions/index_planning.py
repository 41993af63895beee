"""Which entries of an index are of the rows that a predicate is true of, also in the order of a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from table_model.expressions.column_bounds import ColumnBounds
from table_model.expressions.key_planning import residual_of
from table_model.expressions.nodes import (
    Comparison,
    Constant,
    FieldPath,
    IsNull,
    Operator,
    Predicate,
    TextMatch,
    all_of,
    conjuncts,
)
from table_model.key_codec import NULL_MARK
from table_model.key_range import NO_KEYS, KeyRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from table_model.expressions.binding import BoundPredicate
    from table_model.key_codec import KeyCodec

MAX_RANGES: Final = 1000
"""Values of an `is_in` for which an index is read, each of them on its own."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Where in an index to look for the rows of a predicate. Immutable, picklable.

    The predicate is true of exactly the rows whose encoded columns are in one of the ranges, and of which the residual
    is true.

    Attributes:
        ranges: Ranges of the encoded columns; they ascend and have nothing in common.
        told: What the ranges say.
        residual: What to ask of the rows found. None: nothing.
        rank: The greater, the fewer rows are to be expected: columns that are equal, then the bounds of the next one.
    """

    ranges: tuple[KeyRange, ...]
    told: Predicate
    residual: BoundPredicate | None
    rank: tuple[int, int]


def plan_index(bound: BoundPredicate, codec: KeyCodec) -> IndexPlan | None:
    """Turns what a predicate says about the columns of an index into ranges of its entries.

    Leading columns that are equal to a value, or null, give one range. It is narrowed by comparisons, `starts_with` and
    `is_not_null` on the column after them, or becomes several by `is_in`. All else is residual.

    Args:
        bound: A predicate bound to the table's schema.
        codec: The codec of the index's columns, with their names.

    Returns:
        None when it says nothing that bounds them.
    """
    bounds = _bounds_of(bound, codec)
    if bounds is None:
        return None
    columns = len(codec.names)
    prefix, position = bounds.equal_prefix(columns)
    ranges: tuple[KeyRange, ...] = (KeyRange.under(prefix),)
    behind = 0
    if position < columns:
        listed = bounds.listed(position, MAX_RANGES)
        if listed is not None:
            bounds.take(listed.part)
            ranges = tuple(KeyRange.under(prefix + value) for value in listed.encoded)
            behind = 4
        else:
            equal = len(bounds.taken)
            ranges = (bounds.narrowed(position, prefix),)
            behind = _rank_of(bounds.taken[equal:])
    if not position + behind:
        return None
    residual = residual_of(bounds.left, bound.columns)
    return IndexPlan(ranges, all_of(bounds.taken), residual, (position, behind))


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """Where in an index the rows of a predicate are in the order of a column. Immutable, picklable.

    The predicate is true of exactly the rows whose encoded columns are in one of the two ranges, and of which the
    residual is true. Within a range they are ascending by the column, and equal ones by their keys.

    Attributes:
        values: The range of those that are not null in the column.
        nulls: The range of those that are null in it.
        told: What the ranges say.
        residual: What to ask of the rows found. None: nothing.
        equal: How many columns are equal to a value in all of them.
    """

    values: KeyRange
    nulls: KeyRange
    told: Predicate
    residual: BoundPredicate | None
    equal: int


def plan_order(bound: BoundPredicate | None, by: str, codec: KeyCodec) -> OrderPlan | None:
    """The part of an index in which rows come in the order of a column.

    Args:
        bound: A predicate bound to the table's schema; None for all rows.
        by: The column.
        codec: The codec of the index's columns, with their names.

    Returns:
        None unless it is the last column of the index, and all before it are equal to a value.
    """
    bounds = ColumnBounds(codec, ()) if bound is None else _bounds_of(bound, codec)
    position = len(codec.names) - 1
    if bounds is None or codec.names[position] != by:
        return None
    prefix, equal = bounds.equal_prefix(position)
    if equal < position:
        return None
    is_null = IsNull(FieldPath((by,)))
    nulls = KeyRange.under(prefix + NULL_MARK) if codec.nullable[position] else NO_KEYS
    if codec.nullable[position] and is_null in bounds.left:
        bounds.take(is_null)
        values = NO_KEYS
    else:
        values = bounds.narrowed(position, prefix)
        if values != KeyRange.under(prefix):  # whatever was said of it is not true of null
            nulls = NO_KEYS
        values &= bounds.values(position, prefix)
    residual = None if bound is None else residual_of(bounds.left, bound.columns)
    return OrderPlan(values, nulls, all_of(bounds.taken), residual, equal)


def _bounds_of(bound: BoundPredicate, codec: KeyCodec) -> ColumnBounds | None:
    """None for a predicate that no row can be true of: an index has no part in finding that."""
    parts = conjuncts(bound.predicate)
    if any(isinstance(part, Constant) and not part.value for part in parts):
        return None
    return ColumnBounds(codec, [part for part in parts if not isinstance(part, Constant)])


def _rank_of(taken: Sequence[Predicate]) -> int:
    """How much the bounds of one column tell: a prefix or both ends 3, one end 2, that it is not null 1, nothing 0."""
    ends = {
        part.operator in (Operator.GREATER, Operator.GREATER_EQUAL) for part in taken if isinstance(part, Comparison)
    }
    if len(ends) == 2 or any(isinstance(part, TextMatch) for part in taken):
        return 3
    return 2 if ends else min(1, len(taken))
