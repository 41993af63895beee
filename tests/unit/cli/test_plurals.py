"""Commands show a number with a noun in the singular or the plural, as the number asks for."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from scankv.cli.show import counted, rate
from tests.support.packaging_files import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCES = sorted((ROOT / "scankv" / "cli").glob("*.py"))


def fixed_plurals(text: str) -> Iterator[str]:
    """Yields the places of a program where a whole number with commas stands before a fixed plural."""
    for node in ast.walk(ast.parse(text)):
        values = node.values if isinstance(node, ast.JoinedStr) else []
        for number, after in pairwise(values):
            if not isinstance(number, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            spec = ast.unparse(number.format_spec) if number.format_spec else ""
            words = str(after.value).split()
            if spec == "f','" and str(after.value).startswith(" ") and words and words[0].rstrip(",;:)").endswith("s"):
                yield ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_command_writes_a_plural_after_any_number(path: Path) -> None:
    allowed = {"f'the scan returned {rows:,} of {self._scale.rows:,} rows'"}
    assert set(fixed_plurals(path.read_text())) <= allowed


def test_the_check_finds_a_fixed_plural() -> None:
    assert list(fixed_plurals('f"loaded {rows:,} rows into {name}"'))
    assert not list(fixed_plurals("f\"loaded {counted(rows, 'row')} into {name}\""))


def test_one_row_is_singular_and_other_numbers_are_plural() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_few_rows_have_no_rate() -> None:
    assert rate(2, 0.01) == ""
    assert rate(3000, 1.5) == " (2,000 rows/s)"
