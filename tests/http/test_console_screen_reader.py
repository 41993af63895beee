"""What does a screen reader say of the console? The tree that Chromium gives to assistive technology."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.by import By

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.support.console import BusyConsole

HEADINGS = {
    "/": ["Tables", "Damaged"],
    "/tables/game.scores": [
        "game.scores",
        "Query",
        "Last 15 minutes",
        "Definition",
        "Columns",
        "Indexes",
        "Buckets",
        "Columnar bases",
        "Consumers",
    ],
    "/tables/game.scores/top?order_by=score": ["game.scores by score"],
    "/scans": ["Live scans"],
    "/server": [
        "Server",
        "Now",
        "Snapshots",
        "Open transactions",
        "Column locks",
        "Slow calls",
        "Columnar bases",
    ],
    "/tables/game.missing": ["Table not found"],
}
TABLES = {
    "/": ["tables"],
    "/tables/game.scores": ["rows", "columns", "index", "buckets", "buckets and their columnar bases", "consumer"],
    "/scans": ["live scans, oldest first"],
    "/server": ["snapshot", "open transaction", "column lock", "slow calls", "table"],
}
"""What follows the number in the names of the tables of a page."""


class AccessibilityTree:
    """What assistive technology sees of the page that a browser shows."""

    def __init__(self, browser: Chrome) -> None:
        nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        self._nodes = [node for node in nodes if not node["ignored"]]
        self._by_id = {node["nodeId"]: node for node in nodes}

    def names(self, role: str) -> list[str]:
        """Returns the names of all elements with a role, in the order of the page."""
        return [_value(node, "name") for node in self._nodes if _value(node, "role") == role]

    def tables(self) -> dict[str, list[list[str]]]:
        """Returns the roles of the cells of each row of each table, by the name of the table."""
        tables = [node for node in self._nodes if _value(node, "role") == "table"]
        assert len({_value(table, "name") for table in tables}) == len(tables)
        return {_value(table, "name"): self._rows(table) for table in tables}

    def _rows(self, node: dict[str, Any]) -> list[list[str]]:
        children = [self._by_id[each] for each in node.get("childIds", ())]
        if _value(node, "role") == "row":
            return [[_value(child, "role") for child in children if not child["ignored"]]]
        return [row for child in children for row in self._rows(child)]


def _value(node: dict[str, Any], key: str) -> str:
    value: str = node.get(key, {}).get("value", "")
    return value


@pytest.fixture(scope="module")
def admin(browser: Chrome, busy: BusyConsole) -> Chrome:
    browser.get(f"{busy.base}/login")
    tree = AccessibilityTree(browser)
    assert (tree.names("textbox"), tree.names("button")) == (["Token"], ["Log in"])
    busy.log_in(browser)
    return browser


@pytest.mark.represented_by("/tables/game.missing", "/tables/game.scores/top?order_by=score", "/server")
@pytest.mark.parametrize("path", HEADINGS)
def test_titles_landmarks_and_headings_say_where_one_is(admin: Chrome, busy: BusyConsole, path: str) -> None:
    with busy.live_scan():
        admin.get(busy.url(path))
    tree = AccessibilityTree(admin)
    assert tree.names("RootWebArea") == [f"{HEADINGS[path][0]} - ScanKV"]
    assert admin.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"
    assert tree.names("heading") == HEADINGS[path]
    assert tree.names("region") == HEADINGS[path][1:]
    assert (tree.names("banner"), tree.names("navigation"), tree.names("main")) == ([""], ["Pages"], [""])


@pytest.mark.represented_by("/scans", "/")
@pytest.mark.parametrize("path", TABLES)
def test_a_table_has_a_name_and_headers_for_every_cell(admin: Chrome, busy: BusyConsole, path: str) -> None:
    with busy.live_scan(), busy.live_scan():
        admin.get(busy.url(path))
    tables = AccessibilityTree(admin).tables()
    assert sorted(name.partition(" ")[2] for name in tables) == sorted(TABLES[path])
    for name, (head, *rows) in tables.items():
        assert set(head) == {"columnheader"}
        assert len(rows) >= 1
        # The first column of a query's result need not say which row it is.
        first = "cell" if name.endswith(" rows") else "rowheader"
        for row in rows:
            assert row == [first, *["cell"] * (len(head) - 1)]


@pytest.mark.breadth
def test_buttons_fields_and_links_say_what_they_are_for(admin: Chrome, busy: BusyConsole) -> None:
    admin.get(busy.url("/tables/game.scores?limit=3&run=rows"))
    tree = AccessibilityTree(admin)
    assert tree.names("button") == ["Log out", "Show rows", "Count rows", "Explain query"]
    assert (tree.names("textbox"), tree.names("combobox")) == (["Where"], ["Order by", "Direction"])
    assert tree.names("spinbutton") == ["Rows"]
    assert tree.tables()["3 rows"] == [["columnheader"] * 3, *[["cell"] * 3] * 3]
    with busy.live_scan() as one, busy.live_scan() as other:
        admin.get(busy.url("/scans"))
    tree = AccessibilityTree(admin)
    stops = [f"Stop scan {each.scan_id} of game.wide" for each in (one, other)]
    assert tree.names("button") == ["Log out", *stops]
    # Links that lead to different places have different names.
    for path in HEADINGS:
        admin.get(busy.url(path))
        links = {(each.accessible_name, each.get_attribute("href")) for each in admin.find_elements(By.TAG_NAME, "a")}
        assert max(Counter(name for name, _ in links).values()) == 1


@pytest.mark.breadth
def test_a_problem_is_an_alert_and_a_result_is_a_status(admin: Chrome, busy: BusyConsole) -> None:
    admin.get(busy.url("/tables/game.scores?where=score+%3C&run=count"))
    assert len(AccessibilityTree(admin).names("alert")) == 1
    admin.get(busy.url("/tables/game.scores?run=count"))
    tree = AccessibilityTree(admin)
    assert (len(tree.names("alert")), len(tree.names("status"))) == (0, 1)
    admin.get(busy.url("/tables/game.missing"))
    assert len(AccessibilityTree(admin).names("alert")) == 1
