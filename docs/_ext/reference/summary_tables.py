"""Tables that say what each of several things is for; on a narrow page, the text is below the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def summary_table(name: str, text: str, rows: Iterable[tuple[str, str]]) -> str:
    """Returns a table, in Markdown, of links or names with a sentence about each, below the two heads."""
    lines = "".join(f"| {link} | {about.replace('|', chr(92) + '|')} |\n" for link, about in rows)
    return f"```{{table}}\n:class: summary\n\n| {name} | {text} |\n|---|---|\n{lines}```\n"
