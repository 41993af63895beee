"""Writes what ScanKV has and lacks into the pages that say so, from `docs/capabilities.toml`.

The place in a page is between `<!-- capabilities: NAME -->` and `<!-- end of capabilities -->`; `BLOCKS` has the names.

Usage: python .ci/generate_capabilities.py
"""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "capabilities.toml"
PLACE = re.compile(r"(<!-- capabilities: (.+?) -->\n).*?(<!-- end of capabilities -->)", re.DOTALL)
LINK = re.compile(r"\]\(([\w/.-]+)(#[\w-]+)?\)")
SYSTEMS = {"fluss": "Fluss", "paimon": "Paimon", "delta": "Delta Lake"}
Rows = dict[str, dict[str, Any]]


def read_rows() -> Rows:
    """Returns the rows of the table, by their names."""
    return tomllib.loads(TABLE.read_text())


def list_pages() -> list[Path]:
    """Returns the pages with a place to write into."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if PLACE.search(page.read_text())]


def fill_in(page: Path, rows: Rows) -> str:
    """Returns the text of a page with all its places written."""
    folder = page.parent

    def write(place: re.Match[str]) -> str:
        return f"{place[1]}\n{BLOCKS[place[2]](_relative(rows, folder))}\n{place[3]}"

    return PLACE.sub(write, page.read_text())


def _features(rows: Rows) -> str:
    groups = dict.fromkeys(row["group"] for row in rows.values() if "has" in row)
    return "\n".join(
        f"## {group}\n\n{_bullets(row['has'] for row in rows.values() if 'has' in row and row['group'] == group)}"
        for group in groups
    )


def _texts(kind: str, field: str) -> Callable[[Rows], str]:
    """Returns the writer of a list of the texts in a field, or of those for a system, as in `missing.fluss`."""

    def write(rows: Rows) -> str:
        outer, _, inner = field.partition(".")
        values = [row[outer] for row in rows.values() if kind in row and outer in row]
        return _bullets(value[inner] if inner else value for value in values if not inner or inner in value)

    return write


def _pairs(field: str, theirs: str) -> Callable[[Rows], str]:
    """Returns the writer of a table of what something is called in another system and here."""

    def write(rows: Rows) -> str:
        pairs = [pair for row in rows.values() for pair in row.get(field, ())]
        lines = [f"| {theirs} | ScanKV |", "|---|---|", *(f"| {each} | {ours} |" for each, ours in pairs)]
        return "\n".join(lines) + "\n"

    return write


def _bullets(texts: Iterable[str]) -> str:
    wrap = textwrap.TextWrapper(
        120, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrap.fill(text) for text in texts) + "\n"


def _relative(value: Any, folder: Path) -> Any:  # noqa: ANN401  # what TOML has
    """Turns links that are relative to docs/ into links of a page in a folder."""
    if isinstance(value, dict):
        return {name: _relative(each, folder) for name, each in value.items()}
    if isinstance(value, list):
        return [_relative(each, folder) for each in value]
    return LINK.sub(lambda found: f"]({os.path.relpath(ROOT / 'docs' / found[1], folder)}{found[2] or ''})", str(value))


BLOCKS: dict[str, Callable[[Rows], str]] = {
    "features": _features,
    "what it lacks": _texts("lacks", "lacks"),
    "guarantees in short": _texts("has", "readme"),
    "lacks in short": _texts("lacks", "readme"),
    "tablets lack": _texts("lacks", "tablets"),
    "the streaming reader of Paimon": _pairs("paimon_stream", "Paimon's Python streaming reader, as proposed"),
    **{f"concepts of {name}": _pairs(system, name) for system, name in SYSTEMS.items()},
    **{f"gains over {name}": _texts("has", f"gains.{system}") for system, name in SYSTEMS.items()},
    **{f"missing from {name}": _texts("lacks", f"missing.{system}") for system, name in SYSTEMS.items()},
}
"""What each place has: the writer of its text, of a list or a table."""


def main() -> None:
    """Writes all pages."""
    rows = read_rows()
    for page in list_pages():
        page.write_text(fill_in(page, rows))


if __name__ == "__main__":
    main()
