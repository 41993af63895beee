"""The live top-N in a headless Chromium: it follows writes, survives every restart, and says when it is not current."""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from aio_client import sync
from aio_client.testing import Fault, FaultProxy
from tests.http.test_console import SCRIPT, form_key, log_in
from tests.support.browser import set_size
from tests.support.gateway import GatewayProcess, HttpCaller
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    from aio_client.sync import Client, Table

SCHEMA = pa.schema([pa.field("player", pa.string(), nullable=False), ("score", pa.int64()), ("note", pa.string())])
TABLE = "game.scores"
LINK = f"/tables/{TABLE}/top?order_by=score&limit=3"
HEARTBEAT = 1.0
ENDED = "Your session has ended: log in."
MARKED = 'return [...document.querySelectorAll("tr.new")].map(row => row.cells[0].textContent)'
"""Returns the keys of the rows that are marked as new."""


class Wall:
    """A server that asks for tokens, and a gateway whose sessions outlive it."""

    def __init__(self, directory: Path) -> None:
        self.issuer = TokenIssuer(directory / "tokens")
        self.server = ServerProcess(directory / "data", "--tokens", str(self.issuer.path))
        self.sessions = directory / "sessions"

    def gateway(self, **settings: Any) -> GatewayProcess:
        defaults = {"sessions": str(self.sessions), "heartbeat_seconds": HEARTBEAT}
        return GatewayProcess(self.server.url, **{**defaults, **settings})

    def connect(self) -> Client:
        return sync.connect(self.server.url, token=self.issuer.root)


@pytest.fixture(scope="module")
def wall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wall]:
    wall = Wall(tmp_path_factory.mktemp("wall"))
    with wall.server:
        yield wall


@pytest.fixture(scope="module")
def own(wall: Wall) -> Iterator[GatewayProcess]:
    with wall.gateway() as gateway:
        yield gateway


@pytest.fixture
def table(wall: Wall) -> Iterator[Table]:
    """The table as each test finds it: ann 31, bob 27."""
    with wall.connect() as client:
        table = client.create_table(TABLE, SCHEMA, primary_key=["player"])
        table.upsert([{"player": "ann", "score": 31, "note": None}, {"player": "bob", "score": 27, "note": "x"}])
        yield table
        client.drop_table(TABLE)


FIRST = [["ann", "31", "null"], ["bob", "27", "x"]]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def open_link(browser: Chrome, port: int, token: str, link: str = LINK) -> str:
    """Opens a link outside sessions, and logs in. Returns where the pages of the session are."""
    browser.get(f"http://127.0.0.1:{port}{link}")
    browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
    wait_until(lambda: link.partition("?")[0] in browser.current_url, "the page after the login")
    return session_of(browser)


def session_of(browser: Chrome) -> str:
    """Returns where the pages of the session are."""
    return browser.current_url.partition("/tables/")[0]


def cells(browser: Chrome) -> list[list[str]]:
    # In one step, because the page replaces its rows.
    script = (
        'return [...document.querySelectorAll("tbody tr")].map(row => [...row.cells].map(cell => cell.textContent))'
    )
    found: list[list[str]] = browser.execute_script(script)
    return found


def text(browser: Chrome, id_: str) -> str:
    found: str = browser.execute_script("return document.getElementById(arguments[0]).textContent.trim()", id_)
    return found


@pytest.fixture
def page(wall: Wall, own: GatewayProcess, table: Table, browser: Chrome) -> Chrome:
    """The browser with the live page of the table, which shows the first rows."""
    open_link(browser, own.port, wall.issuer.root)
    await_rows(browser, FIRST)
    return browser


def is_current(browser: Chrome) -> bool:
    return "confirmed" in text(browser, "state") and "Not current" not in text(browser, "state")


def await_rows(browser: Chrome, rows: list[list[str]]) -> None:
    wait_until(lambda: is_current(browser) and cells(browser) == rows, f"{rows} as current")


def await_text(browser: Chrome, id_: str, part: str) -> None:
    wait_until(lambda: part in text(browser, id_), f"{part!r} in {text(browser, id_)!r}")


@contextmanager
def no_reload(browser: Chrome) -> Iterator[None]:
    """Fails if the page is loaded again inside the block."""
    browser.execute_script("window.isTheSame = true")
    yield
    assert browser.execute_script("return window.isTheSame") is True


def test_the_rows_follow_writes_and_new_ones_are_marked(table: Table, page: Chrome) -> None:
    assert page.execute_script(MARKED) == []
    with no_reload(page):
        table.upsert([{"player": "cem", "score": 29, "note": "y"}])
        await_rows(page, [FIRST[0], ["cem", "29", "y"], FIRST[1]])
        assert page.execute_script(MARKED) == ["cem"]
        wait_until(lambda: page.execute_script(MARKED) == [], "the end of the mark")
        table.delete([{"player": "ann"}])
        await_rows(page, [["cem", "29", "y"], FIRST[1]])
        table.delete([{"player": "bob"}, {"player": "cem"}])
        await_rows(page, [])
        assert page.find_element(By.ID, "none").is_displayed()
        table.upsert([{"player": "dan", "score": 5, "note": "z"}])
        wait_until(lambda: page.execute_script(MARKED) == ["dan"], "the mark of the first row")
    assert text(page, "none") == "No rows."
    assert not page.find_element(By.ID, "none").is_displayed()
    numbers = 'return [...document.querySelectorAll("tr > .number")].map(cell => cell.textContent)'
    assert page.execute_script(numbers) == ["score", "5"]
    assert len(page.find_elements(By.CSS_SELECTOR, "tbody .null")) == 0


def test_a_mark_lasts_its_time_however_many_events_come(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    open_link(browser, own.port, wall.issuer.root, f"{LINK}&every=0.1")
    await_rows(browser, FIRST)
    table.upsert([{"player": "cem", "score": 29, "note": "y"}])
    await_rows(browser, [FIRST[0], ["cem", "29", "y"], FIRST[1]])
    # As if no time went by: the next event is the second one of a busy table.
    browser.execute_script("const now = performance.now(); performance.now = () => now")
    table.upsert([{"player": "dan", "score": 28, "note": "z"}])
    await_rows(browser, [FIRST[0], ["cem", "29", "y"], ["dan", "28", "z"]])
    assert browser.execute_script(MARKED) == ["cem", "dan"]


@pytest.mark.breadth
def test_a_page_gets_no_rows_that_it_has_when_it_connects_and_connects_again(table: Table, page: Chrome) -> None:
    assert page.execute_script("return asOf === performance.timeOrigin")
    table.upsert([{"player": "ann", "score": 33, "note": None}])
    await_rows(page, [["ann", "33", "null"], FIRST[1]])
    assert page.execute_script(MARKED) == ["ann"]
    page.execute_script("close(); due = 0; isCurrent = false; window.before = asOf; confirmed = 0; tick()")
    wait_until(lambda: page.execute_script("return isCurrent && confirmed > 0"), "the confirmation")
    assert page.execute_script("return asOf === window.before")


def test_a_deep_link_leads_through_the_login_and_names_the_query(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    link = f"/tables/{TABLE}/top?" + urlencode(
        {"order_by": "score", "where": "score > 1 and player <> 'x&y'", "limit": "1", "descending": "false"}
    )
    link += "&columns=player%2Cnote&every=0.5"
    browser.get(f"http://127.0.0.1:{own.port}{link}")
    browser.find_element(By.ID, "token").send_keys("scankv_0_wrong", Keys.ENTER)
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "[role=alert]"), "the refusal")
    browser.find_element(By.ID, "token").send_keys(wall.issuer.root, Keys.ENTER)
    wait_until(lambda: "/console/" in browser.current_url, "the login")
    await_rows(browser, [["bob", "x"]])
    assert "score > 1 and player <> 'x&y'" in browser.find_element(By.CSS_SELECTOR, ".refresh").text
    shared = browser.find_element(By.LINK_TEXT, "Link to this page").get_attribute("href")
    assert shared == f"http://127.0.0.1:{own.port}{link}"


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example/", "/\\evil.example", "/scans", LINK + "#x"]
)
def test_the_login_follows_only_links_of_live_pages(wall: Wall, own: GatewayProcess, target: str) -> None:
    caller = HttpCaller(own.port)
    assert b'name="next"' not in caller.get("/login", next=target).body
    answer = caller.post("/login", form_key=form_key(caller, "/login"), token=wall.issuer.root, next=target)
    assert answer.status == 303
    assert answer.headers["location"].rpartition("/")[2] == ""
    assert answer.headers["location"].startswith("/console/")


