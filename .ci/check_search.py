"""Checks in a browser that the search of the built site finds what users look for, and that pages show it.

Usage: python .ci/check_search.py, after the site has been built in build/docs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

from tests.support.browser import open_browser, set_size  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

SITE = ROOT / "build" / "docs"
EXPECTED = {
    "install": "install.html",
    "quickstart": "quickstart.html",
    "leaderboard": "guides/dashboards.html",
    "dashboard": "guides/dashboards.html",
    "spark": "guides/spark.html",
    "iceberg": "guides/lake.html",
    "transaction": "guides/transactions.html",
    "backup": "operations/backups.html",
    "upsert": "reference/python/scankv.Table.html",
    "top_n": "reference/python/scankv.Table.html",
    "__arrow_c_stream__": "reference/python/scankv.Table.html",
    "scankv load": "reference/command-line/load.html",
    "TableNotFound": "reference/errors.html",
    "max_live_scans": "reference/settings.html",
}
"""What someone searches, and the page that must be among the first results."""
FIRST = 3
COMPLETE = {
    1280: ("reference/types.html", "reference/settings.html"),
    390: ("reference/metrics.html", "reference/settings.html"),
}
"""Pages that show each table completely at a width, in pixels."""
CUT_OFF = """return [...document.querySelectorAll("html, .table-wrapper")]
    .some(each => each.scrollWidth > each.clientWidth + 1)"""
METHOD = "reference/python/scankv.Table.html#scankv.Table.upsert"
UNFOLDED = "return [...document.querySelectorAll('details.member')].filter(each => each.open).length"


def main() -> None:
    """Prints the first results of each search, and fails if anything is not as it should be."""
    with open_browser() as browser:
        failed = [*_search(browser), *_look_at_pages(browser)]
    if failed:
        sys.exit("\n".join(failed))


def _search(browser: Chrome) -> Iterator[str]:
    for query, page in EXPECTED.items():
        browser.get(f"{(SITE / 'search.html').as_uri()}?q={quote(query)}")
        WebDriverWait(browser, 60).until(lambda each: each.find_elements(By.CSS_SELECTOR, "ul.search li a"))
        links = browser.find_elements(By.CSS_SELECTOR, "ul.search li a")
        found = [(link.get_attribute("href") or "").partition("?")[0].partition("#")[0] for link in links[:FIRST]]
        shown = [url.removeprefix(f"{SITE.as_uri()}/") for url in found]
        print(f"{query}: {', '.join(shown)}")
        if page not in shown:
            yield f"{query} does not find {page}"


def _look_at_pages(browser: Chrome) -> Iterator[str]:
    for width, pages in COMPLETE.items():
        set_size(browser, width, 1000)
        for page in pages:
            browser.get((SITE / page).as_uri())
            if browser.execute_script(CUT_OFF):
                yield f"{page} is cut off at {width} pixels"
    browser.get(f"{SITE.as_uri()}/{METHOD}")
    if browser.execute_script(UNFOLDED) != 1:
        yield f"{METHOD} does not unfold the description of the method"


if __name__ == "__main__":
    main()
