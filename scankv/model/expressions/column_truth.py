"""Divides one encoded column into intervals in which the parts of a predicate are true, false, or undecided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scankv.model.expressions.nodes import (
    And,
    Constant,
    Not,
    Or,
    Predicate,
    all_of,
    any_of,
)
from scankv.model.keys.key_range import NO_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from scankv.model.expressions.column_bounds import ColumnBounds

    Answers = npt.NDArray[np.bool_]
    """One column per interval and four rows: the predicate must be true, may be true, must be false, may be false."""

_MOST_CELLS: Final = 1_000_000
"""The most nodes times intervals to evaluate. Beyond it, fewer values of lists are distinguished."""
_MOST_LISTED: Final = 1024
"""The most values of a list that are distinguished."""
_NEGATED: Final = [2, 3, 0, 1]


class ColumnTruth:
    """One column of a key or an index, divided into intervals in each of which every comparison has one answer.

    The intervals consist of encodings, so nothing is decoded. Each comparison is evaluated once per interval.

    Attributes:
        starts: The start of each interval. The first interval starts with empty bytes.
        values: The starts of intervals that contain a single value, and so are its encoding.
    """

    def __init__(self, bounds: ColumnBounds, position: int, parts: Sequence[Predicate]) -> None:
        """Divides the column.

        Args:
            bounds: Computes the bounds of comparisons.
            position: The position of the column.
            parts: The parts of the conjunction.
        """
        nodes = [node for part in parts for node in part.walk()]
        atoms = {id(node): node for node in nodes if not node.operands}
        longest = min(_MOST_LISTED, _MOST_CELLS // (2 * max(len(nodes), 1)))
        told = {key: one for key, atom in atoms.items() if (one := bounds.truth(position, atom, longest)) is not None}
        cuts = {end for one in told.values() for pair in one.pairs for end in pair if end}
        null = bounds.nulls(position) if told else NO_KEYS
        if not null.is_empty:
            cuts |= {end for end in (null.start, null.end) if end}
        self.starts: list[bytes] = [b"", *sorted(cuts)]
        self.values: set[bytes] = {value for one in told.values() for value in one.values}
        self._places = {start: place for place, start in enumerate(self.starts)}
        # No encoding follows null.
        self._impossible = None if null.is_empty or null.end is None else self._places[null.end]
        self._given: dict[int, Answers] = {}
        nulls = np.zeros(len(self.starts), np.bool_)
        if null.start is not None and not null.is_empty:
            nulls[self._slice(null.start, null.end)] = True
        self._leaves: list[Answers] = []
        for key, one in told.items():
            within = np.zeros(len(self.starts), np.bool_)
            for start, end in one.pairs:
                within[self._slice(start, end)] = True
            answers = np.empty((4, len(self.starts)), np.bool_)
            true, other = (~within, within) if one.negated else (within, ~within)
            if not one.of_nulls:
                true, other = true & ~nulls, other & ~nulls
            answers[0], answers[1] = true & one.exact, true
            answers[2] = other & (not one.has_null)
            answers[3] = (other | (true & (not one.exact))) & (not one.has_null)
            self._given[key] = answers
            self._leaves.append(answers)
        self._all: dict[int, Answers] = {}
        self._children: dict[int, npt.NDArray[np.bool_]] = {}
        self._parts = {id(part): self._answers(part) for part in parts}

    def end_of(self, place: int) -> bytes | None:
        """Returns the end of an interval; None for the last one."""
        return self.starts[place + 1] if place + 1 < len(self.starts) else None

    def possible_intervals(self, parts: Sequence[Predicate]) -> npt.NDArray[np.int64]:
        """Returns the intervals, ascending, in which all of these parts may be true."""
        may = np.ones(len(self.starts), np.bool_)
        for part in parts:
            may &= self._parts[id(part)][1]
        if self._impossible is not None:
            may[self._impossible] = False
        return np.flatnonzero(may)

    def groups(self, places: npt.NDArray[np.int64]) -> list[int]:
        """Returns a group number for each interval; within a group, every comparison has one answer."""
        if not self._leaves:
            return [0] * len(places)
        bits = np.packbits(np.concatenate([leaf[:, places] for leaf in self._leaves]), axis=0)
        rows = np.ascontiguousarray(bits.T)
        numbers: dict[bytes, int] = {}
        return [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows]

    def left(self, part: Predicate, place: int) -> Predicate | None:
        """Returns the residual of a part within an interval in which it may be true; None if the part is true there."""
        return self._left(part, place, wanted=True)

    def _left(self, node: Predicate, place: int, *, wanted: bool) -> Predicate | None:
        """Returns the residual that is true exactly where the node is true (or false, if `wanted` is False).

        The node may have that value in the interval. None: it has that value everywhere in the interval.
        """
        must, may = (0, 1) if wanted else (2, 3)
        if self._all[id(node)][must, place]:
            return None
        match node:
            case Not(operand=operand):
                return self._left(operand, place, wanted=not wanted)
            case And(parts=parts) | Or(parts=parts):
                # And is true if all parts are, and false if one part is. Or is the other way around.
                needs_all = isinstance(node, And) == wanted
                open_ = self._children[id(node)][:, :, place]
                asked = np.flatnonzero(~open_[:, must] if needs_all else open_[:, may])
                found = [self._left(parts[number], place, wanted=wanted) for number in asked.tolist()]
                left = [one for one in found if one is not None]
                if sum(one.nodes for one in left) < node.nodes - 1:
                    return all_of(left) if needs_all else any_of(left)
                # The residual is not shorter. The original node is certainly within the limits of a predicate.
                return node if wanted else Not(node)
            case _:
                return node if wanted else Not(node)

    def _answers(self, node: Predicate) -> Answers:
        answers = self._all[id(node)] = self._work_out(node)
        return answers

    def _work_out(self, node: Predicate) -> Answers:
        match node:
            case Constant(value=value):
                return self._same(true=value is True, false=value is False)
            case Not(operand=operand):
                return self._answers(operand)[_NEGATED]
            case And(parts=parts) | Or(parts=parts):
                children = self._children[id(node)] = np.stack([self._answers(part) for part in parts])
                true, false = (np.all, np.any) if isinstance(node, And) else (np.any, np.all)
                return np.concatenate([true(children[:, :2], axis=0), false(children[:, 2:], axis=0)])
            case _:
                given = self._given.get(id(node))
                if given is not None:
                    return given
                unknown = self._same(true=False, false=False)
                unknown[1] = unknown[3] = True
                return unknown

    def _same(self, *, true: bool, false: bool) -> Answers:
        answers = np.empty((4, len(self.starts)), np.bool_)
        answers[:2], answers[2:] = true, false
        return answers

    def _slice(self, start: bytes, end: bytes | None) -> slice:
        return slice(self._places[start], None if end is None else self._places[end])
