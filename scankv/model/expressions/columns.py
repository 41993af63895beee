"""Predicates written in Python: `(col("score") > 100) & col("player").is_in(["ann", "bob"])`."""

from __future__ import annotations

from typing import NoReturn

from scankv.model.errors import UsageError
from scankv.model.expressions.like_patterns import like
from scankv.model.expressions.literals import Literal, literal_of, values_of
from scankv.model.expressions.nodes import (
    NO_TRUTH,
    Comparison,
    FieldPath,
    IsIn,
    IsNull,
    Match,
    Not,
    Operator,
    Predicate,
    TextMatch,
    all_of,
    any_of,
    other_predicate,
)


def col(name: str) -> Column:
    """Names a column for use in a predicate; `col("a")["b"]` names a field of a struct.

    Whether the column exists and has a comparable type is checked when the predicate is used with a table.
    """
    return Column(FieldPath((name,)))


class Column:
    """A column, or a field within a struct column, for comparisons. Immutable, hashable, picklable.

    `==` and the other comparisons return predicates. A boolean column is itself a predicate:
    `col("active") & ~col("gone")`. To find out whether two columns are the same, compare their `path`.

    Attributes:
        path: The name of the column, then the names of the fields from the outside in.
    """

    __slots__ = ("path",)

    path: FieldPath

    def __init__(self, path: FieldPath) -> None:
        object.__setattr__(self, "path", path)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a column is immutable: {name} cannot be set")

    def __reduce__(self) -> tuple[object, ...]:
        return (Column, (self.path,))

    def __getitem__(self, name: str) -> Column:
        if not isinstance(name, str):
            raise UsageError(f"the name of a struct's field must be text, not {type(name).__name__}")
        return Column(FieldPath((*self.path.names, name)))

    def __iter__(self) -> NoReturn:
        raise UsageError("a column cannot be iterated")

    def field(self, name: str) -> Column:
        """Returns a field of this struct column, the same as `column[name]`."""
        return self[name]

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]  # it builds a predicate
        return self._compare(Operator.EQUAL, other)

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]  # as above
        return self._compare(Operator.NOT_EQUAL, other)

    def __lt__(self, other: object) -> Predicate:
        return self._compare(Operator.LESS, other)

    def __le__(self, other: object) -> Predicate:
        return self._compare(Operator.LESS_EQUAL, other)

    def __gt__(self, other: object) -> Predicate:
        return self._compare(Operator.GREATER, other)

    def __ge__(self, other: object) -> Predicate:
        return self._compare(Operator.GREATER_EQUAL, other)

    def is_in(self, values: object) -> Predicate:
        """Tests whether the column is one of up to 100,000 values: a list, set, or array of NumPy, pandas or Arrow.

        As in SQL, if the values include None, the answer is unknown for rows that equal no other value, so `~is_in`
        keeps no rows.
        """
        return IsIn(self.path, values_of(values))

    def is_null(self) -> Predicate:
        """Tests whether the column is null. NaN is not null."""
        return IsNull(self.path)

    def is_not_null(self) -> Predicate:
        """Tests whether the column is not null."""
        return Not(IsNull(self.path))

    def between(self, low: object, high: object) -> Predicate:
        """Tests whether the column is at least `low` and at most `high`, both inclusive."""
        return all_of([self >= low, self <= high])

    def starts_with(self, text: str | bytes) -> Predicate:
        """Tests whether this string or binary column starts with a text or bytes of up to 64 KiB. Case-sensitive."""
        return self._match(Match.STARTS_WITH, text)

    def contains(self, text: str | bytes) -> Predicate:
        """Tests whether this string or binary column contains a text or bytes of up to 64 KiB. Case-sensitive."""
        return self._match(Match.CONTAINS, text)

    def ends_with(self, text: str | bytes) -> Predicate:
        """Tests whether this string or binary column ends with a text or bytes of up to 64 KiB. Case-sensitive."""
        return self._match(Match.ENDS_WITH, text)

    def like(self, pattern: str, escape: str | None = None) -> Predicate:
        """Tests whether this string column matches a pattern, as SQL's LIKE does. Case-sensitive.

        `%` stands for any number of characters, including none, and `_` for one character; both match line breaks, too.

        Args:
            pattern: The pattern. It has up to 1,000 characters, unless it tests only for an equal text, a prefix, a
                suffix or a substring. After its first `%`, it has up to 8 `_`, because each can double the time of the
                search. Those directly after that `%` do not count.
            escape: The escape character, after which the next character stands for itself. Empty: the pattern has no
                escape character. Required if the pattern has a backslash, because databases differ about it. Default:
                no escape character.

        Raises:
            UsageError: The pattern is not text, is too long, has too many `_`, ends with `escape`, or has a backslash
                without `escape`; or `escape` has more than one character.
        """
        for argument in (pattern, "" if escape is None else escape):
            if not isinstance(argument, str):
                raise UsageError(f"the arguments of like must be text, not {type(argument).__name__}")
        return like(self.path, pattern, escape)

    def __and__(self, other: object) -> Predicate:
        return all_of([self._as_predicate(), other_predicate(other, "&")])

    def __rand__(self, other: object) -> Predicate:
        return all_of([other_predicate(other, "&"), self._as_predicate()])

    def __or__(self, other: object) -> Predicate:
        return any_of([self._as_predicate(), other_predicate(other, "|")])

    def __ror__(self, other: object) -> Predicate:
        return any_of([other_predicate(other, "|"), self._as_predicate()])

    def __invert__(self) -> Predicate:
        return Not(self._as_predicate())

    def __bool__(self) -> NoReturn:
        raise UsageError(NO_TRUTH)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return repr(self.path)

    def _as_predicate(self) -> Predicate:
        return Comparison(self.path, Operator.EQUAL, literal_of(True))

    def _compare(self, operator: Operator, other: object) -> Predicate:
        if isinstance(other, Column):
            return Comparison(self.path, operator, other.path)
        if isinstance(other, Predicate):
            raise UsageError("a column cannot be compared with a predicate: join predicates with & and |")
        value = literal_of(other)
        if value.is_null:
            raise UsageError(f"{self!r} {operator.value} None is unknown for every row: use is_null() or is_not_null()")
        return Comparison(self.path, operator, value)

    def _match(self, match: Match, text: object) -> Predicate:
        if not isinstance(text, str | bytes):
            raise UsageError(f"the argument of {match.value} must be text or bytes, not {type(text).__name__}")
        return TextMatch(self.path, match, Literal(literal_of(text).scalar))
