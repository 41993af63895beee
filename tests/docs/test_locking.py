"""docs/guides/locking.md has every pair of operations, says of each what happens, and names tests that exist."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from tests.integration.server.test_locking_matrix import OPERATIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/locking.md").read_text()


def table_of(heading: str, header: str) -> list[list[str]]:
    """The cells of the table of a section whose first line begins so."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = section[section.index(header) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


def test_the_matrix_says_of_each_pair_what_happens() -> None:
    header, *lines = table_of("Every pair of operations", "| | upsert |")
    meanings = {line[0] for line in table_of("Every pair of operations", "| | means |")[1:]}
    names = header[1:]
    cells = {
        (line[0].strip("*"), name): cell for line in lines for name, cell in zip(names, line[1:], strict=True) if cell
    }
    assert set(cells) == set(itertools.combinations_with_replacement(names, 2))
    assert set(cells.values()) == meanings
    # Each is run.
    assert list(OPERATIONS) == [name for name in names if name in OPERATIONS]


def test_the_tests_that_it_names_exist() -> None:
    for name in re.findall(r"`(?:tests/\w+/(?:\w+/)?)?(test_\w+\.py)`", PAGE):
        assert list((ROOT / "tests").rglob(name)), name
