"""The charts of the console: what they show, who samples for them, and who sees what."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.by import By

from aio_client import sync
from http_gateway.charts.sampler import MAX_READERS
from http_gateway.charts.source import FileToken
from scankv.model.errors import UsageError
from streaming_server.services.authorization import GATEWAY
from tests.http.conftest import SCORES
from tests.http.test_console import log_in
from tests.support.axe import problems_of
from tests.support.browser import set_mode, set_size
from tests.support.console import log_in_browser
from tests.support.gateway import GatewayProcess, HttpCaller
from tests.support.monitoring import free_port
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.workers import freeze, names_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    from tests.http.test_console import LoggedIn
    from tests.support.browser import Mode

ROWS = [{"player": f"p{number}", "score": number} for number in range(100)]
HIGHEST = re.compile(r"Rows written \(rows/s\)</strong> *<span class=\"key\">(?:[^ ]+|no value) now, ([\d.,]+) at most")
SECONDS = 0.25
"""The time between two samples of the gateways of these tests."""


class ChartServer:
    """A server that asks for tokens, with an audit log of reads, and two tables."""

    def __init__(self, directory: Path) -> None:
        self.issuer = TokenIssuer(directory / "tokens")
        self.audit = directory / "audit.log"
        audit = ("--audit-log", str(self.audit), "--set", "audit_reads=true")
        self.process = ServerProcess(directory / "data", "--tokens", str(self.issuer.path), *audit)
        self.token_file = directory / "token"
        write_private(self.token_file, self.issuer.create("read:*", principal="sampler of all"))

    def gateway(self, log: Path | None = None, **settings: Any) -> GatewayProcess:
        """Returns a gateway that samples often, without a token of its own unless the settings have one."""
        return GatewayProcess(self.process.url, log, charts_seconds=SECONDS, **settings)

    def start(self) -> None:
        """Makes the tables."""
        self.client = sync.connect(self.process.url, token=self.issuer.root)
        for name in ("game.scores", "other.scores"):
            self.client.create_table(name, SCORES, primary_key=["player"])

    def write(self, table: str) -> None:
        """Writes 100 rows."""
        self.client.table(table).upsert(ROWS)

    def samples_of(self, principal: str) -> int:
        """Returns how often a principal has asked for the activity."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return sum(line.get("principal") == principal and "Activity" in json.dumps(line) for line in lines)

    def check_is_not_sampled(self, principal: str, beside: str) -> None:
        """Checks that the samples of a principal have ended while those of another one continue."""
        self._wait_for_samples(beside, 2)  # A call that was cancelled is in the log later.
        before = self.samples_of(principal)
        self._wait_for_samples(beside, 3)
        assert self.samples_of(principal) == before

    def _wait_for_samples(self, principal: str, count: int) -> None:
        before = self.samples_of(principal)
        wait_until(lambda: self.samples_of(principal) >= before + count, f"samples of {principal}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartServer]:
    server = ChartServer(tmp_path_factory.mktemp("charts"))
    with server.process:
        server.start()
        with server.client:
            yield server


@pytest.fixture(scope="module")
def gateway(server: ChartServer) -> Iterator[GatewayProcess]:
    """A gateway that samples all the time."""
    with server.gateway(charts_token_file=str(server.token_file)) as gateway:
        yield gateway


def highest_written(page: bytes | str) -> float:
    """Returns the highest rate of rows written that the charts of a page show; 0 if they show none."""
    found = HIGHEST.search(unescape(page if isinstance(page, str) else page.decode()))
    return float(found[1].replace(",", "")) if found else 0.0


def wait_for_rate(session: LoggedIn, path: str) -> None:
    wait_until(lambda: highest_written(session.get(path).body) > 0, f"a rate on {path}")


@pytest.mark.breadth
def test_a_page_shows_the_writes_of_a_loader_and_refreshes_if_asked(
    server: ChartServer, gateway: GatewayProcess, browser: Chrome
) -> None:
    base = f"http://127.0.0.1:{gateway.port}"
    session = log_in_browser(browser, base, server.issuer.root)
    server.write("game.scores")
    http = log_in(gateway, server.issuer.root)
    wait_for_rate(http, "/charts")
    assert "refresh" not in http.get("/charts").headers
    browser.get(f"{session}/charts")
    assert highest_written(browser.page_source) > 0
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]  # selenium's
    assert browser.find_element(By.CSS_SELECTOR, ".chart path.line1.line").get_attribute("d")
    assert browser.find_element(By.CSS_SELECTOR, ".chart svg").size["height"] > 100
    assert "game.scores" in browser.find_element(By.CSS_SELECTOR, "table").text
    browser.find_element(By.LINK_TEXT, "Refresh every 5 seconds").click()
    first = browser.find_element(By.TAG_NAME, "html")
    wait_until(lambda: browser.find_element(By.TAG_NAME, "html") != first, "a refresh")
    browser.find_element(By.LINK_TEXT, "Stop refreshing").click()
    assert "Refresh every 5 seconds" in browser.page_source


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.breadth
def test_charts_keep_the_rules_of_accessibility(
    server: ChartServer, gateway: GatewayProcess, browser: Chrome, mode: Mode
) -> None:
    set_mode(browser, mode)
    session = log_in_browser(browser, f"http://127.0.0.1:{gateway.port}", server.issuer.root)

    def shows_charts() -> bool:
        server.write("game.scores")
        browser.get(f"{session}/charts")
        return bool(browser.find_elements(By.CSS_SELECTOR, ".chart"))

    wait_until(shows_charts, "charts")
    for path in ("/charts", "/tables/game.scores"):
        for width in (1280, 390, 320):
            set_size(browser, width, 2000)
            browser.get(session + path)
            assert problems_of(browser, ["violations"] if width < 1280 else ["violations", "incomplete"]) == []
            needed, given = browser.execute_script(
                "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert needed == given
    colours = browser.execute_script(_COLOURS)
    assert contrast(*colours["text"]) >= 4.5
    assert contrast(*colours["line1"]) >= 3
    assert contrast(*colours["line2"]) >= 3


_COLOURS = """
const of = (selector, property) => getComputedStyle(document.querySelector(selector))[property];
const ground = of(".chart", "backgroundColor");
return {
  text: [of(".chart text", "fill"), ground],
  line1: [of(".chart path.line1", "stroke"), ground],
  line2: [of(".chart path.line2", "stroke"), ground],
};
"""


def contrast(first: str, second: str) -> float:
    """Returns the contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.breadth
def test_a_reader_of_some_tables_sees_only_these_and_no_table_that_is_gone(
    server: ChartServer, gateway: GatewayProcess
) -> None:
    session = log_in(gateway, server.issuer.create("read:game.*"))
    admin = log_in(gateway, server.issuer.root)
    server.client.create_table("game.dropped", SCORES, primary_key=["player"])

    def shows_all() -> bool:
        for name in ("game.scores", "game.dropped", "other.scores"):
            server.write(name)
        return all(name in admin.get("/charts").body for name in (b"other.scores", b"game.dropped", b"game.scores"))

    wait_until(shows_all, "all tables")
    page = session.get("/charts")
    assert b"game.scores" in page.body
    assert b"other.scores" not in page.body
    assert b"need a token that may read every table" in page.body
    assert b"<svg" not in page.body
    refused = session.get("/tables/other.scores")
    assert refused.status == 403
    assert b"<svg" not in refused.body
    server.client.drop_table("game.dropped")
    assert b"game.dropped" not in session.get("/charts").body
    assert b"game.dropped" not in admin.get("/charts").body
    server.client.create_table("game.dropped", SCORES, primary_key=["player"])
    wait_until(lambda: highest_written(admin.get("/tables/game.dropped").body) == 0, "the charts of the new table")


def test_rights_that_are_taken_away_count_at_once(server: ChartServer, gateway: GatewayProcess) -> None:
    token = server.issuer.create("read:*")
    session = log_in(gateway, token)
    server.write("game.scores")
    wait_for_rate(session, "/charts")
    server.issuer.regrant(token, "read:other.*")
    wait_until(lambda: b"<svg" not in session.get("/charts").body, "the end of the rights")
    assert b"game.scores" not in session.get("/charts").body


@pytest.mark.breadth
def test_without_a_token_the_gateway_samples_while_a_page_is_open(server: ChartServer, tmp_path: Path) -> None:
    with server.gateway(sessions=str(tmp_path)) as gateway:
        names = ("reader", "stays")
        reader, stays = (log_in(gateway, server.issuer.create("read:game.*", principal=name)) for name in names)
        assert server.samples_of("reader") == 0
        page = reader.get("/tables/game.scores")
        assert b"Sampling began 0 s ago. The first values come after two samples" in page.body
        assert b"samples only while a page with charts is open" in page.body
        wait_until(lambda: server.samples_of("reader") >= 2, "two samples")
        server.write("game.scores")
        wait_for_rate(reader, "/tables/game.scores")
        stays.get("/tables/game.scores")
        # A page that is being made when its reader logs out does not bring the token back.
        form_key = reader.form_key
        files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        with ThreadPoolExecutor(1) as threads, freeze(server.process.process.pid):
            late = threads.submit(reader.get, "/charts")
            wait_until(lambda: any(path.stat().st_mtime_ns > at for path, at in files.items()), "the request")
            assert reader.post("/logout", form_key=form_key).status == 303
        assert late.result().status in (303, 503)
        server.check_is_not_sampled("reader", beside="stays")


@pytest.mark.soak
def test_a_session_that_ends_by_itself_is_sampled_no_more(server: ChartServer, tmp_path: Path) -> None:
    with server.gateway(sessions=str(tmp_path)) as gateway:
        session = log_in(gateway, server.issuer.create("read:game.*", principal="ends"))
        stays = log_in(gateway, server.issuer.create("read:game.*", principal="stays on"))
        file = tmp_path / sha256(session.base.rpartition("/")[2].encode()).hexdigest()
        for each in (session, stays):
            each.get("/tables/game.scores")
        wait_until(lambda: server.samples_of("ends") >= 1, "a sample")
        file.unlink()
        server.check_is_not_sampled("ends", beside="stays on")


@pytest.mark.breadth
def test_a_further_reader_takes_the_charts_of_no_other(server: ChartServer) -> None:
    tokens = [server.issuer.create("read:game.*", principal=f"reader {number}") for number in range(MAX_READERS + 1)]
    with server.gateway() as gateway:
        sessions = [log_in(gateway, token) for token in tokens]
        server.write("game.scores")
        for session in sessions[:-1]:
            assert session.get("/tables/game.scores").status == 200
        for path in ("/tables/game.scores", "/charts"):
            assert b"Too many other readers have charts open" in sessions[-1].get(path).body

        def shows_rate() -> bool:
            server.write("game.scores")
            return highest_written(sessions[0].get("/tables/game.scores").body) > 0

        wait_until(shows_rate, "a rate for the first reader")


@pytest.mark.breadth
def test_a_token_file_lets_a_gateway_sample_all_the_time(server: ChartServer, tmp_path: Path) -> None:
    file, log = tmp_path / "token", tmp_path / "log"
    token = server.issuer.create("read:*", principal="sampler")
    write_private(file, token)
    with server.gateway(log, charts_token_file=str(file)) as gateway:
        wait_until(lambda: server.samples_of("sampler") >= 2, "two samples")
        server.write("game.scores")
        session = log_in(gateway, server.issuer.create("read:game.*"))
        wait_for_rate(session, "/tables/game.scores")
        server.issuer.revoke(token)
        refused = b"the server does not accept the token with which charts are sampled"
        wait_until(lambda: refused in session.get("/tables/game.scores").body, "the refusal on the page")
        other = server.issuer.create("read:*", principal="successor")
        write_private(file, other)
        wait_until(lambda: server.samples_of("successor") >= 1, "samples with the new token")
        wait_until(lambda: refused not in session.get("/tables/game.scores").body, "no refusal any more")
        assert log.read_text().count("does not accept the token") == 1
        assert token not in log.read_text()
        file.chmod(0o644)
        unusable = b"the token file of the gateway cannot be used: see the log of the gateway"
        wait_until(lambda: unusable in session.get("/tables/game.scores").body, "the problem on the page")
        assert str(file).encode() not in session.get("/tables/game.scores").body
        assert f"chmod 600 {file}" in log.read_text()


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    write_private(file, "scankv_1_2")
    FileToken(str(file))
    file.chmod(0o640)
    with pytest.raises(UsageError, match=r"other users may read the token file .* \(mode 640\): run chmod 600"):
        FileToken(str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        FileToken(str(tmp_path / "missing"))


def write_private(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


@pytest.mark.breadth
def test_a_page_goes_on_refreshing_while_the_server_restarts(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, GatewayProcess(server.url) as gateway:
        assert gateway.get("/charts", refresh="5").status == 200
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        answer = gateway.get("/charts", refresh="5")
        assert (answer.status, answer.headers["refresh"]) == (503, "5")
        assert b"Stop refreshing" in answer.body
        assert "refresh" not in gateway.get("/charts").headers


@pytest.mark.breadth
def test_the_own_gateway_samples_the_tables_of_all_workers_when_no_page_is_open(tmp_path: Path) -> None:
    issuer, port, audit = TokenIssuer(tmp_path / "tokens"), free_port(), tmp_path / "audit.log"
    arguments = ("--workers", "2", "--http-port", str(port), "--tokens", str(issuer.path))
    audited = ("--audit-log", str(audit), "--set", "audit_reads=true")
    names = [name for (name,) in names_of_workers(2, "part")]

    def samples() -> int:
        return sum(GATEWAY.principal in line for line in audit.read_text().splitlines())

    with (
        ServerProcess(tmp_path / "data", *arguments, *audited) as server,
        sync.connect(server.url, token=issuer.root) as client,
    ):
        tables = [client.create_table(name, SCORES, primary_key=["player"]) for name in names]
        wait_until(lambda: samples() >= 1, "a sample")
        for table in tables:
            table.upsert(ROWS)
        session = log_in(HttpCaller(port), issuer.root)
        for name in names:
            wait_for_rate(session, f"/tables/{name}")
        page = session.get("/charts").body.decode()
        assert highest_written(page) > 0
        assert all(name in page for name in names)