def test_a_page_of_an_ended_session_leads_through_the_login_back_to_it(own: GatewayProcess) -> None:
    caller = HttpCaller(own.port)
    answer = caller.get("/console/" + "x" * 32 + LINK.partition("?")[0], order_by="score", limit="3")
    assert (answer.status, answer.headers["location"]) == (303, f"/login?{urlencode({'next': LINK})}")


@pytest.mark.breadth
def test_the_page_continues_when_the_server_restarts(wall: Wall, table: Table, page: Chrome) -> None:
    with no_reload(page):
        wall.server.kill()
        await_text(page, "state", "No ScanKV server answers at")
        assert "not confirmed for" in text(page, "state")
        assert cells(page) == FIRST
        wall.server.restart()
        await_rows(page, FIRST)
        with wall.connect() as client:
            client.table(TABLE).upsert([{"player": "cem", "score": 40, "note": None}])
        await_rows(page, [["cem", "40", "null"], *FIRST])


@pytest.mark.soak
def test_the_page_continues_when_the_gateway_restarts(wall: Wall, table: Table, browser: Chrome) -> None:
    with wall.gateway() as gateway:
        open_link(browser, gateway.port, wall.issuer.root)
        await_rows(browser, FIRST)
        with no_reload(browser):
            gateway.stop()
            await_text(browser, "stale", "Not current")
            gateway.start()
            table.upsert([{"player": "cem", "score": 40, "note": None}])
            await_rows(browser, [["cem", "40", "null"], *FIRST])


