"""Links and paths in the Markdown of the repository lead to files and headings that exist.

Sphinx checks the links between pages of the site when it is built. This also covers what is no page of it, and paths in
running text. Links to other hosts need a network and are not followed.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
# A file with its folder, as it is named in running text: `storage/cursor.py`, `tests/unit/`.
NAMED = re.compile(r"(?:[\w.]+/)+[\w.-]+\.(?:py|md|proto|toml|ipynb)")


@cache
def list_files() -> tuple[str, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return tuple(path for path in listed.stdout.splitlines() if (ROOT / path).is_file())


PAGES = [path for path in list_files() if path.endswith(".md") and not path.startswith("docs/_")]


@cache
def parse(path: str) -> list[Token]:
    return MarkdownIt().enable("table").parse((ROOT / path).read_text())


def iterate_inline(path: str) -> Iterator[Token]:
    for token in parse(path):
        yield from token.children or ()


@cache
def list_anchors(path: str) -> frozenset[str]:
    """The anchors of the headings of a page, as GitHub and the site make them."""
    anchors: set[str] = set()
    tokens = parse(path)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type != "heading_open":
            continue
        text = "".join(part.content for part in inline.children or () if part.type in {"text", "code_inline"})
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 1
        unique = slug
        while unique in anchors:
            unique = f"{slug}-{number}"
            number += 1
        anchors.add(unique)
    return frozenset(anchors)


@pytest.mark.parametrize("path", PAGES)
def test_relative_links_lead_to_files_and_headings(path: str) -> None:
    broken = []
    for token in iterate_inline(path):
        target = str(token.attrs.get("href") or token.attrs.get("src") or "")
        if not target or re.match(r"\w+:", target):
            continue
        file, _, anchor = unquote(target).partition("#")
        page = ((ROOT / path).parent / file).resolve() if file else ROOT / path
        if not page.exists():
            broken.append(target)
        elif page.is_relative_to(ROOT / "docs" / "reference"):
            continue  # its headings are generated; Sphinx checks the anchors
        elif anchor and page.suffix == ".md" and anchor not in list_anchors(page.relative_to(ROOT).as_posix()):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", [path for path in PAGES if path != "CHANGELOG.md"])
def test_files_named_in_the_text_exist(path: str) -> None:
    named = {
        name for token in iterate_inline(path) if token.type == "code_inline" for name in NAMED.findall(token.content)
    }
    files = [f"/{file}" for file in list_files()]
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []
