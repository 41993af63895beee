"""Plans which index entries to read for a predicate, and whether they are in the order of a column.

`plan_keys` is the only planner. It treats the columns of an index like a primary key of the same columns. This module
turns the resulting ranges of encoded columns into ranges of index entries, and ranks indexes by how many entries the
ranges are likely to have.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.expressions.key_planning import plan_keys
from scankv.model.keys.key_codec import NOT_NULL_MARK, NULL_MARK, encode_nan
from scankv.model.keys.key_parts import shared_columns
from scankv.model.keys.key_range import NO_KEYS, KeyRange
from scankv.model.keys.key_ranges import ALL_KEY_RANGES, KeyRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.expressions.binding import BoundPredicate
    from scankv.model.keys.key_codec import KeyCodec

_MOST_RANKED: Final = 64
"""The most ranges that are considered to rank a plan."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The ranges of an index that contain the rows of a predicate. Immutable, picklable.

    The predicate is true for exactly the rows whose encoded columns are in one of the ranges and for which the residual
    is true.

    Attributes:
        ranges: Ranges of the encoded columns. A single value of all columns is a range as well, because the entries
            have the primary key after it.
        residual: The residual predicate for the rows found. None: the rows need no filter.
        rank: Plans with a greater rank are expected to read fewer rows. Compares first the number of columns that equal
            a value in every range, then the bounds of the next column (3: both ends or a prefix, 2: one end, 1: not
            null), then fewer ranges.
    """

    ranges: KeyRanges
    residual: BoundPredicate | None
    rank: tuple[int, int, int]


def plan_index(bound: BoundPredicate, codec: KeyCodec) -> IndexPlan | None:
    """Converts a predicate on the columns of an index into ranges of its entries.

    Args:
        bound: A predicate bound to the table's schema.
        codec: The codec of the index's columns, with their names.

    Returns:
        The plan. None if the predicate does not bound the columns or only excludes single values: then most entries
        would be read.
    """
    if codec.names[0] not in bound.columns:
        return None
    planned = plan_keys(bound, codec)
    ranges = _entry_ranges(planned.ranges)
    if not ranges:
        return IndexPlan(ranges, planned.residual, (len(codec.names), 3, 0))
    looked_at = list(islice(ranges, _MOST_RANKED))
    bridged = _bridge_gaps(looked_at, codec)
    least = min(_bounds_of(one, codec) for one in bridged)
    if least == (0, 0) or (least == (0, 1) and len(ranges) > 1):
        return None
    rank = min(_bounds_of(one, codec) for one in looked_at)
    return IndexPlan(ranges, planned.residual, (*rank, -len(ranges)))


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """The ranges of an index that contain the rows of a predicate in the order of a column. Immutable, picklable.

    The predicate is true for exactly the rows whose encoded columns are in one of the two ranges and for which the
    residual is true. Within a range, rows ascend by the column, and rows with equal values by their keys.

    Attributes:
        values: The range of the rows that are not null in the column.
        nulls: The range of the rows that are null in the column.
        residual: The residual predicate for the rows found. None: the rows need no filter.
        equal: How many columns of the index equal a value in all of these rows.
    """

    values: KeyRange
    nulls: KeyRange
    residual: BoundPredicate | None
    equal: int


def plan_order(bound: BoundPredicate | None, by: str, codec: KeyCodec) -> OrderPlan | None:
    """Plans a read of an index that returns rows in the order of a column.

    Args:
        bound: A predicate bound to the table's schema; None for all rows.
        by: The column.
        codec: The codec of the index's columns, with their names.

    Returns:
        The plan. None unless `by` is the last column of the index and the predicate sets all columns before it to a
        single value.
    """
    position = len(codec.names) - 1
    if codec.names[position] != by:
        return None
    planned = None if bound is None else plan_keys(bound, codec)
    ranges = ALL_KEY_RANGES if planned is None else _entry_ranges(planned.ranges)
    shared = shared_columns(ranges.span, codec)
    if ranges and len(shared) < position:
        return None
    everything = KeyRange.under(b"".join(shared[:position]))
    null = KeyRange.under((everything.start or b"") + NULL_MARK) if codec.nullable[position] else NO_KEYS
    values = ranges if null.is_empty else ranges.within(KeyRange(everything.start, null.start))
    # Several ranges are read as one, so the complete predicate must filter the entries between them.
    residual = bound if planned is None or len(values) > 1 else planned.residual
    nulls = ranges.within(null).span
    return OrderPlan(values.span, nulls, residual, position)


def _entry_ranges(columns: KeyRanges) -> KeyRanges:
    """Extends single values of encoded columns to ranges of all entries with these values."""
    ends = [
        KeyRange.under(start).end if end == start + b"\0" else end
        for start, end in zip(columns.starts, columns.ends, strict=True)
    ]
    return KeyRanges(columns.starts, tuple(ends))


def _bridge_gaps(ranges: Sequence[KeyRange], codec: KeyCodec) -> list[KeyRange]:
    """Joins ranges that are separated only by a single value."""
    found = [ranges[0]]
    for one in ranges[1:]:
        gap = KeyRange(found[-1].end, one.start)
        value = b"".join(shared_columns(gap, codec))
        if value and gap == KeyRange.under(value):
            found[-1] = KeyRange(found[-1].start, one.end)
        else:
            found.append(one)
    return found


def _bounds_of(key_range: KeyRange, codec: KeyCodec) -> tuple[int, int]:
    """Returns how many columns are equal in a range, and how the next one is bounded, as in `IndexPlan.rank`."""
    shared = shared_columns(key_range, codec)
    equal = len(shared)
    if equal == len(codec.names):
        return equal, 0
    below, type_, nullable = KeyRange.under(b"".join(shared)), codec.types[equal], codec.nullable[equal]
    first = (below.start or b"") + NOT_NULL_MARK[:nullable]
    behind = (below.start or b"") + NULL_MARK if nullable else below.end
    if pa.types.is_floating(type_):
        behind = first + encode_nan(type_)
    has_lower = (key_range.start or b"") > first
    has_upper = key_range.end is not None and (behind is None or key_range.end < behind)
    if has_lower or has_upper:
        return equal, 1 + has_lower + has_upper
    last = KeyRange.under((below.start or b"") + NULL_MARK).end if nullable else below.end
    return equal, int(key_range.end is not None and (last is None or key_range.end < last))