@pytest.mark.breadth
def test_a_page_that_is_opened_while_the_server_is_away_shows_the_rows_later(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    base = open_link(browser, own.port, wall.issuer.root)
    browser.get("about:blank")
    wall.server.kill()
    browser.set_page_load_timeout(90)
    browser.get(f"{base}{LINK}")
    assert text(browser, "problem")
    with no_reload(browser):
        wall.server.restart()
        await_rows(browser, FIRST)
    assert text(browser, "problem") == ""


@pytest.mark.breadth
def test_only_the_visible_one_of_many_pages_has_a_connection(wall: Wall, table: Table, page: Chrome) -> None:
    base = session_of(page)
    first = page.current_window_handle
    with wall.connect() as client:
        wait_until(lambda: client.stats().waiting_calls == 1, "the query of the page")
        # More pages than connections that a browser opens to one host.
        for _ in range(7):
            page.switch_to.new_window("tab")
            page.get(f"{base}{LINK}")
            await_rows(page, FIRST)
        wait_until(lambda: client.stats().waiting_calls == 1, "one query of all pages")
        page.switch_to.new_window("tab")
        page.get(f"{base}/scans")
        assert page.title == "Live scans - ScanKV"
        wait_until(lambda: client.stats().waiting_calls == 0, "no query of a hidden page")
        table.upsert([{"player": "cem", "score": 40, "note": None}])
        for handle in page.window_handles:
            if handle != first:
                page.switch_to.window(handle)
                page.close()
        page.switch_to.window(first)
        await_rows(page, [["cem", "40", "null"], *FIRST])


@pytest.mark.soak
def test_of_many_visible_pages_four_have_a_connection_and_the_others_say_so_and_wait(
    table: Table, page: Chrome
) -> None:
    base = session_of(page)
    first = page.current_window_handle
    for _ in range(3):
        page.switch_to.new_window("window")
        page.get(f"{base}{LINK}")
        await_rows(page, FIRST)
    # With a connection each, the seventh page would wait for ever.
    page.set_page_load_timeout(30)
    for _ in range(4):
        page.switch_to.new_window("window")
        page.get(f"{base}{LINK}")
        await_text(page, "age", "4 other live pages of this browser are connected")
        assert text(page, "stale") == "Not current"
        assert page.execute_script("return document.hidden") is False
    last = page.current_window_handle
    with no_reload(page):
        table.upsert([{"player": "cem", "score": 40, "note": None}])
        # A page that is closed makes way, and so does one that is paused.
        for handle in page.window_handles:
            if handle not in (first, last):
                page.switch_to.window(handle)
                page.close()
        page.switch_to.window(last)
        await_rows(page, [["cem", "40", "null"], *FIRST])
    page.close()
    page.switch_to.window(first)


@pytest.mark.breadth
def test_a_browser_without_locks_connects_all_the_same(table: Table, page: Chrome) -> None:
    page.execute_script(
        "Object.defineProperty(navigator, 'locks', { value: undefined }); close(); due = 0; window.before = asOf"
    )
    table.upsert([{"player": "cem", "score": 40, "note": None}])
    await_rows(page, [["cem", "40", "null"], *FIRST])


@pytest.mark.breadth
def test_a_page_that_is_paused_closes_its_connection_and_says_so_until_it_continues(
    wall: Wall, table: Table, page: Chrome
) -> None:
    button = page.find_element(By.ID, "pause")
    assert (button.accessible_name, button.aria_role) == ("Pause", "button")
    with wall.connect() as client, no_reload(page):
        wait_until(lambda: client.stats().waiting_calls == 1, "the query of the page")
        button.send_keys(Keys.ENTER)
        assert (text(page, "stale"), text(page, "spoken")) == ("Paused", "Paused.")
        assert "not confirmed for" in text(page, "age")
        wait_until(lambda: client.stats().waiting_calls == 0, "the end of the query")
        table.upsert([{"player": "cem", "score": 40, "note": None}])
        page.execute_script("dispatchEvent(new Event('online')); tick()")
        assert page.execute_script("return connection === null")
        assert cells(page) == FIRST
        assert button.accessible_name == "Continue"
        button.send_keys(Keys.ENTER)
        await_rows(page, [["cem", "40", "null"], *FIRST])
    assert button.accessible_name == "Pause"
    assert text(page, "spoken").startswith("Current again, as of")


@pytest.mark.soak
def test_a_connection_that_falls_silent_is_noticed_and_replaced(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    with FaultProxy.in_thread(f"127.0.0.1:{own.port}") as proxy:
        open_link(browser, port_of(proxy.address), wall.issuer.root)
        await_rows(browser, FIRST)
        with no_reload(browser):
            proxy.refuse()
            proxy.apply(Fault("stall"))
            table.upsert([{"player": "cem", "score": 40, "note": None}])
            await_text(browser, "stale", "Not current")
            assert "not confirmed for" in text(browser, "age")
            assert cells(browser) == FIRST
            style = "return getComputedStyle(document.querySelector('tbody td')).fontStyle"
            assert browser.execute_script(style) == "italic"
            proxy.accept()
            await_rows(browser, [["cem", "40", "null"], *FIRST])
        browser.get("about:blank")


@pytest.mark.represented_by("60")
@pytest.mark.parametrize("seconds", [60, -60])
def test_a_clock_that_jumps_as_after_sleep_makes_the_page_connect_again(page: Chrome, seconds: int) -> None:
    page.execute_script(
        "window.before = connection; const now = Date.now; Date.now = () => now() + 1000 * arguments[0]", seconds
    )
    is_new = "return connection !== null && connection !== window.before && isCurrent"
    wait_until(lambda: page.execute_script(is_new), "another connection")


@pytest.mark.breadth
def test_a_session_that_ends_is_shown_and_the_link_leads_back(wall: Wall, page: Chrome) -> None:
    base = session_of(page)
    for file in wall.sessions.iterdir():
        file.unlink()
    await_text(page, "problem", ENDED)
    assert text(page, "stale") == "Not current"
    # Neither time nor the network brings it back.
    page.execute_script("dispatchEvent(new Event('online'))")
    assert page.execute_script("return connection === null && isOver")
    page.find_element(By.LINK_TEXT, "Log in").click()
    page.find_element(By.ID, "token").send_keys(wall.issuer.root, Keys.ENTER)
    wait_until(lambda: "/top?" in page.current_url, "the page after the login")
    assert not page.current_url.startswith(base)
    await_rows(page, FIRST)


def test_a_revoked_token_ends_the_page_and_the_session_while_no_row_changes(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    token = wall.issuer.create("read:*")
    before = set(wall.sessions.iterdir()) if wall.sessions.exists() else set()
    open_link(browser, own.port, token)
    await_rows(browser, FIRST)
    (file,) = set(wall.sessions.iterdir()) - before
    wall.issuer.revoke(token)
    await_text(browser, "problem", ENDED)
    assert not file.exists()


@pytest.mark.soak
def test_a_session_lasts_its_time_at_most_however_long_the_page_is_open(
    wall: Wall, table: Table, browser: Chrome
) -> None:
    with wall.gateway(session_seconds=15.0) as gateway:
        open_link(browser, gateway.port, wall.issuer.root)
        await_rows(browser, FIRST)
        await_text(browser, "problem", ENDED)


@pytest.mark.breadth
def test_an_open_page_is_in_use(wall: Wall, table: Table, tmp_path: Path) -> None:
    with wall.gateway(sessions=str(tmp_path), session_idle_seconds=3600.0) as gateway:
        session = log_in(gateway, wall.issuer.root)
        (file,) = tmp_path.iterdir()
        connection = gateway.connection()
        target = f"{session.base}/tables/{TABLE}/top/events?order_by=score"
        connection.request("GET", target, headers={"Cookie": session.cookie})
        with connection.getresponse() as answer:
            assert answer.status == 200
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 3000))
            wait_until(lambda: file.stat().st_mtime > time.time() - 100, "a use of the session")
        connection.close()


def test_events_need_the_cookie_of_the_session(wall: Wall, own: GatewayProcess, table: Table) -> None:
    session = log_in(own, wall.issuer.root)
    path = f"{session.base}/tables/{TABLE}/top/events"
    caller = HttpCaller(own.port)
    for answer in (
        caller.get(path, order_by="score"),
        caller.get(f"/tables/{TABLE}/top/events", order_by="score"),
        caller.get(path, headers={"Cookie": session.cookie, "Sec-Fetch-Site": "same-site"}, order_by="score"),
    ):
        assert (answer.status, answer.json["reason"]) == (401, "SESSION_ENDED")
    reader = log_in(own, wall.issuer.create("read:other.*"))
    assert reader.get(f"/tables/{TABLE}/top/events", order_by="score").status == 403
    assert reader.get(f"/tables/{TABLE}/top", order_by="score").status == 403


def test_a_script_in_a_row_or_a_name_stays_text(wall: Wall, own: GatewayProcess, browser: Chrome) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), (SCRIPT, pa.string())])
    with wall.connect() as client:
        table = client.create_table("game.scripts", schema, primary_key=["k"])
        table.upsert([{"k": 1, SCRIPT: SCRIPT}])
        browser.get_log("browser")  # type: ignore[no-untyped-call]  # forgets what it returns
        open_link(browser, own.port, wall.issuer.root, "/tables/game.scripts/top?order_by=k&where=k+%3C+3")
        await_rows(browser, [["1", SCRIPT]])
        table.upsert([{"k": 2, SCRIPT: f"{SCRIPT}{'x' * 400}"}])
        wait_until(lambda: len(cells(browser)) == 2, "the second row")
        assert cells(browser)[0][1] == f"{SCRIPT}{'x' * 400}"[:300] + "…"
        assert SCRIPT in browser.find_element(By.TAG_NAME, "thead").text
        assert browser.title == "game.scripts by k - ScanKV"
        assert len(browser.find_elements(By.CSS_SELECTOR, "script, img")) == 1
        assert [entry["message"] for entry in browser.get_log("browser")] == []  # type: ignore[no-untyped-call]
        client.drop_table("game.scripts")


