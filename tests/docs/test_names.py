"""Names of settings, options, methods and columns in the running text of the documentation exist in the code.

Snippets run, so a wrong name in a snippet fails by itself. A renamed setting in a sentence would stay.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scankv.model.tables.options import TableOptions
from streaming_server.config import ServerConfig

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
PUBLIC_MODULES = ("scankv", "scankv.sync", "scankv.mirror", "scankv.spark", "scankv.testing")
DEFINITION = re.compile(r"^ *(?:async def|def|class) (\w+)", re.MULTILINE)
NOT_FOR_CALLERS = {
    "RowKind",  # Flink's class, whose values ours have
    "ServerClock",  # named with its file, where readers find how the server measures time
}


@cache
def list_words() -> frozenset[str]:
    files = [file for folder in SHIPPED for suffix in ("*.py", "*.proto") for file in (ROOT / folder).rglob(suffix)]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


@cache
def list_names_in(path: str) -> frozenset[str]:
    tokens = MarkdownIt().enable("table").parse((ROOT / path).read_text())
    inline = (part.content for token in tokens for part in token.children or () if part.type == "code_inline")
    return frozenset(name for text in inline if ".py" not in text for name in NAME.findall(text))


def list_public_names() -> set[str]:
    names = {field.name for cls in (ServerConfig, TableOptions) for field in fields(cls)}
    for module in map(import_module, PUBLIC_MODULES):
        for name in module.__all__:
            names |= {name, *dir(getattr(module, name))}
            members = [getattr(module, name), *vars(getattr(module, name)).values()]
            functions = [inspect.unwrap(each) for each in members if inspect.isroutine(each)]
            names.update(*(inspect.signature(each).parameters for each in functions if inspect.isfunction(each)))
    return names


def test_users_are_told_of_no_function_or_class_that_they_cannot_reach() -> None:
    code = [file.read_text() for folder in SHIPPED for file in (ROOT / folder).rglob("*.py")]
    ours = {name for text in code for name in DEFINITION.findall(text)} - list_public_names() - NOT_FOR_CALLERS
    pages = [
        page.relative_to(ROOT).as_posix()
        for page in (ROOT / "docs").rglob("*.md")
        if {"internals", "decisions", "command-line"}.isdisjoint(page.parts) and not page.match("scankv.*.md")
    ]
    unreachable = {(page, name) for page in pages for name in list_names_in(page) & ours}
    # In quotes are values, options of Spark, keys of JSON and of metadata.
    quoted = {name for _, name in unreachable if any(f'"{name}"' in text for text in code)}
    assert sorted(each for each in unreachable if each[1] not in quoted) == []


@pytest.mark.parametrize("path", PAGES)
def test_names_in_running_text_exist_in_the_code(path: str) -> None:
    tokens = MarkdownIt().enable("table").parse((ROOT / path).read_text())
    inline = (part.content for token in tokens for part in token.children or () if part.type == "code_inline")
    names = {name for text in inline if ".py" not in text for name in NAME.findall(text)}
    # What the page itself defines, as the recipes of an undo do.
    code = "".join(token.content for token in tokens if token.type == "fence")
    missing = names - list_words() - set(re.findall(r"\w+", code))
    assert sorted(name for name in missing if not name.startswith("test_")) == []
