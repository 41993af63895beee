"""The code of README.md and of the pages below docs/ runs and prints what the pages say; see `tests.support.pages`."""

from __future__ import annotations

import ast
import codeop
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import Page, list_pages, run_page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

PAGES = [page for page in list_pages() if not page.is_for_spark]
# Its functions are for a file.
FOR_A_FILE = {"docs/operations/old-rows.md"}


@pytest.mark.represented_by(
    "docs/guides/undo.md",
    "docs/guides/column-locks.md",
    "docs/guides/partitions.md",
    "docs/index.md",
    "docs/guides/expiry.md",
    "docs/guides/dashboards.md",
    "docs/operations/old-rows.md",
)
@pytest.mark.timeout(180)  # a page runs several programs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_the_code_of_the_page_runs_and_prints_the_documented_output(
    page: Page, shared_server: ServerProcess, tmp_path: Path
) -> None:
    run_page(page, tmp_path, shared_server.url)


def test_blocks_of_python_can_be_pasted_into_a_prompt() -> None:
    """The prompt of Python before 3.13 ends a function or loop at an empty line, and only there."""
    broken = [
        f"{page.path}:{block.line + line}"
        for page in list_pages()
        if page.path not in FOR_A_FILE
        for block in page.blocks
        if block.language == "python" and (line := _line_that_a_prompt_refuses(block.code)) is not None
    ]
    assert broken == []


def _line_that_a_prompt_refuses(code: str) -> int | None:
    compile_command = codeop.CommandCompiler()
    compile_command.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    statement: list[str] = []
    for number, line in enumerate([*code.splitlines(), ""]):
        statement.append(line)
        try:
            if compile_command("\n".join(statement), symbol="single"):
                statement = []
        except SyntaxError:
            return number
    return None
