"""Which tables the pattern of a grant matches: the documented rule, against a model that knows no regular expressions.

A pattern of the model is a list of pieces, so that the model parses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from scankv.model.errors import InvalidRequest
from scankv.model.names import TableName
from streaming_server.access.grants import Grants, Role

# Letters whose lower or upper case is another letter's, and everything that means something in a regular expression.
LETTERS = "abcxyzABCXYZ019_-.\u00e9\u00c9\u00df\u017f\u212a\u0130"
SPECIAL = "+(){}^$|\\&~,:;!/ "
NAME = "abcABC01_-"


@dataclass(frozen=True)
class Character:
    char: str

    def __str__(self) -> str:
        return self.char

    def accepts(self, char: str) -> bool:
        return char == self.char


@dataclass(frozen=True)
class AnyCharacters:
    def __str__(self) -> str:
        return "*"


@dataclass(frozen=True)
class OneCharacter:
    def __str__(self) -> str:
        return "?"

    def accepts(self, char: str) -> bool:
        return True


@dataclass(frozen=True)
class OneOf:
    """`[a-cx]`, or `[!a-cx]` for one of all others."""

    ranges: tuple[tuple[str, str], ...]
    others: bool

    def __str__(self) -> str:
        return f"[{'!' * self.others}{''.join(a if a == b else f'{a}-{b}' for a, b in self.ranges)}]"

    def accepts(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.others


Piece = Character | AnyCharacters | OneCharacter | OneOf


def matches(pieces: list[Piece], name: str) -> bool:
    """Whether the pieces match the complete name."""
    ends = {0}
    for piece in pieces:
        if isinstance(piece, AnyCharacters):
            ends = set(range(min(ends), len(name) + 1)) if ends else set()
        else:
            ends = {end + 1 for end in ends if end < len(name) and piece.accepts(name[end])}
    return len(name) in ends


in_sets = st.sampled_from([char for char in LETTERS + SPECIAL if char not in "-! "])
ranges = st.tuples(in_sets, in_sets).map(lambda pair: (min(pair), max(pair)))
pieces = st.lists(
    st.one_of(
        st.sampled_from(LETTERS + SPECIAL + "]").map(Character),
        st.just(AnyCharacters()),
        st.just(OneCharacter()),
        st.builds(OneOf, st.lists(ranges, min_size=1, max_size=3).map(tuple), st.booleans()),
    ),
    min_size=1,
    max_size=8,
)


@st.composite
def patterns_and_names(draw: st.DrawFn) -> tuple[list[Piece], str]:
    """Returns a pattern, and a name that it matches, or nearly."""
    pattern = draw(pieces)
    text = str("".join(map(str, pattern)))
    assume(text == text.strip())
    name = ""
    for piece in pattern:
        if isinstance(piece, AnyCharacters):
            name += draw(st.text(LETTERS, max_size=3))
        else:
            accepted = [char for char in LETTERS + SPECIAL + "]" if piece.accepts(char)]
            name += draw(st.sampled_from(accepted or ["a"]))
    position = draw(st.integers(0, len(name)))
    change = draw(st.sampled_from(["none", "case", "remove", "insert", "newline"]))
    if change == "case":
        name = name[:position] + name[position : position + 1].swapcase() + name[position + 1 :]
    elif change == "remove":
        name = name[:position] + name[position + 1 :]
    elif change == "insert":
        name = name[:position] + draw(st.sampled_from(LETTERS)) + name[position:]
    elif change == "newline":
        name += "\n"
    return pattern, name


@given(patterns_and_names())
@example(([AnyCharacters()], "db.t"))
@example(([Character("d"), Character("b"), Character("."), AnyCharacters()], "db."))
@example(([AnyCharacters(), Character("."), Character("t")], "db.T"))
@example(([Character("\u00e9")], "\u00c9"))
@example(([Character("\u212a")], "k"))
def test_a_pattern_matches_what_the_rule_says(drawn: tuple[list[Piece], str]) -> None:
    pattern, name = drawn
    text = "".join(map(str, pattern))
    grants = Grants([f"write:{text}"])
    expected = matches(pattern, name)
    for _ in range(2):  # The second time, the answer is remembered.
        assert grants.allow(Role.READ, name) == grants.allow(Role.WRITE, name) == expected
        assert grants.allow(Role.ADMIN, name) is False
    assert grants.allow_somewhere(Role.WRITE)
    assert grants.allow_everywhere(Role.READ) == (text in ("*", "*.*"))


@given(st.lists(st.tuples(st.sampled_from(Role), pieces), min_size=1, max_size=4), st.text(NAME + ".", max_size=6))
def test_the_highest_role_of_all_patterns_that_match_counts(granted: list[tuple[Role, list[Piece]]], name: str) -> None:
    texts = ["".join(map(str, pattern)) for _, pattern in granted]
    assume(all(text == text.strip() for text in texts))
    grants = Grants([f"{role.text}:{text}" for (role, _), text in zip(granted, texts, strict=True)])
    # Patterns for every table also match what cannot be the name of a table.
    everywhere = [role for (role, _), text in zip(granted, texts, strict=True) if text in ("*", "*.*")]
    highest = max([0, *everywhere, *(role for role, pattern in granted if matches(pattern, name))])
    assert [grants.allow(role, name) for role in Role] == [role <= highest for role in Role]


@given(st.text(NAME, min_size=1), st.text(NAME, min_size=1))
def test_a_name_without_wildcards_matches_itself_only(database: str, table: str) -> None:
    try:
        name = str(TableName(database, table))
    except InvalidRequest:
        assume(False)
    grants = Grants([f"read:{name}"])
    assert grants.allow(Role.READ, name)
    for other in (name.swapcase(), name + "x", name[:-1], "x" + name, f"{name}.x", name.replace(".", "x"), name + "\n"):
        assert grants.allow(Role.READ, other) == (other == name), other


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        # A bracket that is not closed, or has nothing in it, stands for itself.
        ("db.[a", "db.[a", True),
        ("db.[a", "db.a", False),
        ("db.[]", "db.[]", True),
        ("db.[]a]", "db.]", True),
        ("db.[!]", "db.[!]", True),
        # A hyphen at the beginning or the end of a set stands for itself.
        ("db.[a-]", "db.-", True),
        ("db.[-a]", "db.-", True),
        ("db.[a-]", "db.b", False),
        # A range the wrong way round is empty.
        ("db.[c-a]", "db.b", False),
        ("db.[^a]", "db.b", False),
        ("**", "db.t", True),
        ("*.*", "db.t", True),
        ("?*.?*", "db.t", True),
        ("db.t" + "*" * 100 + "z", "db." + "t" * 128, False),
    ],
)
def test_border_cases(pattern: str, name: str, expected: bool) -> None:
    assert Grants([f"read:{pattern}"]).allow(Role.READ, name) is expected
