"""Takes the screenshots of the documentation: pages of the console, light and dark, with the flights of the demo.

`make screenshots` runs it. Sizes, ages and ports differ each time, so run it when a page looks different.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from aio_client import sync
from scankv.demo.flights import KEY, SCHEMA, TABLE, find_flights, read_flights
from streaming_server.testing import ServerProcess
from tests.support.browser import open_browser, set_mode, set_size
from tests.support.gateway import GatewayProcess

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.support.browser import Mode

TARGET: Final = Path(__file__).parents[2] / "docs" / "_static"
MODES: Final[tuple[Mode, ...]] = ("light", "dark")
MOST_BYTES: Final = 150_000
QUERY: Final = {"where": "origin = 'JFK' and dep_delay > 600", "order_by": "dep_delay", "limit": 5, "run": "rows"}
PAGES: Final = {"table": (f"/tables/{TABLE}?{urlencode(QUERY)}", 760), "scans": ("/scans", 380)}
"""For each picture, the path of the page and the pixels of its height."""


def take_screenshots(browser: Chrome, base: str) -> None:
    """Writes one picture for each page and mode."""
    for name, (path, pixels) in PAGES.items():
        for mode in MODES:
            set_size(browser, 1280, pixels)
            set_mode(browser, mode)
            browser.get(base + path)
            target = TARGET / f"console-{name}-{mode}.png"
            target.write_bytes(browser.get_screenshot_as_png())
            print(f"{target.name}: {target.stat().st_size:,} bytes")  # noqa: T201
            assert target.stat().st_size < MOST_BYTES


def main() -> None:
    """Starts a server with the flights, and takes all pictures."""
    with (
        tempfile.TemporaryDirectory(prefix="scankv-screenshots-") as directory,
        ServerProcess(Path(directory) / "data") as server,
        sync.connect(server.url) as client,
        GatewayProcess(server.url) as gateway,
        open_browser() as browser,
    ):
        flights = client.create_table(TABLE, SCHEMA, primary_key=KEY)
        for rows in read_flights(find_flights()):
            flights.upsert(rows)
        with flights.snapshot() as snapshot:
            scans = (flights.scan(), flights.scan().as_of(snapshot))
            streams = [scan.with_chunk(rows=1000).stream() for scan in scans]
            for stream in streams:
                next(stream)
            take_screenshots(browser, f"http://127.0.0.1:{gateway.port}")
            for stream in streams:
                stream.close()


if __name__ == "__main__":
    main()
