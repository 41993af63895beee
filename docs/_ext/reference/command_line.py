"""The commands of `scankv`, as Typer describes them."""

from __future__ import annotations

import html
import re

import typer
from typer.cli import get_docs_for_click

from scankv.cli.app import app

CUT = re.compile(r"^\*\*Commands\*\*:\n\n(?:\* .*\n)+\n", re.MULTILINE)
CODE = re.compile(r"(^```console\n.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def describe_commands() -> str:
    """Every command with its arguments and options, a heading each."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="scankv", title=" ")
    # The lists of commands repeat the headings, and cut what they say.
    text = CUT.sub("", text).partition("\n")[2]
    return "".join(map(_escape, CODE.split(text)))


def _escape(part: str) -> str:
    """Escape text, and only text: Typer does so in code, too, and not in every docstring."""
    plain = html.unescape(part)
    return plain if part.startswith("`") else plain.replace("<", "&lt;")
