"""The code of the pages about Spark runs unchanged, in an existing session, as in `pyspark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.pages import Page, list_pages, run_page

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

PAGES = [page for page in list_pages() if page.is_for_spark]


@pytest.mark.timeout(300)  # a page starts and stops several streaming queries
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_the_code_of_the_page_runs_and_prints_the_documented_output(
    page: Page, spark: SparkSession, shared_server: ServerProcess, tmp_path: Path
) -> None:
    run_page(page, tmp_path, shared_server.url, spark=spark)
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)
        else:
            spark.sql(f"DROP TABLE {table.name}")
