"""Converts a predicate into the ranges of encoded keys, or index entries, that can have matching rows.

Keys sort by the first column, then by the second, and so on, and the planner processes the columns in this order. It
divides the first column into intervals in each of which all comparisons with that column have one answer, and drops
the intervals in which the predicate cannot be true. For an interval that is a single value, it plans the next column
with the residual of the predicate. This one rule covers all operators, AND, OR, NOT and lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from scankv.model.expressions.column_truth import ColumnTruth
from scankv.model.keys.key_parts import is_one_value
from scankv.model.keys.key_range import KeyRange
from scankv.model.keys.key_ranges import KeyRanges, shared_length
from scankv.model.limits import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scankv.model.expressions.column_bounds import ColumnBounds
    from scankv.model.expressions.nodes import Predicate

MAX_POINTS: Final = 10_000
"""The most ranges and single keys together."""
MAX_RANGES: Final = 512
"""The most ranges that are not single keys. If a plan has more, neighboring ranges are read as one."""
_MOST_BYTES: Final = 4 * 1024 * 1024
_WORTH_SKIPPING: Final = 16
"""With up to this number of ranges, single keys between them are skipped. With more, they are read and filtered."""

Asked: TypeAlias = "tuple[Predicate | None, ...]"
"""The residual of each part of a conjunction; None: nothing remains."""


class RangePiece(NamedTuple):
    """A range of encodings under a prefix. An `end` of None is the end of that prefix. A point is a single value."""

    start: bytes
    end: bytes | None
    is_point: bool


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The ranges that contain the rows of a conjunction. Immutable.

    Attributes:
        ranges: The ranges. Every row for which the conjunction is true is in one of them.
        left: The parts, or their residuals, that must filter the rows in the ranges.
    """

    ranges: KeyRanges
    left: tuple[Predicate, ...]


def plan_ranges(parts: Sequence[Predicate], bounds: ColumnBounds, most_ranges: int = MAX_RANGES) -> RangePlan:
    """Plans the ranges of a conjunction.

    The number of ranges is bounded. If there are more, the ranges with the smallest gaps between them are joined, and
    the predicate filters the rows in the gaps. A plan can therefore read more rows than needed, but never misses one.

    Args:
        parts: The parts of the conjunction, bound to the table's schema.
        bounds: Computes bounds on the columns of the key or index.
        most_ranges: The most ranges that are not single keys. Ranges and single keys together are at most 10,000.
    """
    planner = _Planner(bounds, MAX_POINTS, _MOST_BYTES)
    try:
        pieces = planner.pieces(parts)
        is_small = sum(not piece.is_point for piece in pieces) <= most_ranges
    except _TooLong:
        is_small = False
    if not is_small:
        planner = _Planner(bounds, most_ranges, None)
        pieces = planner.pieces(parts)
    ranges = KeyRanges(
        tuple([piece.start for piece in pieces]),
        tuple([piece.start + b"\0" if piece.is_point else piece.end for piece in pieces]),
    )
    return RangePlan(ranges, planner.left(parts) if pieces else ())


class _TooLong(Exception):
    """Raised if the pieces take too many bytes."""


def _join(pieces: Sequence[RangePiece]) -> Iterator[RangePiece]:
    """Joins adjacent pieces. Adjacent single keys stay separate, because each of them is in only one bucket."""
    last: RangePiece | None = None
    for piece in pieces:
        if last is not None and last.end == piece.start and not (last.is_point and piece.is_point):
            last = RangePiece(last.start, piece.end, False)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _is_too_long(piece: RangePiece) -> bool:
    """Returns whether all keys of the piece are longer than a key can be."""
    return len(piece.start) > MAX_KEY_BYTES and piece.end == KeyRange.under(piece.start).end


@dataclass(slots=True)
class _Planner:
    """One run of the planner. Collects the residuals of all pieces that it makes.

    Attributes:
        bounds: Computes bounds on the columns.
        most: The most pieces.
        room_bytes: How many bytes the pieces under values of earlier columns may still take. None: unlimited.
    """

    bounds: ColumnBounds
    most: int
    room_bytes: int | None
    _asked: dict[tuple[int, ...], Asked] = field(default_factory=dict)

    def pieces(self, parts: Sequence[Predicate]) -> list[RangePiece]:
        """Returns the pieces of a conjunction, ascending. Raises _TooLong."""
        return [piece for piece in _join(self.plan(tuple(parts), 0, self.most)) if not _is_too_long(piece)]

    def left(self, parts: Sequence[Predicate]) -> tuple[Predicate, ...]:
        """Returns the residual of each part: the one that all pieces have in common, else the complete part."""
        found = []
        for part, forms in zip(parts, zip(*self._asked.values(), strict=True), strict=True):
            first, *others = {id(form): form for form in forms}.values()
            if first is None and not others:
                continue
            is_same = first is not None and all(form is not None and form == first for form in others)
            found.append(first if first is not None and is_same else part)
        return tuple(found)

    def plan(self, asked: Asked, position: int, most: int) -> list[RangePiece]:
        """Plans the columns from `position` on; returns at most `most` ascending pieces. Raises _TooLong."""
        truth = ColumnTruth(self.bounds, position, [part for part in asked if part is not None])
        level = _Level(self, truth, asked, position)
        runs = level.runs()
        if len(runs) > most:
            runs = _coarsen(runs, truth, most)
        below = most // max(len(runs), 1)
        return [piece for run in runs for piece in level.pieces(run, below)]

    def under(self, start: bytes, end: bytes | None, pieces: Sequence[RangePiece]) -> list[RangePiece]:
        """Returns the pieces with a prefix added. Raises _TooLong."""
        found = [
            RangePiece(start + piece.start, end if piece.end is None else start + piece.end, piece.is_point)
            for piece in pieces
        ]
        if self.room_bytes is not None:
            self.room_bytes -= sum(len(piece.start) for piece in found)
            if self.room_bytes < 0:
                raise _TooLong
        return found

    def record_residual(self, asked: Asked) -> None:
        """Records the residual of a piece."""
        self._asked[tuple(map(id, asked))] = asked


