"""Random predicates, each with what it is of a row in plain Python: mostly about the columns of an index."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from aio_client import col
from tests.model.index_oracle import plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from aio_client import Predicate
    from tests.model.index_oracle import Truth

_COMPARISONS: list[Callable[[Any, Any], Any]] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


@dataclass(frozen=True)
class PredicateCase:
    """A predicate, and what it is of a row."""

    predicate: Predicate
    truth: Truth

    def __and__(self, other: PredicateCase) -> PredicateCase:
        return PredicateCase(self.predicate & other.predicate, lambda row: _both(self.truth(row), other.truth(row)))

    def __or__(self, other: PredicateCase) -> PredicateCase:
        return PredicateCase(self.predicate | other.predicate, lambda row: _either(self.truth(row), other.truth(row)))

    def __invert__(self) -> PredicateCase:
        return PredicateCase(~self.predicate, lambda row: _not(self.truth(row)))


class RandomPredicates:
    """Makes predicates about a table.

    Args:
        random: Where they come from.
        schema: The columns; those that have no values are not asked about.
        values: Values to compare each column with, of its type: those that it has, and others.
    """

    def __init__(self, random: Random, schema: pa.Schema, values: Mapping[str, Sequence[pa.Scalar]]) -> None:
        self._random = random
        self._types = {name: schema.field(name).type for name in values}
        self._values = values

    def any(self, depth: int = 2) -> PredicateCase:
        """About any columns, with AND, OR and NOT."""
        how = self._random.random()
        if depth == 0 or how < 0.4:
            return self.about(self._random.choice(list(self._values)))
        if how < 0.55:
            return ~self.any(depth - 1)
        one, other = self.any(depth - 1), self.any(depth - 1)
        return one & other if how < 0.8 else one | other

    def for_index(self, columns: Sequence[str]) -> PredicateCase:
        """As an index is good for: equal in leading columns, mostly something about the next one, and maybe more."""
        equal = self._random.randint(0, len(columns))
        parts = [self.equal(name) for name in columns[:equal]]
        if equal < len(columns) and (not parts or self._random.random() < 0.7):
            parts += [self.about(columns[equal]) for _ in range(self._random.choice([1, 1, 2]))]
        if self._random.random() < 0.3:
            parts.append(self.any())
        self._random.shuffle(parts)
        question = reduce(operator.and_, parts)
        return question | self.any(1) if self._random.random() < 0.05 else question

    def for_order(self, columns: Sequence[str]) -> PredicateCase | None:
        """As the order of the last column is good for: equal in all before it, maybe something about it, maybe more."""
        parts = [self._compared(name, operator.eq) for name in columns[:-1]]
        if self._random.random() < 0.4:
            parts += [self.about(columns[-1]) for _ in range(self._random.choice([1, 2]))]
        if self._random.random() < 0.2:
            parts.append(self.any(1))
        return reduce(operator.and_, parts) if parts else None

    def equal(self, name: str) -> PredicateCase:
        """Equal to a value, or to one of some, or null."""
        how = self._random.random()
        return self._compared(name, operator.eq) if how < 0.7 else self._in(name) if how < 0.85 else self._null(name)

    def about(self, name: str) -> PredicateCase:
        """One thing about one column."""
        kinds: list[Callable[[str], PredicateCase]] = [
            lambda name: self._compared(name, self._random.choice(_COMPARISONS)),
            lambda name: self._compared(name, self._random.choice(_COMPARISONS)),
            self._between,
            self._in,
            self._null,
        ]
        if pat.is_string(self._types[name]) or pat.is_binary(self._types[name]):
            kinds += [self._starts_with, self._contains]
        if any(type_ == self._types[name] for other, type_ in self._types.items() if other != name):
            kinds.append(self._compared_with_a_column)
        return self._random.choice(kinds)(name)

    def _value(self, name: str) -> pa.Scalar:
        return self._random.choice(self._values[name])

    def _compared(self, name: str, compare: Callable[[Any, Any], Any]) -> PredicateCase:
        value = self._value(name)
        return PredicateCase(compare(col(name), value), _truth(name, compare, plain_scalar(value)))

    def _compared_with_a_column(self, name: str) -> PredicateCase:
        compare = self._random.choice(_COMPARISONS)
        same = [other for other, type_ in self._types.items() if other != name and type_ == self._types[name]]
        other = self._random.choice(same)

        def truth(row: Mapping[str, Any]) -> bool | None:
            return None if row[name] is None or row[other] is None else compare(row[name], row[other])

        return PredicateCase(compare(col(name), col(other)), truth)

    def _between(self, name: str) -> PredicateCase:
        low, high = self._value(name), self._value(name)
        above, below = _truth(name, operator.ge, plain_scalar(low)), _truth(name, operator.le, plain_scalar(high))
        return PredicateCase(col(name).between(low, high), lambda row: _both(above(row), below(row)))

    def _in(self, name: str) -> PredicateCase:
        values = [self._value(name) for _ in range(self._random.choice([0, 1, 2, 2, 3, 5]))]
        if self._random.random() < 0.1:
            values.append(pa.scalar(None, self._types[name]))
        others = [plain_scalar(value) for value in values]

        def truth(row: Mapping[str, Any]) -> bool | None:
            if not others:
                return False
            if row[name] is None:
                return None
            return any(row[name] == other for other in others) or (None if None in others else False)

        return PredicateCase(col(name).is_in(pa.array(values, self._types[name])), truth)

    def _null(self, name: str) -> PredicateCase:
        if self._random.random() < 0.5:
            return PredicateCase(col(name).is_null(), lambda row: row[name] is None)
        return PredicateCase(col(name).is_not_null(), lambda row: row[name] is not None)

    def _starts_with(self, name: str) -> PredicateCase:
        text, part = self._part(name, from_start=True)
        return PredicateCase(
            col(name).starts_with(text), lambda row: None if row[name] is None else row[name].startswith(part)
        )

    def _contains(self, name: str) -> PredicateCase:
        text, part = self._part(name, from_start=False)
        return PredicateCase(col(name).contains(text), lambda row: None if row[name] is None else part in row[name])

    def _part(self, name: str, *, from_start: bool) -> tuple[str | bytes, bytes]:
        """A part of a value, as it is given to the predicate and as bytes."""
        value: str | bytes = self._value(name).as_py()
        start = 0 if from_start else self._random.randint(0, 1)
        part = value[start : start + self._random.randint(0, 3)]
        return part, part.encode() if isinstance(part, str) else part


def _truth(name: str, compare: Callable[[Any, Any], Any], other: Any) -> Truth:
    return lambda row: None if row[name] is None else compare(row[name], other)


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else None if one is None or other is None else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    return _not(_both(_not(one), _not(other)))


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
