"""The help of every command reads well on a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer

from scankv.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, subcommand in dict(getattr(command, "commands", {})).items():
        yield from commands(subcommand, f"{path} {name}")


ALL = dict(commands(typer.main.get_command(app), "scankv"))


def test_every_command_has_help() -> None:
    assert len(ALL) > 30
    assert [path for path, command in ALL.items() if not command.help] == []


@pytest.mark.parametrize("path", ALL)
def test_paragraphs_of_help_flow(path: str) -> None:
    assert "\n" not in ALL[path].help.replace("\n\n", "")
