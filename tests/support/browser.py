"""A headless Chromium."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

Mode = Literal["light", "dark"]

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
CHROMEDRIVER = shutil.which("chromedriver") or ""


@contextmanager
def open_browser(*, any_certificate: bool = False) -> Iterator[webdriver.Chrome]:
    """Opens Chromium without a window, which trusts any certificate if that is asked for."""
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.fail("Chromium or its driver is not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.accept_insecure_certs = any_certificate
    # The sandbox needs privileges that containers do not have; the page is our own, on loopback.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1100"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        yield browser
    finally:
        browser.quit()


def set_mode(browser: webdriver.Chrome, mode: Mode) -> None:
    """Has pages be told that their reader prefers a light or a dark page."""
    feature = {"name": "prefers-color-scheme", "value": mode}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def set_size(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Has pages be laid out for a screen of this size in pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
