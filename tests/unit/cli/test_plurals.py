"""Commands, pages and errors show a number with a noun in the singular or the plural, as the number asks for."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from scankv.cli.show import rate
from scankv.model.counts import counted
from tests.support.packaging_files import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMANDS = sorted((ROOT / "scankv" / "cli").rglob("*.py"))
PACKAGES = ("aio_client", "http_gateway", "scankv", "spark_bridge", "streaming_server")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PLURAL = re.compile(r" (rows|keys|attempts|carriers)(?![/\w])")
# Constants and limits are never 1, nor are numbers over a limit.
LIMITS = re.compile(r"\{_?[A-Z]{2}|min_rows|more than|the first |the limit")


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


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_no_command_writes_a_plural_after_any_number(path: Path) -> None:
    allowed = {"f'the scan returned {rows:,} of {self._scale.rows:,} rows'"}
    assert set(fixed_plurals(path.read_text())) <= allowed


def plurals_of_counts(text: str) -> Iterator[str]:
    """Yields the places of a program where a number, however it is shown, stands before the plural of such a noun."""
    if not re.search(r'\}["f\s]+(rows|keys|attempts|carriers)', text):
        return
    for node in ast.walk(ast.parse(text)):
        values = node.values if isinstance(node, ast.JoinedStr) else []
        for number, after in pairwise(values):
            if isinstance(number, ast.FormattedValue) and number.conversion < 0 and isinstance(after, ast.Constant):
                place = ast.unparse(node)
                if PLURAL.match(str(after.value)) and not LIMITS.search(place):
                    yield place


def test_no_package_writes_a_plural_after_a_number_of_rows_or_keys() -> None:
    assert len(SOURCES) > 500
    allowed = {"f'the scan returned {rows:,} of {self._scale.rows:,} rows'"}
    found = {place for path in SOURCES for place in plurals_of_counts(path.read_text())}
    assert found <= allowed


def test_the_check_of_packages_finds_a_fixed_plural() -> None:
    assert list(plurals_of_counts('f"{len(x)} rows"'))
    assert list(plurals_of_counts('f"{n:,} keys have changed"'))
    assert not list(plurals_of_counts("f\"{counted(len(x), 'row')}\""))


def test_the_check_finds_a_fixed_plural() -> None:
    assert list(fixed_plurals('f"loaded {rows:,} rows into {name}"'))
    assert not list(fixed_plurals("f\"loaded {counted(rows, 'row')} into {name}\""))


def test_one_row_is_singular_and_other_numbers_are_plural() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_few_rows_have_no_rate() -> None:
    assert rate(2, 0.01) == ""
    assert rate(3000, 1.5) == " (2,000 rows/s)"
