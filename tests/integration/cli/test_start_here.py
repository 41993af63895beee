"""The lines with which `scankv --help` begins work in their order."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from scankv.cli.help_text import START_HERE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.command_line import CommandLine

# These two run until Ctrl-C.
ENDLESS = {"serve", "tail"}


def test_the_lines_to_start_from_work_in_their_order(
    scankv: CommandLine, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores.csv").write_text("player,score\nann,11\nbob,5\n")
    outputs = {}
    for line in START_HERE.replace("game.scores", table).splitlines():
        _, command, *arguments = shlex.split(line, comments=True)
        if command not in ENDLESS:
            outputs[command, *arguments[1:]] = scankv(command, *arguments).text
    assert outputs["load", "scores.csv", "--create", "--key", "player"].startswith(f"created {table}: ")
    assert "11" in outputs["scan", "--where", "score > 10", "--limit", "5"]
    assert outputs["put", "player=ann", "score=12"] == "wrote 1 row\n"
    assert outputs["delete", "ann"] == "deleted 1 row\n"
