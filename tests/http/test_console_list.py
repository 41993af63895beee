"""The list of tables: rows and sizes, pages of a hundred, a filter, and a server of which a part is away."""

from __future__ import annotations

import html
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from aio_client import sync
from scankv.formats.amounts import size
from tests.http.conftest import SCORES, TokenGateway
from tests.support.axe import problems_of
from tests.support.browser import set_size
from tests.support.gateway import GatewayProcess
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import names_of_workers, processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

TABLES = 205


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of a server with the tables `many.t000` to `many.t204`."""
    with (
        ServerProcess(tmp_path_factory.mktemp("many") / "data") as server,
        sync.connect(server.url) as client,
        GatewayProcess(server.url) as gateway,
    ):
        for number in range(TABLES):
            client.create_table(f"many.t{number:03}", SCORES, primary_key=["player"], buckets=1)
        yield gateway


def rows_of(gateway: GatewayProcess, **query: Any) -> dict[str, list[str]]:
    """Returns the texts of the cells of each row, by the name of the table."""
    answer = gateway.get("/", **query)
    assert answer.status == 200, answer.body
    rows = re.findall(r"<tr>(<th scope=\"row\">.*?)</tr>", answer.body.decode(), re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return {re.sub("<[^>]*>", "", first): [html.unescape(each) for each in rest] for first, *rest in cells}


@pytest.mark.breadth
def test_the_list_has_rows_and_sizes(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        sync.connect(server.url) as client,
        GatewayProcess(server.url) as gateway,
    ):
        table = client.create_table("a.counted", SCORES, primary_key=["player"], indexes=["score"])
        table.upsert([{"player": f"p{number}", "score": number} for number in range(1234)])
        other = client.create_table("a.uncounted", SCORES, primary_key=["player"], buckets=1, changelog="upsert")
        other.upsert([{"player": "ann", "score": 1}])
        shown = rows_of(gateway)
        on_disk = size(client.table_sizes(["a.counted"])["a.counted"].disk_bytes)
        assert shown["a.counted"] == ["1,234", on_disk, "player", "2", "4", "score", "last_row"]
        assert shown["a.uncounted"][0] == "not counted"
        text = gateway.get("/").body.decode()
        assert "per second" not in text
        assert "not known" not in text
        assert server.stop() == 0
        server.restart()
        assert rows_of(gateway)["a.counted"][0] == "not counted yet"
        assert "were not used since the server started" in gateway.get("/").body.decode()
        # The page of a table counts its rows.
        assert gateway.get("/tables/a.counted").status == 200
        assert rows_of(gateway)["a.counted"][0] == "1,234"


@pytest.mark.breadth
def test_many_tables_come_by_the_hundred(many: GatewayProcess, browser: Chrome) -> None:
    base = f"http://127.0.0.1:{many.port}"
    browser.get(f"{base}/")

    def caption() -> str:
        return browser.find_element(By.TAG_NAME, "caption").text

    def follow(text: str, page: int) -> None:
        browser.find_element(By.LINK_TEXT, text).send_keys(Keys.ENTER)
        wait_until(lambda: browser.current_url == f"{base}/?name=&page={page}", "the other page")

    assert caption() == "1 to 100 of 205 tables"
    follow("Next tables", 2)
    assert caption() == "101 to 200 of 205 tables"
    follow("Next tables", 3)
    assert caption() == "201 to 205 of 205 tables"
    assert not browser.find_elements(By.LINK_TEXT, "Next tables")
    assert "name=&amp;page=2&amp;refresh=30" in many.get("/", page="3", refresh="30").body.decode()
    assert list(rows_of(many, page="3")) == [f"many.t{number}" for number in range(200, 205)]
    assert rows_of(many, page="99") == rows_of(many, page="3")
    follow("Previous 100 tables", 2)
    assert caption() == "101 to 200 of 205 tables"


@pytest.mark.breadth
def test_a_filter_by_name_works_with_the_keyboard_and_stays_when_the_page_refreshes(
    many: GatewayProcess, browser: Chrome
) -> None:
    base = f"http://127.0.0.1:{many.port}"
    browser.get(f"{base}/")
    browser.find_element(By.ID, "name").send_keys("T20", Keys.ENTER)
    wait_until(lambda: browser.current_url == f"{base}/?name=T20", "the filtered list")
    assert browser.find_element(By.TAG_NAME, "caption").text == "5 tables"
    assert browser.find_element(By.ID, "name").accessible_name == "Name contains"
    browser.find_element(By.LINK_TEXT, "Refresh every 5 seconds").click()
    assert browser.current_url == f"{base}/?name=T20&refresh=5"
    assert browser.find_element(By.TAG_NAME, "caption").text == "5 tables"
    assert "No table that you may read" in many.get("/", name="<nothing>").body.decode()
    assert b"<nothing>" not in many.get("/", name="<nothing>").body
    assert many.get("/", page="0").status == 400


@pytest.mark.soak
def test_a_long_list_keeps_the_rules_of_accessibility_wide_and_narrow(many: GatewayProcess, browser: Chrome) -> None:
    for width in (1280, 390):
        set_size(browser, width, 900)
        browser.get(f"http://127.0.0.1:{many.port}/?page=2")
        assert problems_of(browser, ["violations"]) == []
        widths = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        needed, given = browser.execute_script(widths)
        assert needed == given


@pytest.mark.breadth
def test_sizes_are_those_of_tables_that_the_caller_may_read(secured: TokenGateway) -> None:
    names = ["game.scores", "other.scores"]
    assert list(secured.client.table_sizes(names)) == names
    with sync.connect(secured.url, token=secured.issuer.create("read:game.*")) as reader:
        assert list(reader.table_sizes(names)) == ["game.scores"]


@pytest.mark.breadth
def test_the_list_comes_without_the_tables_of_a_worker_that_is_away(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, sync.connect(server.url) as client:
        first, second = (names[0] for names in names_of_workers(2))
        for name in (first, second):
            client.create_table(name, schema, primary_key=["k"]).upsert([{"k": 1}])
        # Not at the port of the server, where the worker that is frozen may get the connection.
        port = client.table(first).owner_port
        with GatewayProcess(f"127.0.0.1:{port}") as gateway:
            assert set(rows_of(gateway)) == {first, second}
            frozen = processes_of(server)[1]
            os.kill(frozen, signal.SIGSTOP)
            try:
                began = time.monotonic()
                shown = rows_of(gateway)
                assert time.monotonic() - began < 6
                assert list(shown) == [first]
                assert shown[first][0] == "1"
                assert "1 worker process of the server does not answer" in gateway.get("/").body.decode()
            finally:
                os.kill(frozen, signal.SIGCONT)
            wait_until(lambda: set(rows_of(gateway)) == {first, second}, "both tables")
            assert "does not answer" not in gateway.get("/").body.decode()