def test_the_policy_allows_this_page_one_script_of_its_own_and_other_pages_none(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    session = log_in(own, wall.issuer.root)
    answer = session.get(f"/tables/{TABLE}/top", order_by="score")
    assert answer.headers["content-security-policy"] == (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "img-src 'self'; script-src 'self'; connect-src 'self'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # The address of the script differs after an upgrade, so that no cache runs an earlier script on a new page.
    script = HttpCaller(own.port).get("/live.js").body
    tag = f'<script src="/live.js?v={hashlib.sha256(script).hexdigest()[:16]}" defer></script>'
    assert answer.body.count(b"<script") == answer.body.count(tag.encode()) == 1
    assert answer.headers["referrer-policy"] == "no-referrer"
    others = [session.get(path) for path in ("/", f"/tables/{TABLE}", "/scans", "/server", "/nothing")]
    refused = session.get(f"/tables/{TABLE}/top", order_by="score", limit="0")
    for other in (*others, refused, HttpCaller(own.port).get("/login", next=LINK)):
        assert "script-src" not in other.headers["content-security-policy"]
        assert b"<script" not in other.body
    # The browser enforces it: no HTML from text, no inline script.
    open_link(browser, own.port, wall.issuer.root)
    inject = "try { document.body.innerHTML = '<p>x</p>'; return 'done' } catch (error) { return error.name }"
    assert browser.execute_script(inject) == "TypeError"


@pytest.mark.parametrize(
    ("query", "message"),
    [({"order_by": "score", "where": "score <"}, "expected a value"), ({"order_by": "scor"}, "scor")],
    ids=["predicate", "column"],
)
def test_a_query_that_cannot_succeed_is_shown_and_not_repeated(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome, query: dict[str, str], message: str
) -> None:
    open_link(browser, own.port, wall.issuer.root, f"/tables/{TABLE}/top?{urlencode(query)}")
    wait_until(lambda: browser.execute_script("return isOver || isSlow"), "the refusal")
    assert message in text(browser, "problem")
    browser.execute_script("dispatchEvent(new Event('online'))")
    assert browser.execute_script("return connection === null")
    # The page itself has asked, so its script has not.
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert [each for each in loaded if "/top/events" in each] == []


@pytest.mark.breadth
def test_a_dropped_table_is_shown_and_its_successor_after_a_slow_retry(wall: Wall, page: Chrome) -> None:
    with wall.connect() as client, no_reload(page):
        client.drop_table(TABLE)
        await_text(page, "problem", TABLE)
        await_text(page, "age", "Trying again in")
        page.execute_script("dispatchEvent(new Event('online'))")
        assert page.execute_script("return connection === null && due > performance.now() + 20000")
        client.create_table(TABLE, SCHEMA, primary_key=["player"]).upsert([{"player": "dan", "score": 1, "note": ""}])
        page.execute_script("due = 0")  # as if the time were over
        await_rows(page, [["dan", "1", ""]])
        assert text(page, "problem") == ""


@pytest.mark.soak
def test_a_stream_that_the_gateway_refuses_is_shown_and_tried_again(wall: Wall, table: Table, browser: Chrome) -> None:
    with wall.gateway(max_event_streams=1) as gateway:
        connection = gateway.connection()
        headers = {"Authorization": f"Bearer {wall.issuer.root}"}
        connection.request("GET", f"/v1/tables/{TABLE}/watch/top?order_by=score", headers=headers)
        with connection.getresponse():
            open_link(browser, gateway.port, wall.issuer.root)
            await_text(browser, "problem", "the gateway has too many streams of events at once")
            assert text(browser, "stale") == "Not current"
            assert cells(browser) == FIRST
        connection.close()
        await_rows(browser, FIRST)
        assert text(browser, "problem") == ""


@pytest.mark.breadth
def test_pauses_grow_to_half_a_minute_and_refusals_wait_longer(page: Chrome) -> None:

    def decide(failed: int, problem: dict[str, Any] | None) -> tuple[float, bool, bool]:
        """Returns for how many seconds the page pauses, and whether it ignores a new network, and the time."""
        script = """
            close(); failures = arguments[0]; settle(arguments[1]);
            return [(due - performance.now()) / 1000, isSlow, isOver]
        """
        pause, is_slow, is_over = page.execute_script(script, failed, problem)
        return pause, is_slow, is_over

    for failed, most in ((0, 1), (1, 2), (3, 8), (5, 30), (50, 30)):
        for problem in (None, {"status": 503, "detail": "x"}):
            pause, is_slow, is_over = decide(failed, problem)
            assert most / 2 - 0.1 <= pause <= most
            assert (is_slow, is_over) == (False, False)
    assert decide(0, {"status": 503, "detail": "x", "retry_after": 20})[0] > 19
    for status, least in ((403, 29), (404, 29), (409, 29), (504, 119)):
        pause, is_slow, is_over = decide(0, {"status": status, "detail": "x"})
        assert (pause > least, is_slow, is_over) == (True, True, False)
    for status, is_over in ((400, True), (413, True), (429, False), (401, False), (500, False)):
        assert decide(0, {"status": status, "detail": "x"})[1:] == (False, is_over)


@pytest.mark.represented_by("disabled")
@pytest.mark.parametrize(
    ("command", "value", "normal"),
    [
        ("Emulation.setScriptExecutionDisabled", {"value": True}, {"value": False}),
        ("Network.setBlockedURLs", {"urls": ["*/live.js*"]}, {"urls": []}),
    ],
    ids=["disabled", "lost"],
)
def test_a_page_whose_script_does_not_run_shows_the_rows_and_that_it_does_not_update(
    wall: Wall,
    own: GatewayProcess,
    table: Table,
    browser: Chrome,
    command: str,
    value: dict[str, Any],
    normal: dict[str, Any],
) -> None:
    base = open_link(browser, own.port, wall.issuer.root)
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(command, value)
    try:
        browser.get(f"{base}{LINK}")
        main = browser.find_element(By.TAG_NAME, "main").text
        classes = browser.find_element(By.ID, "live").get_attribute("class")
    finally:
        browser.execute_cdp_cmd(command, normal)
        browser.execute_cdp_cmd("Network.disable", {})
    assert "ann 31 null" in main
    assert "UTC" in main
    assert "Not current" in main
    assert "This page does not update itself" in main
    assert "Pause" not in main
    assert classes == "stale"


def test_a_fault_of_the_script_is_shown_and_logged_and_taken_for_no_lost_network(table: Table, page: Chrome) -> None:
    page.get_log("browser")  # type: ignore[no-untyped-call]  # forgets what it returns
    page.execute_script("replaceRows = () => { throw new TypeError('a fault') }")
    table.upsert([{"player": "cem", "score": 40, "note": None}])
    await_text(page, "age", "This page has failed: load it again.")
    assert text(page, "stale") == "Not current"
    assert page.execute_script("return connection === null && isOver")
    (entry,) = page.get_log("browser")  # type: ignore[no-untyped-call]
    assert "a fault" in entry["message"]


def test_rows_that_are_not_of_today_have_their_date(page: Chrome) -> None:
    page.execute_script("asOf = confirmed = Date.UTC(2020, 1, 3, 12); close(); isOver = true; show()")
    assert re.fullmatch(r"As of 0[34]/02/2020, \d\d:\d\d:\d\d, not confirmed for \d+ h\..*", text(page, "age"))


@pytest.mark.breadth
def test_a_screen_reader_hears_of_updates_at_most_once_a_minute(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    open_link(browser, own.port, wall.issuer.root)
    await_text(browser, "spoken", "Updated at")
    said = text(browser, "spoken")
    for score in (41, 42, 43):
        table.upsert([{"player": "cem", "score": score, "note": ""}])
        await_rows(browser, [["cem", str(score), ""], *FIRST])
    assert text(browser, "spoken") == said
    browser.execute_script("spoken = 0; byId('spoken').textContent = ''")  # as if the minute were over
    table.upsert([{"player": "cem", "score": 44, "note": ""}])
    await_text(browser, "spoken", "Updated at")
    assert browser.find_element(By.ID, "spoken").get_attribute("role") == "status"
    assert browser.find_element(By.TAG_NAME, "table").get_attribute("aria-live") == "off"


@pytest.mark.breadth
def test_a_screen_reader_hears_that_the_page_is_not_current_and_that_it_is_again(
    wall: Wall, table: Table, browser: Chrome
) -> None:
    with wall.gateway() as gateway:
        open_link(browser, gateway.port, wall.issuer.root)
        await_text(browser, "spoken", "Updated at")
        browser.execute_script(
            "new MutationObserver(() => { window.saidFirst ??= byId('spoken').textContent })"
            ".observe(byId('stale'), {attributes: true, childList: true})"
        )
        gateway.stop()
        await_text(browser, "stale", "Not current")
        # A short interruption is not worth a word.
        assert "Updated at" in browser.execute_script("return window.saidFirst")
        await_text(browser, "spoken", "Not current. Reconnecting.")
        gateway.start()
        await_text(browser, "spoken", "Current again, as of")


@pytest.mark.breadth
def test_the_page_of_a_table_leads_to_the_live_page_of_its_query_and_back(
    wall: Wall, own: GatewayProcess, table: Table, browser: Chrome
) -> None:
    base = open_link(browser, own.port, wall.issuer.root)
    query = {"order_by": "score", "where": "score > 30", "descending": "false", "run": "rows"}
    browser.get(f"{base}/tables/{TABLE}?{urlencode(query)}")
    browser.find_element(By.PARTIAL_LINK_TEXT, "Live").click()
    wait_until(lambda: "/top?" in browser.current_url, "the live page")
    await_rows(browser, FIRST[:1])
    browser.find_element(By.LINK_TEXT, "Change the query").click()
    wait_until(lambda: "run=rows" in browser.current_url, "the page of the table")
    assert browser.find_element(By.ID, "where").get_attribute("value") == "score > 30"
    assert browser.find_element(By.ID, "descending").get_attribute("value") == "false"


@pytest.mark.breadth
def test_a_server_without_tokens_needs_no_session(gateway: GatewayProcess, scores: Table, browser: Chrome) -> None:
    browser.get(f"http://127.0.0.1:{gateway.port}/tables/{scores.name}/top?order_by=score&limit=2")
    await_rows(browser, [["p99", "99"], ["p98", "98"]])


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.represented_by("390")
def test_the_page_fits_its_screen(wall: Wall, own: GatewayProcess, table: Table, browser: Chrome, width: int) -> None:
    set_size(browser, width, 900)
    open_link(browser, own.port, wall.issuer.root)
    await_rows(browser, FIRST)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
