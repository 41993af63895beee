"""Guides say first what to do. Details are folded, and stay short to read until a reader opens them."""

from __future__ import annotations

import re
from typing import Final

import pytest
from markdown_it import MarkdownIt

from tests.support.pages import ROOT

GUIDES: Final = sorted(path.stem for path in (ROOT / "docs" / "guides").glob("*.md") if path.stem != "index")
FOLD: Final = re.compile(r"(?<=\n\n)<details>\n<summary>[^\n]+</summary>\n\n(.*?)\n\n</details>\n", re.DOTALL)
MOST_WORDS_BEFORE_CODE: Final = 60
MOST_WORDS_OF_A_SECTION: Final = 140


def read_guide(name: str) -> str:
    return (ROOT / "docs" / "guides" / f"{name}.md").read_text()


def count_words(text: str) -> dict[str, int]:
    """Returns how many words the running text of each section has, without code and tables."""
    words, heading, depth = {"": 0}, "", 0
    tokens = MarkdownIt().enable("table").parse(text)
    for before, token in zip(["", *(token.type for token in tokens)], tokens, strict=False):
        depth += (token.type == "table_open") - (token.type == "table_close")
        if token.type == "inline" and before == "heading_open":
            heading = token.content
            words[heading] = 0
        elif token.type == "inline" and not depth:
            words[heading] += len(token.content.split())
    return words


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_begins_with_what_to_do(name: str) -> None:
    beginning = FOLD.sub("", read_guide(name)).partition("```")[0]
    assert sum(count_words(beginning).values()) <= MOST_WORDS_BEFORE_CODE


@pytest.mark.parametrize("name", GUIDES)
def test_details_are_folded_and_sections_are_short(name: str) -> None:
    text = read_guide(name)
    assert FOLD.search(text)
    words = count_words(FOLD.sub("", text))
    assert {heading: count for heading, count in words.items() if count > MOST_WORDS_OF_A_SECTION} == {}


@pytest.mark.parametrize("name", GUIDES)
def test_folds_are_complete_and_have_no_headings_which_links_could_not_open(name: str) -> None:
    text = read_guide(name)
    folds = FOLD.findall(text)
    assert len(folds) == text.count("<details>") == text.count("</details>")
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert [fold for fold in folds if re.search("^#", code.sub("", fold), re.MULTILINE)] == []
