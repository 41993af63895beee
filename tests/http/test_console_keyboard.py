"""Every link, field and button of the console can be reached and used with the keyboard, and shows its focus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from aio_client import ScanCancelled
from tests.http.test_console import log_in as log_in_by_http
from tests.support.browser import set_mode
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.support.browser import Mode
    from tests.support.console import BusyConsole

PAGES = (
    "/",
    "/tables/game.scores?limit=3&run=rows",
    "/tables/game.scores/top?order_by=score",
    "/scans",
    "/scans?refresh=30",
    "/server",
    "/charts",
    "/login",
    "/tables/missing",
)
FOCUSABLE = "a[href]:not([hidden] *), button, input:not([type=hidden]), select, [tabindex='0']"
MOST_STOPS = 100

# The number of the focused element among all that can be focused, or -1, how it is outlined, and on which background.
FOCUS = """
const background = (element) => {
  const own = getComputedStyle(element).backgroundColor;
  return own === "rgba(0, 0, 0, 0)" && element.parentElement ? background(element.parentElement) : own;
};
const element = document.activeElement, style = getComputedStyle(element);
return {
  number: [...document.querySelectorAll(arguments[0])].indexOf(element), html: element.outerHTML.slice(0, 200),
  outline: style.outlineStyle, pixels: parseFloat(style.outlineWidth), color: style.outlineColor,
  border: style.borderStyle === "none" ? null : style.borderTopColor,
  behind: background(element.parentElement || element),
};
"""


def press(browser: Chrome, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def press_back(browser: Chrome) -> None:
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()


def tab_to(browser: Chrome, name: str) -> None:
    """Presses Tab until an element with this accessible name has the focus."""
    for _ in range(MOST_STOPS):
        press(browser, Keys.TAB)
        if browser.switch_to.active_element.accessible_name == name:
            return
    raise AssertionError(f"no element {name!r} can be reached with Tab")


def follow(browser: Chrome, name: str, title: str, key: str = Keys.ENTER) -> None:
    """Reaches a link or a button, presses it, and waits for the page that it leads to."""
    tab_to(browser, name)
    press(browser, key)
    wait_until(lambda: browser.title == f"{title} - ScanKV", f"the page {title}")


def log_in(browser: Chrome, busy: BusyConsole) -> None:
    browser.delete_all_cookies()
    browser.get(f"{busy.base}/login")
    # The only field of the page has the focus from the start.
    press(browser, busy.token)
    follow(browser, "Log in", "Tables", Keys.SPACE)
    busy.session = browser.current_url.rstrip("/")


def luminance(color: str) -> float:
    """Returns the relative luminance of WCAG 2.1 of a colour such as `rgb(1, 2, 3)`."""
    found = re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", color)
    assert found, color
    shares = (int(each) / 255 for each in found.groups())
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of two colours."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def stops(browser: Chrome) -> list[dict[str, Any]]:
    """Presses Tab from the start of the page to its end; returns what had the focus."""
    # A page may begin with a field that has the focus.
    browser.execute_script(
        "const {body} = document; body.tabIndex = -1; body.focus(); body.removeAttribute('tabindex')"
    )
    found: list[dict[str, Any]] = []
    while len(found) < MOST_STOPS:
        press(browser, Keys.TAB)
        focus = browser.execute_script(FOCUS, FOCUSABLE)
        if focus["number"] < 0 or (found and focus["number"] == found[0]["number"]):
            return found
        found.append(focus)
    raise AssertionError(f"more than {MOST_STOPS} stops: {found}")


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.breadth
def test_every_link_field_and_button_is_reached_in_order_and_visibly_focused(
    browser: Chrome, busy: BusyConsole, mode: Mode
) -> None:
    set_mode(browser, mode)
    log_in(browser, busy)
    with busy.live_scan():
        for path in PAGES:
            browser.get(busy.url(path))
            found = stops(browser)
            elements = browser.find_elements(By.CSS_SELECTOR, FOCUSABLE)
            assert [each["number"] for each in found] == list(range(len(elements)))
            for each in found:
                assert each["outline"] == "solid", each
                assert each["pixels"] >= 2, each
                assert contrast(each["color"], each["behind"]) >= 3, each
                # The border shows where a field is, also without the focus.
                assert each["border"] is None or contrast(each["border"], each["behind"]) >= 3, each


@pytest.mark.breadth
def test_an_admin_works_with_the_keyboard_alone(browser: Chrome, busy: BusyConsole) -> None:
    log_in(browser, busy)

    # The first stop of a page leads past its navigation.
    tab_to(browser, "Skip to the content")
    assert browser.switch_to.active_element.location["x"] >= 0
    press(browser, Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"
    press(browser, Keys.TAB)
    assert browser.switch_to.active_element.text == "Refresh every 5 seconds"
    press_back(browser)
    assert browser.switch_to.active_element.accessible_name == "Log out"

    follow(browser, "game.scores", "game.scores")
    tab_to(browser, "Where")
    press(browser, "score < 3")
    tab_to(browser, "Show rows")
    press(browser, Keys.SPACE)
    # The page shows its first rows before the query runs.
    wait_until(lambda: "run=rows" in browser.current_url, "the query")
    rows = wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "[role=status] tbody tr"), "the rows")
    assert len(rows) == 3

    with busy.live_scan() as stream:
        follow(browser, "Scans", "Live scans")
        stop = f"Stop scan {stream.scan_id} of game.wide"
        tab_to(browser, stop)
        press(browser, Keys.ENTER)
        wait_until(lambda: stream.scan_id not in [scan.scan_id for scan in busy.client.live_scans()], "the end")
        wait_until(lambda: stream.scan_id not in browser.find_element(By.TAG_NAME, "main").text, "a list without it")
        with pytest.raises(ScanCancelled):
            list(stream)

    follow(browser, "Log out", "Log in")
    browser.get(busy.url("/scans"))
    assert browser.title == "Log in - ScanKV"


@pytest.mark.soak
def test_no_page_refreshes_unless_asked_to_and_none_with_a_form(browser: Chrome, busy: BusyConsole) -> None:
    """A refresh clears what was typed, and takes the focus away."""
    log_in(browser, busy)
    session = log_in_by_http(busy.gateway, busy.token)
    with busy.live_scan():
        for path, forms in (("/", 1), ("/tables/game.scores", 1), ("/scans", 1), ("/server", 0), ("/charts", 0)):
            page = session.get(path)
            assert "refresh" not in page.headers
            assert b"http-equiv" not in page.body
            assert session.get(path, refresh="5").headers["refresh"] == "5"
            browser.get(busy.url(path))
            title = browser.title.removesuffix(" - ScanKV")
            assert len(browser.find_elements(By.CSS_SELECTOR, "main form")) == forms
            follow(browser, "Refresh every 5 seconds", title)
            wait_until(lambda: browser.find_elements(By.LINK_TEXT, "Stop refreshing"), "a page that refreshes")
            assert not browser.find_elements(By.CSS_SELECTOR, "main form, main button, main input")
    assert busy.gateway.get("/login", refresh="5").status == 400
