"""Converts the patterns of SQL's LIKE to predicates: an equality, prefix, suffix, substring, or any other pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError
from scankv.model.expressions.literals import literal_of
from scankv.model.expressions.nodes import Comparison, Match, Operator, TextMatch

if TYPE_CHECKING:
    from scankv.model.expressions.nodes import FieldPath, Predicate

MAX_PATTERN_LENGTH: Final = 1_000
"""The most characters of a pattern that is more than an equality, a prefix, a suffix or a substring."""

MAX_LATE_UNDERSCORES: Final = 8
"""The most `_` after the first `%` of a pattern. Each may double the states in which a search can be."""

STORED_ESCAPE: Final = "\\"
"""The escape character of the patterns of `Match.LIKE`."""

_SPECIAL: Final = frozenset("%_" + STORED_ESCAPE)


def like(path: FieldPath, pattern: str, escape: str | None) -> Predicate:
    """Returns the predicate that a text matches a pattern: `%` is any number of characters, and `_` one character.

    Args:
        path: A string column.
        pattern: The pattern.
        escape: The escape character, after which any character stands for itself. Empty: no escape character exists.
            None: the same, but a backslash is refused, because it is an escape character in some databases.

    Raises:
        UsageError: The pattern ends with the escape character, has a backslash without `escape`, is too long, or has
            too many `_`; or `escape` is longer than one character.
    """
    if escape is None and STORED_ESCAPE in pattern:
        raise UsageError(
            "a LIKE pattern with a backslash needs ESCAPE: with ESCAPE '\\', the backslash quotes the next character; "
            "with ESCAPE '', it is a character like any other"
        )
    if escape is not None and len(escape) > 1:
        raise UsageError(f"ESCAPE must be one character, or none, not {len(escape):,}")
    parts = _parts(pattern, escape or "")
    wild = [number for number, part in enumerate(parts) if part in ("%", "_")]
    text = "".join(part[-1] for part in parts if part != "%")
    if not wild:
        return Comparison(path, Operator.EQUAL, literal_of(text))
    if all(parts[number] == "%" for number in wild):
        last = len(parts) - 1
        match = {(last,): Match.STARTS_WITH, (0,): Match.ENDS_WITH, (0, last): Match.CONTAINS}.get(tuple(wild))
        if match is not None:
            return TextMatch(path, Match.STARTS_WITH if not text else match, literal_of(text))
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise UsageError(
            f"the LIKE pattern has {len(pattern):,} characters; the limit is {MAX_PATTERN_LENGTH:,}: use a shorter one"
        )
    if (found := _late_underscores(parts)) > MAX_LATE_UNDERSCORES:
        raise UsageError(
            f"the LIKE pattern has {found:,} _ after its first %; the limit is {MAX_LATE_UNDERSCORES}: use fewer, or "
            "replace several by %"
        )
    return TextMatch(path, Match.LIKE, literal_of("".join(parts)))


def late_underscores(pattern: str) -> int:
    """Returns the number of `_` after the first `%` of a pattern of `Match.LIKE`."""
    return _late_underscores(_parts(pattern, STORED_ESCAPE))


def prefix_of(pattern: str) -> str:
    """Returns the text with which every match of a pattern of `Match.LIKE` starts."""
    found = []
    for part in _parts(pattern, STORED_ESCAPE):
        if part in ("%", "_"):
            break
        found.append(part[-1])
    return "".join(found)


def _late_underscores(parts: list[str]) -> int:
    return parts[parts.index("%") :].count("_") if "%" in parts else 0


def _parts(pattern: str, escape: str) -> list[str]:
    """Returns the parts of a pattern: `%`, `_`, and single characters, escaped as in a pattern of `Match.LIKE`.

    A `_` after a `%` is moved before it, where it means the same and is found faster.
    """
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            quoted = next(characters, None)
            if quoted is None:
                raise UsageError("the LIKE pattern ends with its escape character: write a character after it")
            parts.append(_quote(quoted))
        elif character == "%":
            if parts[-1:] != ["%"]:
                parts.append("%")
        elif character == "_":
            parts.insert(len(parts) - (parts[-1:] == ["%"]), "_")
        else:
            parts.append(_quote(character))
    return parts


def _quote(character: str) -> str:
    return STORED_ESCAPE + character if character in _SPECIAL else character
