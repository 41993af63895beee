"""Fixtures of the examples' tests: a headless Chromium, and the examples' commands."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from examples.leaderboard.replay import _departures

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
CHROMEDRIVER = shutil.which("chromedriver") or ""


@pytest.fixture(scope="package")
def first_days() -> pa.Table:
    """Returns the flights of a day and a half that were not cancelled, by hour."""
    return _departures().filter(pc.field("time_hour") < "2013-01-02T20")


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window."""
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.fail("Chromium or its driver is not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # The sandbox needs privileges that containers do not have; the page is our own, on loopback.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1100"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        yield browser
    finally:
        browser.quit()
