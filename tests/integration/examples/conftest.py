"""Fixtures of the examples' tests: a headless Chromium, and the examples' commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from examples.leaderboard.replay import _departures
from tests.support.browser import open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from selenium import webdriver


@pytest.fixture(scope="package")
def first_days() -> pa.Table:
    """Returns the flights of a day and a half that were not cancelled, by hour."""
    return _departures().filter(pc.field("time_hour") < "2013-01-02T20")


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window."""
    with open_browser() as browser:
        yield browser
