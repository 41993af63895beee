"""README.md and the quickstart are each one session about one table, and name commands that exist."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields

import pytest

from scankv.model.tables.options import _FIXED, TableOptions
from tests.support.pages import REPL, ROOT, read_page


@pytest.mark.parametrize("path", ["README.md", "docs/quickstart.md"])
def test_the_session_is_about_one_table(path: str) -> None:
    blocks = read_page(path).blocks
    assert {"bash", "python"} <= {block.language for block in blocks}
    assert [block.code.strip() for block in blocks].count(REPL) == 1
    opened = [name for block in blocks for name in re.findall(r'client\.table\("(.+?)"\)', block.code)]
    assert opened == ["game.scores"]


def test_the_tour_and_the_quickstart_use_different_directories() -> None:
    """Their tables have one name and different columns, and a new user runs one after the other."""
    pages = {path: (ROOT / path).read_text() for path in ("README.md", "docs/quickstart.md")}
    used = [set(re.findall(r"scankv serve --data (\S+)", text)) for text in pages.values()]
    assert all(used)
    assert set.intersection(*used) == set()


def test_the_options_that_can_change_are_listed() -> None:
    page = (ROOT / "docs" / "concepts" / "tables.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \|", page.partition("| option | what a change does |")[2], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == {field.name for field in fields(TableOptions)} - set(_FIXED)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_ci_finds_the_command_that_runs_the_tests() -> None:
    (script,) = re.findall(r"sed -n '(.+?)' README\.md", (ROOT / ".ci" / "run").read_text())
    found = subprocess.run(["sed", "-n", script, "README.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "make test\n"


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "docs/benchmarks.md", "docs/quickstart.md"])
def test_every_make_target_named_exists(path: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / path).read_text(), re.MULTILINE))
    assert sorted(named - set(targets)) == []
