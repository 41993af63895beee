"""Commands, options and settings in the documentation exist, also where a page only shows them.

The pages run most of their code. What needs root, a container engine or a second machine is only shown.
"""

from __future__ import annotations

import dataclasses
import shlex
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest
import typer
from markdown_it import MarkdownIt

from scankv.cli.app import app
from streaming_server.config import ServerConfig
from tests.support.packaging_files import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS: Any = typer.main.get_command(app)
SETTINGS = {field.name for field in dataclasses.fields(ServerConfig)}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each simple command of a shell script, without its redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        try:
            words = list(reader)
        except ValueError:  # A string of several lines.
            continue
        while words:
            command = list(takewhile(lambda word: not set(word) <= set("();<>|&"), words))
            yield command
            words = words[len(command) + 1 :]


def problems_of(words: list[str]) -> Iterator[str]:
    """Yields what is wrong with the use of `scankv` in a simple command, which may be one that another one starts."""
    command, rest = COMMANDS, words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] == "--profile" else rest[1:]
    while rest and hasattr(command, "commands"):
        name, *rest = rest
        if name not in command.commands:
            yield f"no command {name}"
            return
        command = command.commands[name]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    for index, word in enumerate(rest):
        if word.startswith("--") and word.partition("=")[0] not in options:
            yield f"{command.name} has no option {word}"
        if word == "--set" and command.name in {"serve", "doctor"} and rest[index + 1].split("=")[0] not in SETTINGS:
            yield f"no setting {rest[index + 1]}"


def uses_in(words: list[str]) -> Iterator[list[str]]:
    """Yields the words from each `scankv` on: at the beginning, or before the name of a command."""
    for index, word in enumerate(words):
        is_named = index + 1 < len(words) and words[index + 1] in COMMANDS.commands
        if word.rpartition("/")[2] == "scankv" and (index == 0 or is_named):
            yield words[index:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_the_page_exist(page: Any) -> None:
    blocks = [token.content for token in MarkdownIt().parse(page.read_text()) if token.info.startswith("bash")]
    commands = [words for block in blocks for words in simple_commands(block)]
    problems = [found for command in commands for words in uses_in(command) for found in problems_of(words)]
    assert problems == []


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("scankv srve", "no command srve"),
        ("x | scankv --profile p indexes ad t", "no command ad"),
        ("podman run scankv serve --data x --prot 1 && y", "serve has no option --prot"),
        ("scankv doctor \\\n  --set max_scans=1 > f", "no setting max_scans=1"),
    ],
)
def test_a_wrong_command_is_found(script: str, problem: str) -> None:
    commands = list(simple_commands(script))
    assert [found for command in commands for words in uses_in(command) for found in problems_of(words)] == [problem]
