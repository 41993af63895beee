"""Reads `Containerfile` and `packaging/scankv.service`."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

import typer

from scankv.cli.app import app

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "Containerfile"
UNIT = ROOT / "packaging" / "scankv.service"


def read_stages(path: Path = CONTAINERFILE) -> list[list[tuple[str, str]]]:
    """Returns the instructions of each stage with their arguments: values of ARG and ENV are put in."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    values: dict[str, str] = {}
    stages: list[list[tuple[str, str]]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        # RUN is expanded by its shell.
        shown = re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], found[0]), rest)
        if name == "FROM":
            stages.append([])
        if name == "ARG":
            values.update(_pairs([rest]))
        if name == "ENV":
            values.update(_pairs(shlex.split(shown)))
        if stages:
            stages[-1].append((name, shown))
    return stages


def _pairs(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def arguments_of(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    """Returns the arguments of every instruction of a name."""
    return [arguments for name, arguments in stage if name == instruction]


def read_unit(path: Path = UNIT) -> dict[str, list[str]]:
    """Returns the values of each option of a unit of systemd, of all sections together."""
    options: defaultdict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            options[name].append(value)
    return dict(options)


def check_command(words: list[str]) -> None:
    """Checks that a command line of `scankv` has a command that exists, with options that it has."""
    command: Any = typer.main.get_command(app)
    assert words[0].rpartition("/")[2] == "scankv"
    options = {option for parameter in command.commands[words[1]].params for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= options
