"""README.md and the quickstart are each one session about one table, and name commands that exist."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import REPL, ROOT, read_page


@pytest.mark.parametrize("path", ["README.md", "docs/quickstart.md"])
def test_the_session_is_about_one_table(path: str) -> None:
    blocks = read_page(path).blocks
    assert {"bash", "python"} <= {block.language for block in blocks}
    assert [block.code.strip() for block in blocks].count(REPL) == 1
    opened = [name for block in blocks for name in re.findall(r'client\.table\("(.+?)"\)', block.code)]
    assert opened == ["game.scores"]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "docs/benchmarks.md", "docs/quickstart.md"])
def test_every_make_target_named_exists(path: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / path).read_text(), re.MULTILINE))
    assert sorted(named - set(targets)) == []
