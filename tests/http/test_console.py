"""The console, as HTTP and in a headless Chromium."""

from __future__ import annotations

import os
import re
import uuid
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
from tests.support.gateway import GatewayProcess, HttpCaller
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from aio_client.sync import Client, Table

WIDE = "game.wide"
SCRIPT = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"


def form_key(caller: HttpCaller, path: str, cookie: str = "") -> str:
    """Returns what the forms of a page contain."""
    text = caller.get(path, headers={"Cookie": cookie} if cookie else {}).body.decode()
    found = re.search(r'name="form_key" value="([0-9a-f]{64})"', text)
    assert found, text
    return found[1]


def log_in(gateway: TokenGateway, token: str) -> str:
    """Logs in; returns the cookie."""
    caller = HttpCaller(gateway.port)
    answer = caller.post("/login", form_key=form_key(caller, "/login"), token=token)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    return answer.headers["set-cookie"].partition(";")[0]


def test_a_token_is_kept_where_scripts_and_other_sites_cannot_use_it(secured: TokenGateway) -> None:
    caller = HttpCaller(secured.port)
    assert (caller.get("/").status, caller.get("/").headers["location"]) == (303, "/login")
    answer = caller.post("/login", form_key=form_key(caller, "/login"), token=secured.issuer.create("read:game.*"))
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    # Browsers would not keep a secure cookie of plain HTTP.
    assert cookie.startswith("scankv_token=")
    assert set(attributes) == {"HttpOnly", "SameSite=strict", "Path=/"}
    assert caller.post("/login", form_key=form_key(caller, "/login"), token="scankv_0_wrong").status == 401


def test_pages_show_what_the_token_may_read(secured: TokenGateway) -> None:
    cookie, caller = log_in(secured, secured.issuer.create("read:game.*")), HttpCaller(secured.port)

    def get(path: str) -> tuple[int, str]:
        answer = caller.get(path, headers={"Cookie": cookie})
        return answer.status, answer.body.decode()

    status, text = get("/")
    assert status == 200
    assert "game.scores" in text
    assert "other.scores" not in text
    assert get("/tables/game.scores")[0] == 200
    assert get("/tables/other.scores")[0] == 403
    assert get("/scans")[0] == 200
    assert get("/server")[0] == 200
    # The cookie is for the console only.
    assert caller.get("/v1/tables", headers={"Cookie": cookie}).status == 401


@pytest.mark.parametrize(
    ("origin", "key", "status"),
    [("http://evil.example", None, 403), ("", None, 403), ("null", None, 403), (None, "0" * 64, 403), (None, "", 403)],
)
def test_a_form_of_another_site_or_session_is_refused(
    secured: TokenGateway, origin: str | None, key: str | None, status: int
) -> None:
    cookie, caller = log_in(secured, secured.issuer.root), HttpCaller(secured.port)
    headers = {"Cookie": cookie, **({} if origin is None else {"Origin": origin})}
    field = form_key(caller, "/scans", cookie) if key is None else key
    assert caller.post("/scans/stop", headers, form_key=field, scan_id="x").status == status
    own = form_key(caller, "/scans", cookie)
    assert caller.post("/scans/stop", {"Cookie": cookie}, form_key=own, scan_id="x").status == 404


def test_only_an_admin_stops_a_scan(secured: TokenGateway, browser: Chrome) -> None:
    """In a browser: readers have no button, and a form that they make themselves is refused."""
    base = f"http://127.0.0.1:{secured.port}"

    def log_in_browser(grant: str) -> None:
        browser.get(f"{base}/login")
        browser.find_element(By.ID, "token").send_keys(secured.issuer.create(grant), Keys.ENTER)
        wait_until(lambda: browser.title == "Tables - ScanKV", "the login")

    def rows() -> list[str]:
        browser.get(f"{base}/scans")
        return [row.text for row in browser.find_elements(By.CSS_SELECTOR, "tbody tr") if WIDE in row.text]

    def is_live() -> bool:
        return any(scan.table == WIDE for scan in secured.client.live_scans())

    with secured.client.table(WIDE).scan().with_chunk(rows=100).stream() as stream:
        next(stream)
        caller = HttpCaller(secured.port)
        cookie = log_in(secured, secured.issuer.create("read:*"))
        key = form_key(caller, "/", cookie)
        # Whether there is such a scan makes no difference for a reader.
        for scan_id in (stream.scan_id, "x"):
            assert caller.post("/scans/stop", {"Cookie": cookie}, form_key=key, scan_id=scan_id).status == 403
        log_in_browser("read:*")
        assert len(rows()) == 1
        assert not browser.find_elements(By.CSS_SELECTOR, "main form, main button")
        assert is_live()
        log_in_browser(f"admin:{WIDE}")
        assert len(rows()) == 1
        browser.find_element(By.CSS_SELECTOR, f"button[aria-label$='of {WIDE}']").send_keys(Keys.ENTER)
        wait_until(lambda: not rows(), "a list without the scan")
        assert not is_live()
        with pytest.raises(ScanCancelled):
            list(stream)
    browser.delete_all_cookies()


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
        caller = HttpCaller(gateway.port)

        def page(grant: str) -> str:
            cookie = log_in(gateway, issuer.create(grant))
            return caller.get("/server", headers={"Cookie": cookie}).body.decode()

        text = wait_until(lambda: found if "LookupService/Count" in (found := page("admin:*")) else "", "the count")
        assert "a.slow" in text
        assert "the-secret" not in text
        # Readers of all tables see the other statistics.
        assert "Slow calls" not in page("read:*")
        assert "Longest turn" in page("read:*")


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


def test_an_operator_queries_a_table_and_stops_a_scan_with_the_keyboard(
    gateway: GatewayProcess, client: Client, wide: Table, browser: Chrome
) -> None:
    base = f"http://127.0.0.1:{gateway.port}"
    browser.get(f"{base}/tables/{wide.name}")
    where = browser.find_element(By.ID, "where")
    where.send_keys("k < 3")
    ActionChains(browser).send_keys(Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER).perform()
    result = wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "[role=status] tbody tr"), "the rows")
    assert len(result) == 3
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