class _RangeRun(NamedTuple):
    """Consecutive intervals, from `first` to `last` inclusive. `group` is None if they are of several groups."""

    first: int
    last: int
    group: int | None


class _Level:
    """One column under one prefix: decides which of its intervals are read, and how."""

    def __init__(self, planner: _Planner, truth: ColumnTruth, asked: Asked, position: int) -> None:
        self._planner = planner
        self._truth = truth
        self._asked = asked
        self._position = position
        self._codec = planner.bounds.codec
        self._is_last = position + 1 == len(self._codec.names)
        self._left: dict[int, Asked] = {}
        self._below: dict[int, list[RangePiece]] = {}
        self._deeper: dict[int, bool] = {}

    def runs(self) -> list[_RangeRun]:
        """Returns the intervals in which all parts may be true, joined unless the next column is planned."""
        alive = self._truth.possible_intervals([part for part in self._asked if part is not None])
        runs: list[_RangeRun] = []
        places = alive.tolist()
        for place, group in zip(places, self._truth.groups(alive), strict=True):
            if group not in self._left:
                self._left[group] = self._left_in(place)
                self._deeper[group] = self._is_last or self._asks_next(self._left[group])
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.last + 1 == place
                and last.group == group
                and not (self._deeper[group] and (self._is_value(place) or self._is_value(last.last)))
            ):
                runs[-1] = last._replace(last=place)
            else:
                runs.append(_RangeRun(place, place, group))
        if self._is_last and len(runs) > _WORTH_SKIPPING:
            runs = self._bridge_gaps(runs)
        return runs

    def _bridge_gaps(self, runs: Sequence[_RangeRun]) -> list[_RangeRun]:
        """Joins ranges that are separated by a single key, because a seek takes longer than reading one row."""
        found: list[_RangeRun] = []
        for run in runs:
            last = found[-1] if found else None
            if (
                last is not None
                and run.first - last.last == 2
                and self._is_value(last.last + 1)
                and not self._is_value(last.last)
                and not self._is_value(run.first)
            ):
                found[-1] = _RangeRun(last.first, run.last, None)
            else:
                found.append(run)
        return found

    def _left_in(self, place: int) -> Asked:
        return tuple(None if part is None else self._truth.left(part, place) for part in self._asked)

    def _asks_next(self, asked: Asked) -> bool:
        """Returns whether the predicate restricts the next column."""
        name = self._codec.names[self._position + 1]
        return any(
            path.names == (name,) for part in asked if part is not None for node in part.walk() for path in node.paths
        )

    def _is_value(self, place: int) -> bool:
        return self._truth.starts[place] in self._truth.values

    def pieces(self, run: _RangeRun, most: int) -> list[RangePiece]:
        """Returns the pieces of a run, at most `most`."""
        start, end = self._truth.starts[run.first], self._truth.end_of(run.last)
        if run.group is None:
            self._planner.record_residual(self._asked)
            return [RangePiece(start, end, False)]
        is_value = run.first == run.last and (
            self._is_value(run.first) or is_one_value(start, end, self._codec, self._position)
        )
        if is_value and not self._is_last and self._deeper[run.group]:
            if run.group not in self._below:
                self._below[run.group] = self._planner.plan(self._left[run.group], self._position + 1, most)
            return self._planner.under(start, end, self._below[run.group])
        self._planner.record_residual(self._left[run.group])
        return [RangePiece(start, end, is_value and self._is_last)]


def _coarsen(runs: Sequence[_RangeRun], truth: ColumnTruth, most: int) -> list[_RangeRun]:
    """Returns at most `most` runs by joining those with the smallest gaps between them."""
    gaps = [_gap(truth.starts[one.last + 1], truth.starts[other.first]) for one, other in pairwise(runs)]
    kept = sorted(sorted(range(len(gaps)), key=gaps.__getitem__, reverse=True)[: max(most, 1) - 1])
    found = []
    first = 0
    for last in [*kept, len(runs) - 1]:
        one = first == last
        found.append(_RangeRun(runs[first].first, runs[last].last, runs[first].group if one else None))
        first = last + 1
    return found


def _gap(low: bytes, high: bytes) -> tuple[int, int]:
    """Returns the distance of two encodings, for comparison: the earlier they differ, the greater, then by how much."""
    same = shared_length(low, high)
    low_rest, high_rest = (int.from_bytes(key[same : same + 8].ljust(8, b"\0")) for key in (low, high))
    return -same, high_rest - low_rest
