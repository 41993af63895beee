"""Does one order of all operations explain what every client saw? The search of Wing and Gong, with memory.

An order explains a history if each operation takes effect between its start and its end, and reads what the operations
before it have left. Operations that share no key, directly or through others, are searched for separately: the order of
such groups cannot matter. Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); the memory of states that
led nowhere is that of Lowe, "Testing for Linearizability" (2017).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.model.operations import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.model.operations import Key, RecordedOperation, Value

MOST_POSITIONS: Final = 300_000
"""How many positions a search may visit."""


class UndecidedHistory(Exception):
    """A search has visited too many positions. The history is neither right nor wrong: record a shorter one."""


def problem_of(operations: Sequence[RecordedOperation]) -> str | None:
    """Returns why no order explains the operations, or None if one does. At first, no row exists.

    Looks at each key alone first, because a fault of one key is easier to understand than one of a scan.

    Raises:
        UndecidedHistory: The search was given up.
    """
    return _problem_of_origins(operations) or next(
        (
            problem
            for part in (*parts_by_key(operations), *connected_parts(operations))
            if (problem := _Search(part).problem())
        ),
        None,
    )


def parts_by_key(operations: Iterable[RecordedOperation]) -> list[list[RecordedOperation]]:
    """Returns for each key what the operations did to it alone."""
    parts: defaultdict[Key, list[RecordedOperation]] = defaultdict(list)
    for each in operations:
        for key in each.keys:
            reads = {key: each.reads[key]} if key in each.reads else {}
            writes = {key: each.writes[key]} if key in each.writes else {}
            parts[key].append(replace(each, reads=reads, writes=writes))
    return [parts[key] for key in sorted(parts)]


def connected_parts(operations: Sequence[RecordedOperation]) -> list[list[RecordedOperation]]:
    """Divides the operations into the smallest groups that have no key in common."""
    root: dict[Key, Key] = {}

    def root_of(key: Key) -> Key:
        while (above := root.setdefault(key, key)) != key:
            key = above
        return key

    for each in operations:
        first, *others = map(root_of, each.keys)
        root |= dict.fromkeys(others, first)
    parts: defaultdict[Key, list[RecordedOperation]] = defaultdict(list)
    for each in operations:
        parts[root_of(min(each.keys))].append(each)
    return list(parts.values())


def _problem_of_origins(operations: Sequence[RecordedOperation]) -> str | None:
    """Returns which operation saw a value that nothing had begun to write. None: no operation did."""
    begun: dict[tuple[Key, Value], float] = {}
    for each in operations:
        for write in each.writes.items():
            begun[write] = min(begun.get(write, FOREVER), each.start)
    for each in operations:
        for key, value in each.reads.items():
            if value is not None and begun.get((key, value), FOREVER) > each.end:
                return f"nothing had written {value} to {key} before the end of: {each}"
    return None


class _OrderPosition(NamedTuple):
    """How far an order has come: operations from `first` on of which `done` are ordered, as bits; and what rows are.

    `unanswered` are the ordered ones among those without an answer, as bits.
    """

    first: int
    done: int
    unanswered: int
    state: tuple[Value, ...]

    def has(self, number: int) -> bool:
        """Whether an operation with an answer is ordered."""
        return number < self.first or bool(self.done >> (number - self.first) & 1)


class _Search:
    """Looks for an order of operations that share keys."""

    def __init__(self, operations: Sequence[RecordedOperation]) -> None:
        ordered = sorted(operations, key=lambda each: each.start)
        self._answered = [each for each in ordered if each.end != FOREVER]
        self._readers: defaultdict[tuple[Key, Value], list[int]] = defaultdict(list)
        for number, each in enumerate(self._answered):
            for read in each.reads.items():
                self._readers[read].append(number)
        # An effect that no reader saw needs no place in the order.
        seen = {read for each in ordered for read in each.reads.items()}
        self._unanswered = [each for each in ordered if each.end == FOREVER and seen & set(each.writes.items())]
        self._writers: defaultdict[tuple[Key, Value], list[int]] = defaultdict(list)
        for number, each in enumerate([*self._answered, *self._unanswered]):
            for write in each.writes.items():
                self._writers[write].append(number)
        self._place = {key: place for place, key in enumerate(sorted({key for each in ordered for key in each.keys}))}

    def problem(self) -> str | None:
        """Returns what stands in the way of every order, or None if it finds one."""
        begin = self._with_reads(_OrderPosition(0, 0, 0, (None,) * len(self._place)))
        seen, furthest = {begin}, begin
        paths = [self._next_positions(begin)]
        while paths:
            position = next(paths[-1], None)
            if position is None:
                paths.pop()
            elif position not in seen:
                seen.add(position)
                if len(seen) > MOST_POSITIONS:
                    raise UndecidedHistory(f"more than {MOST_POSITIONS:,} positions; {self._report(furthest)}")
                furthest = max(furthest, position, key=_count)
                paths.append(self._next_positions(position))
            if furthest.first == len(self._answered):
                return None
        return self._report(furthest) if furthest.first < len(self._answered) else None

    def _next_positions(self, position: _OrderPosition) -> Iterator[_OrderPosition]:
        """Returns the positions after each operation that may be next."""
        enabled = self._enabled(position)
        for number in sorted(enabled, key=lambda number: self._answered[number].end):
            operation = self._answered[number]
            if operation.writes and self._fits(operation, position):
                done = position.done | 1 << (number - position.first)
                if after := self._after(operation, position._replace(done=done)):
                    yield after
        for number, operation in enumerate(self._unanswered):
            bit = 1 << number
            if not position.unanswered & bit and self._is_due(operation, number, position, enabled):
                if after := self._after(operation, position._replace(unanswered=position.unanswered | bit)):
                    yield after

    def _enabled(self, position: _OrderPosition) -> list[int]:
        """Returns the answered operations that began before each of the others that are left has ended."""
        enabled, end = [], FOREVER
        for number in range(position.first, len(self._answered)):
            if self._answered[number].start > end:
                break
            if not position.has(number):
                enabled.append(number)
                end = min(end, self._answered[number].end)
        # One that ended early may exclude some that were found before it.
        return [number for number in enabled if self._answered[number].start < end]

    def _is_due(self, operation: RecordedOperation, number: int, position: _OrderPosition, enabled: list[int]) -> bool:
        """Whether an operation without an answer may be next: only where one after it depends on it.

        Anywhere else it could just as well come later.
        """
        end = min((self._answered[each].end for each in enabled), default=FOREVER)
        if operation.start > end or not self._fits(operation, position):
            return False
        near = [self._answered[each] for each in enabled]
        near += [
            each
            for other, each in enumerate(self._unanswered)
            if other != number and not position.unanswered >> other & 1
        ]
        if len(operation.writes) == 1 and not operation.reads:
            return any(read in operation.writes.items() for each in near for read in each.reads.items())
        return any(operation.keys & each.keys for each in near)

    def _fits(self, operation: RecordedOperation, position: _OrderPosition) -> bool:
        """Whether an operation would read what it did read."""
        return all(position.state[self._place[key]] == value for key, value in operation.reads.items())

    def _after(self, operation: RecordedOperation, position: _OrderPosition) -> _OrderPosition | None:
        """Returns the position after the writes of an operation. None: a reader that is left would never fit again."""
        state = list(position.state)
        for key, value in operation.writes.items():
            place = self._place[key]
            if state[place] != value and self._is_needed((key, state[place]), position):
                return None
            state[place] = value
        return self._with_reads(position._replace(state=tuple(state)))

    def _is_needed(self, read: tuple[Key, Value], position: _OrderPosition) -> bool:
        """Whether a value that is about to be overwritten has a reader left, and no writer left."""
        readers = takewhile(lambda number: number >= position.first, reversed(self._readers.get(read, ())))
        if all(map(position.has, readers)):
            return False
        count = len(self._answered)
        return all(
            position.has(writer) if writer < count else position.unanswered >> (writer - count) & 1
            for writer in self._writers.get(read, ())
        )

    def _with_reads(self, position: _OrderPosition) -> _OrderPosition:
        """Returns the position after all reads that fit now, which are never in the way of anything."""
        first, done = position.first, position.done
        while True:
            fitting = [
                number
                for number in self._enabled(position)
                if not self._answered[number].writes and self._fits(self._answered[number], position)
            ]
            for number in fitting:
                done |= 1 << (number - first)
            while done & 1:
                first, done = first + 1, done >> 1
            position = position._replace(first=first, done=done)
            if not fitting:
                return position

    def _report(self, position: _OrderPosition) -> str:
        enabled = self._enabled(position)
        left = [self._answered[number] for number in enabled]
        state = {key: position.state[place] for key, place in self._place.items() if any(key in e.keys for e in left)}
        later = sorted(
            {
                reader
                for each in left
                for key in each.writes
                for reader in self._readers.get((key, state[key]), ())
                if not position.has(reader) and reader not in enabled
            }
        )
        count = _count(position)
        lines = [f"after {count} operations in order, the rows are {state}, and none of these can be next:"]
        lines += [f"  {self._with_differences(each, state)}" for each in left]
        # Of many readers, the first ones show as much as all.
        lines += [f"  these rows are still to be read by {self._answered[number]}" for number in later[:3]]
        return "\n".join(lines)

    def _with_differences(self, operation: RecordedOperation, state: dict[Key, Value]) -> RecordedOperation:
        """Returns an operation with only those reads that do not fit, as a scan has many."""
        return replace(operation, reads={key: seen for key, seen in operation.reads.items() if seen != state[key]})


def _count(position: _OrderPosition) -> int:
    return position.first + position.done.bit_count()
