"""Names of settings, options, methods and columns in the running text of the documentation exist in the code.

Snippets run, so a wrong name in a snippet fails by itself. A renamed setting in a sentence would stay.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
SHIPPED = ("aio_client", "scankv", "spark_bridge", "streaming_server", "protos", "benchmarks", "examples")
# Such as `max_live_scans` and `ConsumerFenced`; one word may be plain English.
NAME = re.compile(r"\b(?:[a-z]+(?:_[a-z0-9]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+)\b")
# Pages about other systems have names of those systems, too.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("concepts", "guides", "internals", "decisions", "operations")
    for path in (ROOT / "docs" / folder).glob("*.md")
    if not path.name.startswith("from-") and path.name != "spark.md"
)


@cache
def list_words() -> frozenset[str]:
    files = [file for folder in SHIPPED for suffix in ("*.py", "*.proto") for file in (ROOT / folder).rglob(suffix)]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


@pytest.mark.parametrize("path", PAGES)
def test_names_in_running_text_exist_in_the_code(path: str) -> None:
    tokens = MarkdownIt().enable("table").parse((ROOT / path).read_text())
    inline = (part.content for token in tokens for part in token.children or () if part.type == "code_inline")
    names = {name for text in inline if ".py" not in text for name in NAME.findall(text)}
    # What the page itself defines, as the recipes of an undo do.
    code = "".join(token.content for token in tokens if token.type == "fence")
    missing = names - list_words() - set(re.findall(r"\w+", code))
    assert sorted(name for name in missing if not name.startswith("test_")) == []
