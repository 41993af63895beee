"""The help of every command reads well on a terminal of 80 columns."""

from __future__ import annotations

import io
import os
import re
import shlex
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import typer

from scankv.cli.app import _SECTIONS, app
from scankv.cli.help_text import OPTION_SECTIONS, START_HERE

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, subcommand in dict(getattr(command, "commands", {})).items():
        yield from commands(subcommand, f"{path} {name}")


REPOSITORY = Path(__file__).parents[3]
PAGES = ("disks", "monitoring")
ROOT = typer.main.get_command(app)
ALL = dict(commands(ROOT, "scankv"))


@cache
def help_of(path: str) -> str:
    output = io.StringIO()
    terminal = mock.patch.dict(os.environ, {"COLUMNS": "80"})
    with redirect_stdout(output), terminal, suppress(SystemExit):
        ROOT([*path.split()[1:], "--help"], prog_name="scankv")
    return output.getvalue()


def sections_of(text: str) -> dict[str, list[str]]:
    """Returns the first words of the lines of each section."""
    sections: dict[str, list[str]] = {}
    names: list[str] = []
    for line in text.splitlines():
        if heading := re.fullmatch(r"([A-Z][\w ]+):", line):
            names = sections.setdefault(heading[1], [])
        elif entry := re.match(r"  (\S+)", line):
            names.append(entry[1])
    return sections


def test_every_command_has_help() -> None:
    assert len(ALL) > 30
    assert [path for path, command in ALL.items() if not command.help] == []


@pytest.mark.parametrize("path", ALL)
def test_paragraphs_of_help_flow(path: str) -> None:
    assert "\n" not in ALL[path].help.replace("\n\n", "")


def test_no_line_of_any_help_is_wider_than_80_columns_or_is_cut() -> None:
    for path in ALL:
        text = help_of(path)
        assert text.startswith("Usage: "), path
        assert [line for line in text.splitlines() if len(line) > 80] == [], path
        assert "…" not in text, path


def test_the_text_about_an_option_has_at_least_50_of_80_columns() -> None:
    for path in ALL:
        lines = help_of(path).splitlines()
        starts = [len(line) - len(line.lstrip()) for line in lines if line.startswith(" " * 8)]
        assert max(starts, default=0) <= 30, path


def test_the_list_of_commands_is_in_sections_and_each_command_is_in_one_line() -> None:
    sections = sections_of(help_of("scankv"))
    assert list(sections)[1:-1] == ["Data", "Tables", "Streams", "Server", "Operations"]
    for section, listed in _SECTIONS.items():
        assert sections[section] == list(listed)
    names = [name for listed in _SECTIONS.values() for name in listed]
    assert len(names) == len(set(names))


def test_ten_lines_to_start_from_come_first_and_can_be_copied() -> None:
    lines = START_HERE.splitlines()
    assert len(lines) == 10
    assert next(iter(sections_of(help_of("scankv")))) == "Start here"
    for line in lines:
        assert f"  {line}\n" in help_of("scankv")
        program, command, *_ = shlex.split(line, comments=True)
        assert program == "scankv"
        assert f"scankv {command}" in ALL


@pytest.mark.parametrize("name", OPTION_SECTIONS)
def test_the_options_of_long_commands_are_in_sections(name: str) -> None:
    sections = sections_of(help_of(f"scankv {name}"))
    assert set(OPTION_SECTIONS[name]) < set(sections)
    assert sum(map(len, OPTION_SECTIONS[name].values())) > 10
    assert {"--url", "-h,"} >= set(sections["Options"])


def test_the_usage_of_a_command_names_its_arguments_as_the_documentation_does() -> None:
    assert help_of("scankv load").startswith("Usage: scankv load [OPTIONS] TABLE FILE\n")
    assert help_of("scankv get").startswith("Usage: scankv get [OPTIONS] TABLE KEY...\n")
    assert help_of("scankv delete").startswith("Usage: scankv delete [OPTIONS] TABLE [KEY...]\n")


def test_help_names_pages_by_their_titles_and_aggregators_by_their_name() -> None:
    texts = {path: help_of(path) for path in ALL}
    assert [path for path, text in texts.items() if ".md" in text] == []
    assert [path for path, text in texts.items() if "merge function" in " ".join(text.split())] == []


@pytest.mark.parametrize("page", ["scankv/model/errors.py", *(f"docs/operations/{page}.md" for page in PAGES)])
def test_advice_names_a_command_that_lists_and_not_its_group(page: str) -> None:
    groups = [path for path in ALL if f"{path} list" in ALL and ALL[path].no_args_is_help]
    assert "scankv snapshots" in groups
    text = (REPOSITORY / page).read_text()
    assert [group for group in groups if f"`{group}`" in text] == []
