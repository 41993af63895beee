"""Converts docstrings, which use Markdown's syntax, to the reStructuredText that autodoc expects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples|Note|What to do):$")
ITEM = re.compile(r" *[-*] ")


def convert_to_rst(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    """Marks code blocks, separates lists from text, and turns code spans that are names into references."""
    converted: list[str] = []
    in_section = False
    for line in lines:
        before = converted[-1] if converted else ""
        if SECTION.match(line):
            in_section = True
        elif line and not line.startswith(" "):
            in_section = False
        if line.startswith("    ") and not before and not in_section and not _is_in_code_or_list(converted):
            converted += ["::", ""]
        if ITEM.match(line) and before and not ITEM.match(before) and not before.startswith(" "):
            converted.append("")
        converted.append(line if _is_code(line, in_section) else convert_spans(line))
    lines[:] = converted


def convert_spans(text: str) -> str:
    """Turns the code spans of a sentence into references and literals of reStructuredText."""
    return CODE.sub(_convert_span, text)


def _is_code(line: str, in_section: bool) -> bool:
    return line.startswith("    ") and not in_section


def _is_in_code_or_list(lines: list[str]) -> bool:
    """Returns whether an indented line after these continues a code block or an item of a list."""
    last = next((line for line in reversed(lines) if line), "")
    return last.startswith(" ") or last == "::" or bool(ITEM.match(last))


def _convert_span(span: re.Match[str]) -> str:
    return span[0] if NAME.fullmatch(span[1]) else f"``{span[1]}``"
