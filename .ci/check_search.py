"""Checks that the search of the built site finds, in a browser, what users look for.

Usage: python .ci/check_search.py, after the site has been built in build/docs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

from tests.support.browser import open_browser  # noqa: E402

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


def main() -> None:
    """Searches, prints the first results, and fails if the page is not among them."""
    failed = []
    with open_browser() as browser:
        for query, page in EXPECTED.items():
            browser.get(f"{(SITE / 'search.html').as_uri()}?q={quote(query)}")
            WebDriverWait(browser, 60).until(lambda each: each.find_elements(By.CSS_SELECTOR, "ul.search li a"))
            links = browser.find_elements(By.CSS_SELECTOR, "ul.search li a")
            found = [(link.get_attribute("href") or "").partition("?")[0].partition("#")[0] for link in links[:FIRST]]
            shown = [url.removeprefix(f"{SITE.as_uri()}/") for url in found]
            print(f"{query}: {', '.join(shown)}")
            if page not in shown:
                failed.append(f"{query} does not find {page}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
