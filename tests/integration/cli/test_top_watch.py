"""`scankv top --watch` on a terminal and in a pipe, while the server is written to, restarted and stopped."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

WATCH = ("--order-by", "score", "--watch", "--every", "0.1")


class TopTerminal(Terminal):
    """A terminal with the rows of a top-N."""

    @property
    def rows(self) -> list[list[str]]:
        """Returns the words of each row of the table that is shown."""
        return [line.split() for line in self.screen.splitlines() if line.split() and line.split()[0].isdigit()]

    def shows(self, *rows: str) -> None:
        """Waits until the table has these rows."""
        wanted = [row.split() for row in rows]
        wait_until(lambda: self.rows == wanted, f"{wanted}, but {self.screen!r}")


@pytest.fixture
def piped(scankv: CommandLine, scores: str, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a watch of `scores` with its output in a pipe, and with the arguments of the test's parameter."""
    arguments = getattr(request, "param", ())
    with scankv.start("top", scores, *WATCH, *arguments) as process:
        yield process
        process.kill()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def test_a_terminal_shows_the_rows_and_how_they_move(scankv: CommandLine, scores: str) -> None:
    with TopTerminal(scankv, "top", scores, *WATCH, "-n", "3") as terminal:
        terminal.shows("1 ann 31", "2 bob 27", "3 cem null")
        # A row after those that are shown.
        scankv("put", scores, "player=zoe")
        wait_until(lambda: "unchanged answers since: 1" in terminal.screen, "an answer with the same rows")
        scankv("put", scores, "player=bob", "score=40")
        terminal.shows("1 ▲1 bob 40", "2 ▼1 ann 31", "3 cem null")
        scankv("put", scores, "player=dan", "score=50")
        terminal.shows("1 new dan 50", "2 ▼1 bob 40", "3 ▼1 ann 31")
        wait_until(lambda: "left: cem (was 3)" in terminal.screen, "who left")
        # Another score at the same rank is shown, but is not a movement. A row that left is shown once.
        scankv("put", scores, "player=dan", "score=51")
        terminal.shows("1 dan 51", "2 bob 40", "3 ann 31")
        assert "left:" not in terminal.screen
        assert terminal.interrupt() == 0
        assert terminal.rows == [["1", "dan", "51"], ["2", "bob", "40"], ["3", "ann", "31"]]
        assert "Traceback" not in terminal.received
        # The hidden cursor is visible again.
        assert terminal.received.rindex("\x1b[?25h") > terminal.received.rindex("\x1b[?25l")


def test_what_top_can_be_asked_for_can_be_watched(scankv: CommandLine, scores: str) -> None:
    narrowed = ("--ascending", "--columns", "score", "--where", "player <> 'ann'", "-n", "1")
    with TopTerminal(scankv, "top", scores, *WATCH, *narrowed) as terminal:
        terminal.shows("1 27")
        scankv("put", scores, "player=ann", "score=1")
        scankv("put", scores, "player=dan", "score=2")
        terminal.shows("1 new 2")
        wait_until(lambda: "left: bob (was 1)" in terminal.screen, "who left")


@pytest.mark.breadth
def test_a_restart_of_the_server_is_ridden_through_and_said(server: ServerProcess) -> None:
    scankv = CommandLine(server.url)
    scankv("create", "cli.r", "--schema", "player string, score int64", "--key", "player")
    scankv("put", "cli.r", "player=ann", "score=1")
    with TopTerminal(scankv, "top", "cli.r", *WATCH) as terminal:
        terminal.shows("1 ann 1")
        server.kill()
        wait_until(lambda: "reconnecting: " in terminal.screen, "a note")
        assert terminal.rows == [["1", "ann", "1"]]
        server.restart()
        wait_until(lambda: "unchanged answers" in terminal.screen, "answers again")
        scankv("put", "cli.r", "player=bob", "score=2")
        terminal.shows("1 new bob 2", "2 ▼1 ann 1")
        assert terminal.interrupt() == 0


@pytest.mark.parametrize("piped", [["--format", "jsonl"]], indirect=True)
def test_a_pipe_gets_a_line_of_json_for_every_change(
    scankv: CommandLine, scores: str, piped: subprocess.Popen[bytes]
) -> None:
    first: dict[str, Any] = json.loads(line_of(piped))
    assert first["first"] is True
    assert [row["player"] for row in first["rows"]] == ["ann", "bob", "cem"]
    scankv("put", scores, "player=bob", "score=40")
    change = json.loads(line_of(piped))
    assert change.pop("taken_at") > first["taken_at"]
    assert change == {
        "first": False,
        "rows": [
            {"player": "bob", "score": 40},
            {"player": "ann", "score": 31},
            {"player": "cem", "score": None},
        ],
        "entered": [],
        "left": [],
        "moved": [{"player": "bob", "rank_before": 2, "rank": 1}, {"player": "ann", "rank_before": 1, "rank": 2}],
    }
    piped.send_signal(signal.SIGINT)
    assert piped.communicate(timeout=60) == (b"", b"")
    assert piped.returncode == 0


def test_a_pipe_gets_a_block_for_every_change(scankv: CommandLine, scores: str, piped: subprocess.Popen[bytes]) -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d", line_of(piped))
    assert line_of(piped).split() == ["#", "player", "score"]
    assert [line_of(piped).split() for _ in range(4)][1:] == [
        ["1", "ann", "31"],
        ["2", "bob", "27"],
        ["3", "cem", "null"],
    ]
    scankv("delete", scores, "ann")
    assert line_of(piped) == ""
    block = [line_of(piped) for _ in range(6)]
    assert [line.split() for line in block[3:5]] == [["1", "▲1", "bob", "27"], ["2", "▲1", "cem", "null"]]
    assert block[5] == "left: ann (was 1)"
    piped.send_signal(signal.SIGTERM)
    assert piped.wait(60) == 143


def test_a_reader_that_closes_its_pipe_ends_the_watch(
    scankv: CommandLine, scores: str, piped: subprocess.Popen[bytes]
) -> None:
    line_of(piped)
    assert piped.stdout is not None
    piped.stdout.close()
    scankv("put", scores, "player=bob", "score=40")
    assert piped.wait(60) == 0
    assert piped.stderr is not None
    assert piped.stderr.read() == b""


def test_a_table_that_is_dropped_ends_the_watch_with_the_reason(
    scankv: CommandLine, scores: str, piped: subprocess.Popen[bytes]
) -> None:
    line_of(piped)
    scankv("drop", scores, "--yes")
    _, said = piped.communicate(timeout=60)
    assert piped.returncode == 1
    assert said.decode().startswith("scankv: error: ")
    assert scores in said.decode()


def test_wrong_usage_is_refused_before_anything_is_shown(scankv: CommandLine, scores: str) -> None:
    assert "add --watch" in scankv.fails("top", scores, "--order-by", "score", "--every", "1")
    scankv("top", scores, "--order-by", "score", "--watch", "--every", "0.01", code=2)
    assert '"scroe"' in scankv.fails("top", scores, "--order-by", "scroe", "--watch")
    assert "did you mean" in scankv.fails("top", scores, "--order-by", "score", "--where", "scroe > 1", "--watch")
