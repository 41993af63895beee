"""Tables that say what each of several things is for; on a narrow page, the text is below the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def summary_table(heads: str, rows: Iterable[tuple[str, ...]], css: str = "") -> str:
    """Returns a table, in Markdown, of links or names with what is said of each, below heads that ` | ` separates."""
    lines = "".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |\n" for row in rows)
    ruler = "|".join("---" for _ in heads.split(" | "))
    return f"```{{table}}\n:class: summary{css and f' {css}'}\n\n| {heads} |\n|{ruler}|\n{lines}```\n"
