"""The names that a table can have."""

from __future__ import annotations

import pytest

from scankv.model.errors import InvalidRequest
from scankv.model.names import TableName


@pytest.mark.parametrize("text", ["game.scores", "_a.b-c", "A.B_9", "d" * 128 + "." + "t" * 128])
def test_name_is_read_and_written_the_same(text: str) -> None:
    name = TableName.parse(text)
    assert str(name) == text
    assert f"{name.database}.{name.table}" == text


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "scores", "a.b.c", "game.", ".scores", "9a.b", "a.-b", "a b.c", "a.b\n", "ä.b", "a/../b.c",
        "a." + "t" * 129,
    ],
)  # fmt: skip
def test_text_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a table name") as caught:
        TableName.parse(text)
    assert caught.value.details["table"] == text


def test_message_says_what_a_name_is() -> None:
    with pytest.raises(InvalidRequest, match=r"write database\.table, such as game\.scores"):
        TableName.parse("scores")
    with pytest.raises(InvalidRequest, match="its table part must be 1 to 128 of A-Z a-z 0-9 _ - and begin with"):
        TableName.parse("game.9")


def test_message_does_not_repeat_a_text_of_any_length() -> None:
    with pytest.raises(InvalidRequest) as caught:
        TableName.parse("x" * 100_000)
    assert len(str(caught.value)) < 500
    assert len(caught.value.details["table"]) < 300


def test_names_are_ordered_and_hashable() -> None:
    names = [TableName("b", "a"), TableName("a", "z"), TableName("a", "b")]
    assert [str(name) for name in sorted(set(names))] == ["a.b", "a.z", "b.a"]
