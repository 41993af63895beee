"""Every page of the console keeps the rules of axe-core, light and dark, wide and narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.axe import problems_of
from tests.support.browser import set_mode, set_size
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

    from tests.support.browser import Mode
    from tests.support.console import BusyConsole

PAGES = {
    "tables": "/",
    "table": "/tables/game.scores",
    "rows": "/tables/game.scores?where=score+%3C+20&limit=20&run=rows",
    "count": "/tables/game.scores?run=count",
    "plan": "/tables/game.scores?run=explain&order_by=score",
    "problem": "/tables/game.scores?where=score+%3C&run=rows",
    "live": "/tables/game.scores/top?order_by=score&limit=20",
    "refused live": "/tables/game.scores/top?order_by=score&where=score+%3C",
    "scans": "/scans",
    "refreshed scans": "/scans?refresh=30",
    "server": "/server",
    "charts": "/charts",
    "login": "/login",
    "error": "/tables/game.missing",
}
HEIGHT_PIXELS = 900
WIDE_PIXELS = 1920
NARROW_PIXELS = 320
"""A screen of 1,280 pixels, magnified four times."""


@pytest.fixture
def scan(busy: BusyConsole) -> Iterator[str]:
    """The id of a scan that is live during the test."""
    with busy.live_scan() as stream:
        yield stream.scan_id


@pytest.fixture(scope="module")
def admin(browser: Chrome, busy: BusyConsole) -> Chrome:
    """A browser that is logged in."""
    busy.log_in(browser)
    return browser


@pytest.mark.usefixtures("scan")
@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.represented_by("light-login")
def test_a_page_keeps_the_rules_of_accessibility(admin: Chrome, busy: BusyConsole, mode: Mode, path: str) -> None:
    set_mode(admin, mode)
    set_size(admin, WIDE_PIXELS, HEIGHT_PIXELS)
    admin.get(busy.url(path))
    assert problems_of(admin) == []
    set_size(admin, NARROW_PIXELS, HEIGHT_PIXELS)
    # Whether text that one must scroll to has enough contrast, axe cannot tell.
    assert problems_of(admin, ["violations"]) == []
    # Only wide tables scroll sideways, each by itself.
    widths = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    needed, given = admin.execute_script(widths)
    assert needed == given <= NARROW_PIXELS


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_the_login_after_a_wrong_token_keeps_the_rules(browser: Chrome, busy: BusyConsole, mode: Mode) -> None:
    set_mode(browser, mode)
    browser.get(f"{busy.base}/login")
    browser.find_element(By.ID, "token").send_keys("scankv_0_wrong", Keys.ENTER)
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "[role=alert]"), "the refusal")
    assert problems_of(browser) == []


@pytest.mark.breadth
def test_every_part_of_the_pages_has_something_to_show(admin: Chrome, busy: BusyConsole, scan: str) -> None:
    for name in ("tables", "rows", "scans", "server"):
        admin.get(busy.url(PAGES[name]))
        assert "None." not in admin.find_element(By.TAG_NAME, "main").text
    admin.get(busy.url("/scans"))
    assert scan in admin.page_source
    admin.get(busy.url("/"))
    assert "game.damaged" in admin.find_element(By.CSS_SELECTOR, "section").text
    admin.get(busy.url("/server"))
    headings = [each.text for each in admin.find_elements(By.TAG_NAME, "h2")]
    assert headings == ["Now", "Snapshots", "Open transactions", "Column locks", "Slow calls", "Columnar bases"]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("color-contrast", 'document.querySelector("dt").style.color = "#999"'),
        ("label", 'document.querySelector("label[for=limit]").remove()'),
        ("button-name", 'document.querySelector("form.query button").textContent = ""'),
        ("html-has-lang", 'document.documentElement.removeAttribute("lang")'),
        ("document-title", 'document.title = ""'),
        ("heading-order", 'document.querySelector("h2").outerHTML = "<h4>Query</h4>"'),
        ("region", 'document.body.insertAdjacentHTML("beforeend", "<p>outside</p>")'),
        ("scope-attr-valid", 'document.querySelector("thead th").scope = "column"'),
    ],
)
@pytest.mark.represented_by('color-contrast-document.querySelector("dt").style.color = "#999"')
def test_a_page_that_breaks_a_rule_is_found(admin: Chrome, busy: BusyConsole, rule: str, change: str) -> None:
    set_mode(admin, "light")
    set_size(admin, WIDE_PIXELS, HEIGHT_PIXELS)
    admin.get(busy.url(PAGES["table"]))
    admin.execute_script(change)
    assert rule in [problem.partition(":")[0] for problem in problems_of(admin)]
