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
    """Returns a section for each command, with its arguments and options."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="scankv", title=" ")
    # Typer's lists of commands only repeat the headings, with truncated descriptions.
    text = CUT.sub("", text).partition("\n")[2]
    return "".join(map(_escape, CODE.split(text)))


def _escape(part: str) -> str:
    """Escapes text outside code. Typer escapes code as well, and does not escape every docstring."""
    plain = html.unescape(part)
    return plain if part.startswith("`") else plain.replace("<", "&lt;")
