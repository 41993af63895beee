"""A table without options becomes fast once it is scanned, and its page says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from aio_client import sync
from tests.http.conftest import SCORES
from tests.support.gateway import GatewayProcess
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

# As many as a bucket needs, by default.
ROWS = 100_000


@pytest.mark.breadth
@pytest.mark.timeout(120)
def test_the_page_of_a_new_table_explains_that_its_scans_read_rocksdb_and_then_the_base(
    tmp_path: Path, browser: Chrome
) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        sync.connect(server.url) as client,
        GatewayProcess(server.url) as gateway,
    ):
        table = client.create_table("game.large", SCORES, primary_key=["player"], buckets=1)
        table.upsert(pa.table({"player": [f"p{number:06d}" for number in range(ROWS)], "score": range(ROWS)}))

        def explanation() -> str:
            browser.get(f"http://127.0.0.1:{gateway.port}/tables/{table.name}")
            # The first rows in any order are few, and never read a base.
            Select(browser.find_element(By.ID, "order_by")).select_by_visible_text("score")
            browser.find_element(By.CSS_SELECTOR, "button[value=explain]").click()
            wait_until(lambda: "run=explain" in browser.current_url, "the query")
            return browser.find_element(By.CSS_SELECTOR, "[role=status] pre").text

        assert "no bucket has a columnar base ready" in explanation()
        assert table.scan().to_arrow().num_rows == ROWS
        wait_until(lambda: "path      columnar" in explanation(), "the base")
