"""The console, as HTTP and in a headless Chromium."""

from __future__ import annotations

import os
import re
import uuid
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from aio_client import ScanCancelled, sync
from tests.http.conftest import SCORES, TokenGateway
from tests.support.console import log_in_browser
from tests.support.gateway import GatewayProcess, HttpAnswer, HttpCaller
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from aio_client.sync import Client, Table

WIDE = "game.wide"
SCRIPT = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"


@dataclass(frozen=True)
class LoggedIn:
    """A session of the console, as its browser knows it."""

    caller: HttpCaller
    base: str
    cookie: str

    @property
    def form_key(self) -> str:
        """What its forms contain."""
        return form_key(self.caller, f"{self.base}/", self.cookie)

    def get(self, path: str, **query: str) -> HttpAnswer:
        return self.caller.get(self.base + path, headers={"Cookie": self.cookie}, **query)

    def post(self, path: str, headers: dict[str, str] | None = None, **fields: str) -> HttpAnswer:
        """Sends a form as the pages of a session do, which say nothing of where they are."""
        return self.caller.post(
            self.base + path, {"Cookie": self.cookie, "Origin": "null", **(headers or {})}, **fields
        )


def form_key(caller: HttpCaller, path: str, cookie: str = "") -> str:
    """Returns what the forms of a page contain."""
    text = caller.get(path, headers={"Cookie": cookie} if cookie else {}).body.decode()
    found = re.search(r'name="form_key" value="([0-9a-f]{64})"', text)
    assert found, text
    return found[1]


def log_in(caller: HttpCaller, token: str) -> LoggedIn:
    """Logs in with a form as a browser does."""
    caller = copy(caller)
    caller.token = None
    answer = caller.post("/login", form_key=form_key(caller, "/login"), token=token)
    assert answer.status == 303
    return LoggedIn(caller, answer.headers["location"].rstrip("/"), answer.headers["set-cookie"].partition(";")[0])


def test_a_session_is_kept_where_scripts_and_other_sites_cannot_use_it(secured: TokenGateway) -> None:
    caller = HttpCaller(secured.port)
    assert (caller.get("/").status, caller.get("/").headers["location"]) == (303, "/login")
    token = secured.issuer.create("read:game.*")
    answer = caller.post("/login", form_key=form_key(caller, "/login"), token=token)
    base = answer.headers["location"]
    assert re.fullmatch(r"/console/[\w-]{32}/", base)
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    # Browsers would not keep a secure cookie of plain HTTP.
    assert re.fullmatch(r"scankv_session=[\w-]{43}", cookie)
    assert token not in cookie
    assert set(attributes) == {"HttpOnly", "SameSite=strict", f"Path={base}"}
    assert caller.post("/login", form_key=form_key(caller, "/login"), token="scankv_0_wrong").status == 401


def test_pages_show_what_the_token_may_read(secured: TokenGateway) -> None:
    session = log_in(secured, secured.issuer.create("read:game.*"))
    page = session.get("/")
    assert page.status == 200
    assert b"game.scores" in page.body
    assert b"other.scores" not in page.body
    # The path of the session stays between browser and gateway.
    assert page.headers["referrer-policy"] == "no-referrer"
    assert session.get("/tables/game.scores").status == 200
    assert session.get("/tables/other.scores").status == 403
    assert session.get("/scans").status == 200
    assert session.get("/server").status == 200
    # The cookie is for the console only.
    assert session.caller.get("/v1/tables", headers={"Cookie": session.cookie}).status == 401


@pytest.mark.parametrize(
    ("headers", "key", "status"),
    [
        ({"Origin": "http://evil.example"}, None, 403),
        ({"Origin": ""}, None, 403),
        ({"Sec-Fetch-Site": "same-site"}, None, 303),
        ({"Sec-Fetch-Site": "cross-site"}, None, 303),
        ({}, "0" * 64, 403),
        ({}, "\xe4", 403),
        ({}, "", 403),
    ],
)
def test_a_form_of_another_site_or_session_is_refused(
    secured: TokenGateway, headers: dict[str, str], key: str | None, status: int
) -> None:
    session = log_in(secured, secured.issuer.root)
    own = session.form_key
    answer = session.post("/scans/stop", headers, form_key=own if key is None else key, scan_id="x")
    assert answer.status == status
    assert answer.headers.get("location") == ("/login" if status == 303 else None)
    assert session.post("/scans/stop", form_key=own, scan_id="x").status == 404
    other = log_in(secured, secured.issuer.root)
    assert other.post("/scans/stop", form_key=own, scan_id="x").status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "", "null"])
def test_another_site_cannot_log_a_browser_in(secured: TokenGateway, origin: str) -> None:
    caller = HttpCaller(secured.port)
    fields = {"form_key": form_key(caller, "/login"), "token": secured.issuer.root}
    assert caller.get("/login").headers["referrer-policy"] == "same-origin"
    assert caller.post("/login", {"Origin": origin}, **fields).status == 403


