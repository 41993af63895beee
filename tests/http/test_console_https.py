"""The console over HTTPS, as a server with a certificate serves it to other machines."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from aio_client import ScanCancelled, Tls, sync
from tests.http.conftest import fill_wide
from tests.http.test_console import form_key
from tests.support.browser import open_browser
from tests.support.console import log_in_browser
from tests.support.gateway import HttpCaller
from tests.support.monitoring import free_port
from tests.support.tls_server import TlsServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COOKIE = "__Secure-scankv_session"
WIDE = "game.wide"


class HttpsConsole(HttpCaller):
    """A server with TLS and tokens, whose gateway other machines can reach."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.server = TlsServer(directory, "--http-port", str(port), "--http-host", "0.0.0.0")
        self.authority = self.server.authority.path
        super().__init__(port, tls=ssl.create_default_context(cafile=str(self.authority)))

    def connect(self) -> sync.Client:
        return sync.connect(self.server.url, token=self.server.root, tls=Tls(ca=self.authority))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsConsole]:
    console = HttpsConsole(tmp_path_factory.mktemp("https"))
    with console.server, console.connect() as client:
        fill_wide(client, WIDE)
        yield console


@pytest.mark.breadth
def test_the_cookie_is_sent_over_https_to_the_paths_of_its_session_only(console: HttpsConsole) -> None:
    answer = console.post("/login", form_key=form_key(console, "/login"), token=console.server.root)
    base = answer.headers["location"]
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert cookie.startswith(f"{COOKIE}=")
    assert set(attributes) == {"HttpOnly", "SameSite=strict", f"Path={base}", "Secure"}
    assert console.get(f"{base}scans", headers={"Cookie": cookie}).status == 200
    # A page over plain HTTP can set a cookie without the prefix.
    planted = console.get(f"{base}scans", headers={"Cookie": cookie.removeprefix("__Secure-")})
    assert (planted.status, planted.headers["location"]) == (303, "/login")
    left = console.post(f"{base}logout", {"Cookie": cookie}, form_key=form_key(console, f"{base}scans", cookie))
    removed, *attributes = left.headers["set-cookie"].split("; ")
    assert removed == f'{COOKIE}=""'
    assert {"Max-Age=0", "HttpOnly", "SameSite=strict", f"Path={base}", "Secure"} <= set(attributes)
    assert console.get(f"{base}scans", headers={"Cookie": cookie}).status == 303


@pytest.mark.breadth
def test_a_live_page_reads_its_events_over_https(console: HttpsConsole) -> None:
    with open_browser(any_certificate=True) as browser, console.connect():
        browser.get(f"https://localhost:{console.port}/tables/{WIDE}/top?order_by=k&limit=2&columns=k")
        browser.find_element(By.ID, "token").send_keys(console.server.root, Keys.ENTER)
        shown = "return document.querySelector('#live:not(.stale) tbody')?.textContent"
        wait_until(lambda: (browser.execute_script(shown) or "").split() == ["39999", "39998"], "the rows as current")


def test_an_operator_logs_in_stops_a_scan_and_logs_out(console: HttpsConsole) -> None:
    base = f"https://localhost:{console.port}"
    with open_browser(any_certificate=True) as browser, console.connect() as client:
        browser.get(f"{base}/scans")
        assert browser.current_url == f"{base}/login"
        session = log_in_browser(browser, base, console.server.root)
        (cookie,) = browser.get_cookies()
        kept = {name: cookie[name] for name in ("name", "secure", "httpOnly", "sameSite", "path", "domain")}
        assert kept == {
            "name": COOKIE,
            "secure": True,
            "httpOnly": True,
            "sameSite": "Strict",
            "path": f"{session.removeprefix(base)}/",
            "domain": "localhost",
        }
        assert "expiry" not in cookie
        assert browser.execute_script("return document.cookie") == ""
        with client.table(WIDE).scan().with_chunk(rows=100).stream() as stream:
            next(stream)
            browser.get(f"{session}/scans")
            browser.find_element(By.CSS_SELECTOR, f"button[aria-label$='of {WIDE}']").send_keys(Keys.ENTER)
            wait_until(lambda: not client.live_scans(), "the end of the scan")
            with pytest.raises(ScanCancelled):
                list(stream)
        browser.find_element(By.CSS_SELECTOR, "header form button").send_keys(Keys.ENTER)
        wait_until(lambda: browser.current_url == f"{base}/login", "the logout")
        assert browser.get_cookies() == []
        browser.get(f"{session}/scans")
        assert browser.current_url == f"{base}/login"
