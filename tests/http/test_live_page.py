"""The page of examples/live_page in a headless Chromium: of another site, over server-sent events."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from aio_client import sync
from tests.support.browser import open_browser
from tests.support.gateway import GatewayProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "live_page"
SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64())])


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.mark.breadth
def test_the_page_shows_the_rows_as_they_change(shared_server: ServerProcess) -> None:
    assert len((EXAMPLE / "index.html").read_text().splitlines()) < 40
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(EXAMPLE))) as site,
        sync.connect(shared_server.url) as client,
    ):
        threading.Thread(target=site.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{site.server_port}"
        table = client.create_table("http.live_page", SCHEMA, primary_key=["player"])
        table.upsert([{"player": "<b>ann</b>", "score": 31}])
        with GatewayProcess(shared_server.url, origins=(origin,)) as gateway, open_browser() as browser:
            query = {"gateway": f"http://127.0.0.1:{gateway.port}", "table": table.name, "order_by": "score"}
            browser.get(f"{origin}/?{urlencode(query)}")

            def cells() -> list[str]:
                # In one step, because the page replaces its rows.
                script = 'return [...document.querySelectorAll("td")].map(cell => cell.textContent)'
                found: list[str] = browser.execute_script(script)
                return found

            wait_until(lambda: cells() == ["<b>ann</b>", "31"], "the first rows")
            table.upsert([{"player": "bob", "score": 40}])
            wait_until(lambda: cells() == ["bob", "40", "<b>ann</b>", "31"], "the changed rows")
        site.shutdown()
