"""The code of README.md and of the pages below docs/ runs and prints what the pages say; see `tests.support.pages`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.pages import Page, list_pages, run_page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

PAGES = [page for page in list_pages() if not page.is_for_spark]


@pytest.mark.timeout(180)  # a page runs several programs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_the_code_of_the_page_runs_and_prints_the_documented_output(
    page: Page, shared_server: ServerProcess, tmp_path: Path
) -> None:
    run_page(page, tmp_path, shared_server.url)
