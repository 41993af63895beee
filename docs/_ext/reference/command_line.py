"""The commands of `scankv`, as Typer describes them."""

from __future__ import annotations

import html
import re
from functools import cache

import typer
from typer.cli import get_docs_for_click

from scankv.cli.app import app

from .sentences import first_sentence
from .sidebar import list_in_sidebar
from .summary_tables import summary_table

CUT = re.compile(r"^\*\*Commands\*\*:\n\n(?:\* .*\n)+\n", re.MULTILINE)
CODE = re.compile(r"(^```console\n.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*)")
HEADING = re.compile(r"^## `scankv ([\w-]+)`$", re.MULTILINE)


def describe_commands() -> str:
    """Returns the options of `scankv` itself, and tables of the commands, each of which has a page."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    groups: dict[str, list[str]] = {}
    for name, command in commands.items():
        panel = getattr(command, "rich_help_panel", None)
        groups.setdefault(panel if isinstance(panel, str) else "Commands", []).append(name)
    lines = []
    for group, names in groups.items():
        rows = [(f"[`scankv {name}`](command-line/{name}.md)", _first(commands[name].help)) for name in names]
        lines += [f"## {group}\n", summary_table("command | what it does", rows)]
    usage = _sections()[""].replace("**Usage**", "## All commands\n\n**Usage**", 1)
    pages = list_in_sidebar([f"scankv {name} <command-line/{name}>" for names in groups.values() for name in names])
    return "\n".join(lines) + f"\n{usage}\n{pages}"


def list_commands() -> list[str]:
    """Returns the names of the commands and groups of commands."""
    return list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def describe_command(name: str) -> str:
    """Returns the arguments and options of a command; of a group of commands, a table of its commands first."""
    text = _sections()[name]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    rows = [
        (f"[`scankv {name} {each}`](#scankv-{name}-{each})", _first(sub.help))
        for each, sub in getattr(command, "commands", {}).items()
    ]
    if not rows:
        return text
    about, _, details = text.partition("**Usage**")
    return f"{about}{summary_table('command | what it does', rows)}\n**Usage**{details}"


@cache
def _sections() -> dict[str, str]:
    """Returns the text about each command by its name, and about `scankv` itself by an empty name."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="scankv", title=" ")
    # Typer's lists of commands only repeat the headings, with truncated descriptions.
    text = CUT.sub("", text).partition("\n")[2]
    first, *rest = HEADING.split("".join(map(_escape, CODE.split(text))))
    pages = zip(rest[::2], rest[1::2], strict=True)
    return {"": first} | {name: re.sub(r"^###", "##", page, flags=re.MULTILINE) for name, page in pages}


def _first(text: str | None) -> str:
    return _escape(first_sentence(text or ""))


def _escape(part: str) -> str:
    """Escapes text outside code. Typer escapes code as well, and does not escape every docstring."""
    plain = html.unescape(part)
    if part.startswith("`"):
        return plain
    # As text, the two hyphens of an option would become a dash.
    return OPTION.sub(r"`\1`", plain.replace("<", "&lt;"))
