"""Takes the screenshots of the documentation: pages of the console, light and dark, with the flights of the demo.

`make screenshots` runs it, for some minutes, since charts need something to show. Sizes, ages and ports differ each
time, so run it when a page looks different. `python -m tests.support.screenshots FOLDER` takes all pages, also as a
phone shows them, to look at.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from selenium.webdriver.common.by import By

from aio_client import sync
from scankv.demo.flights import KEY, SCHEMA, TABLE, find_flights, read_flights
from streaming_server.testing import ServerProcess
from tests.support.browser import open_browser, set_mode, set_size
from tests.support.monitoring import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from selenium.webdriver import Chrome

    from tests.support.browser import Mode

DOCS: Final = Path(__file__).parents[2] / "docs" / "_static"
MODES: Final[tuple[Mode, ...]] = ("light", "dark")
MOST_BYTES: Final = 150_000
CHART_SECONDS: Final = 240.0
QUERY: Final = {"where": "origin = 'JFK' and dep_delay > 600", "order_by": "dep_delay", "limit": 5, "run": "rows"}
LIVE: Final = {
    "order_by": "dep_delay",
    "where": "origin = 'JFK'",
    "limit": 5,
    "columns": "carrier,flight,dest,dep_delay",
}
PAGES: Final = {
    "tables": ("/", 420),
    "table": (f"/tables/{TABLE}?{urlencode(QUERY)}", 760),
    "live": (f"/tables/{TABLE}/top?{urlencode(LIVE)}", 620),
    "scans": ("/scans", 380),
    "server": ("/server", 900),
    "charts": ("/charts", 900),
    "login": ("/login", 420),
}
"""For each page, its path and the pixels of its height."""

IN_DOCS: Final = ("tables", "table", "live", "scans", "charts")
PHONE: Final = (390, 844)


def take_screenshots(browser: Chrome, base: str) -> None:
    """Writes the pictures of the documentation, one for each page and mode."""
    for name in IN_DOCS:
        for mode in MODES:
            path, pixels = PAGES[name]
            _take(browser, base + path, mode, (1280, pixels), DOCS / f"console-{name}-{mode}.png")
            assert (DOCS / f"console-{name}-{mode}.png").stat().st_size < MOST_BYTES


def take_all(browser: Chrome, base: str, folder: Path) -> None:
    """Writes a picture of each page in each mode and size, with all of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (path, _) in PAGES.items():
        for mode in MODES:
            for width in (1280, PHONE[0]):
                set_size(browser, width, PHONE[1])
                browser.get(base + path)
                height = browser.execute_script("return document.documentElement.scrollHeight")
                _take(browser, base + path, mode, (width, min(height, 6000)), folder / f"{name}-{width}-{mode}.png")


def _take(browser: Chrome, address: str, mode: Mode, size: tuple[int, int], target: Path) -> None:
    set_size(browser, *size)
    set_mode(browser, mode)
    browser.get(address)
    wait_until(lambda: not browser.find_elements(By.CSS_SELECTOR, "#live.stale"), "the rows of the live page")
    target.write_bytes(browser.get_screenshot_as_png())
    print(f"{target.name}: {target.stat().st_size:,} bytes")  # noqa: T201


@contextmanager
def _activity(url: str, rows: pa.Table) -> Iterator[None]:
    """Writes, reads and looks up rows in the background, now more and now less."""
    ends = threading.Event()

    def work() -> None:
        with sync.connect(url) as client:
            table, number = client.table(TABLE), 0
            while not ends.wait(0.2):
                number += 1
                count = round(400 + 350 * math.sin(number / 60))
                table.upsert(rows.slice(number * 1000 % (rows.num_rows - 1000), count))
                table.scan(where="dep_delay > 600").limit(count).to_arrow()
                table.count(f"dep_delay > {number % 300}")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ends.set()
        worker.join()


def main() -> None:
    """Starts a server with the flights, and takes all pictures."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="scankv-screenshots-") as directory,
        ServerProcess(Path(directory) / "data", "--http-port", str(port)) as server,
        sync.connect(server.url) as client,
        open_browser() as browser,
    ):
        flights = client.create_table(TABLE, SCHEMA, primary_key=KEY)
        for rows in read_flights(find_flights()):
            flights.upsert(rows)
        client.create_table("nycflights.planes", SCHEMA, primary_key=KEY, buckets=2)
        with flights.snapshot() as snapshot, _activity(server.url, flights.scan().to_arrow()):
            time.sleep(CHART_SECONDS)
            scans = (flights.scan(), flights.scan().as_of(snapshot))
            streams = [scan.with_chunk(rows=1000).stream() for scan in scans]
            for stream in streams:
                next(stream)
            base = f"http://127.0.0.1:{port}"
            if len(sys.argv) > 1:
                take_all(browser, base, Path(sys.argv[1]))
            else:
                take_screenshots(browser, base)
            for stream in streams:
                stream.close()


if __name__ == "__main__":
    main()