def test_only_an_admin_stops_a_scan(secured: TokenGateway, browser: Chrome) -> None:
    """In a browser: readers have no button, and a form that they make themselves is refused."""
    base = f"http://127.0.0.1:{secured.port}"

    def rows(base: str) -> list[str]:
        browser.get(f"{base}/scans")
        return [row.text for row in browser.find_elements(By.CSS_SELECTOR, "tbody tr") if WIDE in row.text]

    def is_live() -> bool:
        return any(scan.table == WIDE for scan in secured.client.live_scans())

    with secured.client.table(WIDE).scan().with_chunk(rows=100).stream() as stream:
        next(stream)
        session = log_in(secured, secured.issuer.create("read:*"))
        # Whether there is such a scan makes no difference for a reader.
        for scan_id in (stream.scan_id, "x"):
            assert session.post("/scans/stop", form_key=session.form_key, scan_id=scan_id).status == 403
        reader = log_in_browser(browser, base, secured.issuer.create("read:*"))
        assert len(rows(reader)) == 1
        assert not browser.find_elements(By.CSS_SELECTOR, "main form, main button")
        assert is_live()
        admin = log_in_browser(browser, base, secured.issuer.create(f"admin:{WIDE}"))
        assert len(rows(admin)) == 1
        browser.find_element(By.CSS_SELECTOR, f"button[aria-label$='of {WIDE}']").send_keys(Keys.ENTER)
        wait_until(lambda: not rows(admin), "a list without the scan")
        assert not is_live()
        with pytest.raises(ScanCancelled):
            list(stream)
    browser.delete_all_cookies()


@pytest.mark.breadth
def test_an_admin_sees_slow_calls_without_values(tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "tokens")
    settings = ("--tokens", str(issuer.path), "--set", "slow_request_seconds=0.000001")
    with (
        ServerProcess(tmp_path / "data", *settings) as server,
        sync.connect(server.url, token=issuer.root) as client,
        TokenGateway(server.url, issuer, client) as gateway,
    ):
        table = client.create_table("a.slow", SCORES, primary_key=["player"])
        table.upsert([{"player": "the-secret", "score": 1}])
        assert table.count("player = 'the-secret'") == 1

        def page(grant: str) -> str:
            return log_in(gateway, issuer.create(grant)).get("/server").body.decode()

        text = wait_until(lambda: found if "LookupService/Count" in (found := page("admin:*")) else "", "the count")
        assert "a.slow" in text
        assert "the-secret" not in text
        # Readers of all tables see the other statistics.
        assert "Slow calls" not in page("read:*")
        assert "Longest loop turn" in page("read:*")


@pytest.mark.breadth
def test_a_page_loads_no_script_and_nothing_from_elsewhere(gateway: GatewayProcess, scores: Table) -> None:
    for path in ("/", f"/tables/{scores.name}", "/scans", "/server", "/login", "/nothing-here"):
        answer = gateway.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "script-src" not in policy
        assert "unsafe" not in policy
        assert b"<script" not in answer.body
        assert b"http:" not in answer.body
    assert gateway.get("/console.css").headers["content-type"].startswith("text/css")


def test_a_script_in_a_row_stays_text(gateway: GatewayProcess, client: Client, browser: Chrome) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), (SCRIPT, pa.string())])
    table = client.create_table(f"http.t{uuid.uuid4().hex}", schema, primary_key=["k"])
    table.upsert([{"k": 1, SCRIPT: SCRIPT}, {"k": 2, SCRIPT: None}])
    for run in ("rows", "explain", "count"):
        query = urlencode({"run": run, "where": "k < 3"})
        browser.get(f"http://127.0.0.1:{gateway.port}/tables/{table.name}?{query}")
        assert browser.title == f"{table.name} - ScanKV"
        assert SCRIPT in browser.find_element(By.TAG_NAME, "main").text
        assert not browser.find_elements(By.CSS_SELECTOR, "script, img")
    # What is wrong contains what was given.
    browser.get(f"http://127.0.0.1:{gateway.port}/tables/{table.name}?{urlencode({'run': 'count', 'where': SCRIPT})}")
    assert browser.title == f"{table.name} - ScanKV"
    assert browser.find_element(By.CSS_SELECTOR, "[role=alert]").text


@pytest.mark.breadth
def test_an_operator_queries_a_table_and_stops_a_scan_with_the_keyboard(
    gateway: GatewayProcess, client: Client, wide: Table, browser: Chrome
) -> None:
    base = f"http://127.0.0.1:{gateway.port}"
    browser.get(f"{base}/tables/{wide.name}")
    where = browser.find_element(By.ID, "where")
    where.send_keys("k < 3")
    ActionChains(browser).send_keys(Keys.TAB, Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER).perform()
    wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "[role=status] tbody tr")) == 3, "the rows")
    # Labels name every field, and each table has a heading for each column.
    for field in browser.find_elements(By.CSS_SELECTOR, "main input, main select"):
        assert field.accessible_name
    connection = gateway.connection()
    connection.request("GET", f"/v1/tables/{wide.name}/scan")
    response = connection.getresponse()
    response.read(1000)
    browser.get(f"{base}/scans")
    stop = f"button[aria-label$='of {wide.name}']"
    button = browser.find_element(By.CSS_SELECTOR, stop)
    button.send_keys(Keys.ENTER)
    wait_until(
        lambda: not browser.find_elements(By.CSS_SELECTOR, f"button[aria-label$='of {wide.name}']"), "a new list"
    )
    wait_until(lambda: wide.name not in [scan.table for scan in client.live_scans()], "the end of the scan")
    assert browser.current_url == f"{base}/scans"
    response.close()
    connection.close()
    assert [entry["message"] for entry in browser.get_log("browser")] == []  # type: ignore[no-untyped-call]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
def test_an_open_console_costs_an_idle_server_less_than_a_hundredth_of_a_core(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, GatewayProcess(server.url) as gateway:
        assert gateway.get("/").status == 200
        pages: tuple[Any, ...] = ("/", "/scans", "/server")
        before = _cpu_seconds(server.process.pid)
        times = 10
        for _ in range(times):
            for path in pages:
                assert gateway.get(path).status == 200
        each = (_cpu_seconds(server.process.pid) - before) / times / len(pages)
        # Refreshed every 5 seconds.
        assert each / 5 < 0.01, each
