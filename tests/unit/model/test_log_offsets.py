"""Log offsets keep their table incarnation when they are copied and stored."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.changes.log_offsets import LogOffsets, check_incarnation
from scankv.model.changes.log_positions import StartFrom, StopAt
from scankv.model.errors import TableRecreated, UsageError
from scankv.model.limits import MAX_BUCKETS

OFFSETS = st.dictionaries(st.integers(0, MAX_BUCKETS - 1), st.integers(0, 2**63 - 1), max_size=8)
TABLES = st.text("0123456789abcdef", max_size=32)


@given(offsets=OFFSETS, table=TABLES)
def test_copies_and_json_are_of_the_same_table(offsets: dict[int, int], table: str) -> None:
    known = LogOffsets.of(offsets, table)
    for again in (
        LogOffsets.from_json(known.to_json()),
        LogOffsets(known),
        known.copy(),
        copy.copy(known),
        copy.deepcopy(known),
        pickle.loads(pickle.dumps(known)),
        known | LogOffsets(),
        known | {},
        known.of_buckets(known),
    ):
        assert type(again) is LogOffsets
        assert again == offsets
        assert again.table_incarnation == table


def test_positions_keep_the_table() -> None:
    known = LogOffsets.of({0: 3}, "abc")
    for position in (StartFrom.offsets(known), StopAt.offsets(known)):
        assert position.table_incarnation == "abc"
        assert pickle.loads(pickle.dumps(position)) == position
    assert StartFrom.offsets({0: 3}).table_incarnation == ""
    assert StartFrom.offsets({0: 3}) != StartFrom.offsets(known)


def test_offsets_of_shards_are_joined_and_those_of_two_tables_are_not() -> None:
    one, other = LogOffsets.of({0: 3}, "abc"), LogOffsets.of({1: 4}, "abc")
    assert (one | other) == {0: 3, 1: 4}
    with pytest.raises(UsageError, match="different tables"):
        one | LogOffsets.of({1: 4}, "def")


def test_later_offsets_raise_those_of_the_same_table_and_replace_those_of_another() -> None:
    offsets = LogOffsets.of({0: 3, 1: 9}, "abc")
    offsets.advance({0: 5, 1: 2}, "abc")
    assert offsets == {0: 5, 1: 9}
    offsets.advance({0: 1}, "def")
    assert (offsets, offsets.table_incarnation) == ({0: 1}, "def")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "17",
        "null",
        "{",
        '{"0": 17}',
        '{"table_incarnation": "a"}',
        '{"log_offsets": {"0": 1}}',
        '{"table_incarnation": 1, "log_offsets": {"0": 1}}',
        '{"table_incarnation": "a", "log_offsets": [1]}',
        '{"table_incarnation": "a", "log_offsets": {"x": 1}}',
        '{"table_incarnation": "a", "log_offsets": {"0": "1"}}',
        '{"table_incarnation": "a", "log_offsets": {"0": 1.5}}',
        '{"table_incarnation": "a", "log_offsets": {"0": true}}',
        '{"table_incarnation": "a", "log_offsets": {"0": -1}}',
        '{"table_incarnation": "a", "log_offsets": {"-1": 1}}',
        '{"table_incarnation": "a", "log_offsets": {"0": 9223372036854775808}}',
        b"\xff",
        None,
        7,
        [1],
    ],
)
def test_what_is_no_such_json_is_refused(text: object) -> None:
    with pytest.raises(UsageError, match="LogOffsets"):
        LogOffsets.from_json(text)  # type: ignore[arg-type]


def test_another_incarnation_is_refused_and_an_unknown_one_is_not() -> None:
    check_incarnation("", "game.scores", "abc")
    check_incarnation("abc", "game.scores", "abc")
    with pytest.raises(TableRecreated, match=r"table game\.scores was restored, or dropped and created again"):
        check_incarnation("def", "game.scores", "abc")
