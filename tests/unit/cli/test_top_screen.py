from __future__ import annotations

import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from rich.console import Console

from aio_client import ScanKvError, TopN, Unavailable
from scankv.cli.top_screen import TopScreen, top_block, top_json

RANK = ("rank", pa.int32())
KEYS = pa.schema([("player", pa.string()), RANK])
MOVED = pa.schema([("player", pa.string()), ("rank_before", pa.int32()), RANK])
NOON = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)


@dataclass
class Polls:
    unchanged: int = 0
    current_error: ScanKvError | None = None


def top(
    *players: str,
    entered: dict[str, int] | None = None,
    left: dict[str, int] | None = None,
    moved: dict[str, tuple[int, int]] | None = None,
) -> TopN:
    """Returns a top-N with these players in order, with scores 100, 99, ..., and with their movements."""
    return TopN(
        rows=pa.table({"player": players, "score": [100 - place for place in range(len(players))]}),
        version=b"v",
        entered=_ranked(entered or {}),
        left=_ranked(left or {}),
        moved=pa.table(
            [list(moved or {}), [b for b, _ in (moved or {}).values()], [a for _, a in (moved or {}).values()]],
            schema=MOVED,
        ),
    )


def _ranked(ranks: dict[str, int]) -> pa.Table:
    return pa.table([list(ranks), list(ranks.values())], schema=KEYS)


def drawn(shown: object, *, width: int = 60, height: int = 24) -> list[str]:
    """Returns what a terminal of this size shows, line by line, without colors."""
    text = io.StringIO()
    Console(file=text, width=width, height=height).print(shown)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_a_first_answer_has_ranks_and_no_movement() -> None:
    header, _, *rows = drawn(top_block(top("ann", "bob", entered={"ann": 1, "bob": 2}), first=True))
    assert header.split() == ["#", "player", "score"]
    assert [row.split() for row in rows] == [["1", "ann", "100"], ["2", "bob", "99"]]


def test_movements_stand_beside_the_rows_that_moved_and_those_that_left_below() -> None:
    change = top("cem", "dan", "ann", "eve", entered={"dan": 2}, left={"bob": 2}, moved={"cem": (3, 1), "ann": (1, 3)})
    _, _, *rows, below = drawn(top_block(change, first=False))
    assert [row.split() for row in rows] == [
        ["1", "▲2", "cem", "100"],
        ["2", "new", "dan", "99"],
        ["3", "▼2", "ann", "98"],
        ["4", "eve", "97"],
    ]
    assert below == "left: bob (was 2)"


def test_many_that_left_are_counted() -> None:
    change = top("ann", left={f"p{number}": number + 1 for number in range(7)})
    assert drawn(top_block(change, first=False), width=120)[-1] == (
        "left: p0 (was 1); p1 (was 2); p2 (was 3); p3 (was 4); p4 (was 5); and 2 more"
    )


def test_a_screen_is_no_higher_and_no_wider_than_its_terminal() -> None:
    screen = TopScreen(Polls(unchanged=3), now=lambda: NOON)
    screen.change(top(*(f"p{number}" for number in range(100))))
    screen.change(top(*(f"p{number}" for number in range(100)), moved={"p99": (2, 100)}, left={"x" * 500: 100}))
    lines = drawn(screen, width=40, height=12)
    # One line is left for the cursor.
    assert len(lines) == 11
    assert all(len(line) <= 40 for line in lines)
    assert lines[8] == "and 94 more"
    assert lines[9].startswith("left: xxx")
    assert "12:00:05" in lines[10]
    assert "and 96 more; not en…" in drawn(screen, width=20, height=10)


def test_an_empty_answer_is_shown_too() -> None:
    screen = TopScreen(Polls(), now=lambda: NOON)
    assert drawn(screen) == ["waiting for the first answer"]
    screen.change(top())
    assert drawn(screen)[0].split() == ["#", "player", "score"]


def test_the_last_line_tells_how_the_polls_are_going() -> None:
    polls = Polls()
    screen = TopScreen(polls, now=lambda: NOON)
    screen.change(top("ann"))
    polls.unchanged = 12
    assert drawn(screen)[-1] == "last change 12:00:05  unchanged answers since: 12"
    polls.current_error = Unavailable("no ScanKV server answers at a:1")
    assert drawn(screen, width=120)[-1] == "last change 12:00:05  reconnecting: no ScanKV server answers at a:1"
    polls.current_error = None
    assert "reconnecting" not in drawn(screen)[-1]


def test_control_characters_of_rows_that_left_do_not_reach_the_terminal() -> None:
    assert drawn(top_block(top(left={"\x1b[2Jx": 1}), first=False))[-1] == "left: ·[2Jx (was 1)"


def test_a_change_as_json_is_one_line_with_all_its_parts() -> None:
    change = top("cem", "d\n", entered={"d\n": 2}, left={"bob": 2}, moved={"cem": (3, 1)})
    line = top_json(change, NOON, first=False)
    assert "\n" not in line
    assert json.loads(line) == {
        "taken_at": "2026-01-01T12:00:05+00:00",
        "first": False,
        "rows": [{"player": "cem", "score": 100}, {"player": "d\n", "score": 99}],
        "entered": [{"player": "d\n", "rank": 2}],
        "left": [{"player": "bob", "rank": 2}],
        "moved": [{"player": "cem", "rank_before": 3, "rank": 1}],
    }
    assert json.loads(top_json(top(), NOON, first=True))["rows"] == []
