"""The charts of the console: what they show, who samples for them, and who sees what."""

from __future__ import annotations

import json
import os
import re
import signal
from html import unescape
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By

from aio_client import sync
from http_gateway.charts.source import FileToken
from scankv.model.errors import UsageError
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
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    from tests.http.test_console import LoggedIn
    from tests.support.browser import Mode

ROWS = [{"player": f"p{number}", "score": number} for number in range(100)]
HIGHEST = re.compile(r"Rows written \(rows/s\), the last 15 minutes\. (?:[^ ]+|no value) now, ([\d.,]+) at most\.")


class ChartServer:
    """A server that asks for tokens, with a gateway of its own, an audit log of reads, and two tables."""

    def __init__(self, directory: Path) -> None:
        self.issuer = TokenIssuer(directory / "tokens")
        self.audit = directory / "audit.log"
        self.port = free_port()
        audit = ("--audit-log", str(self.audit), "--set", "audit_reads=true")
        gateway = ("--http-port", str(self.port), "--tokens", str(self.issuer.path))
        self.process = ServerProcess(directory / "data", *gateway, *audit)

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartServer]:
    server = ChartServer(tmp_path_factory.mktemp("charts"))
    with server.process:
        server.start()
        with server.client:
            yield server


def highest_written(page: bytes | str) -> float:
    """Returns the highest rate of rows written that the charts of a page show; 0 if they show none."""
    found = HIGHEST.search(unescape(page if isinstance(page, str) else page.decode()))
    return float(found[1].replace(",", "")) if found else 0.0


def wait_for_rate(session: LoggedIn, path: str) -> None:
    wait_until(lambda: highest_written(session.get(path).body) > 0, f"a rate on {path}")


def test_a_page_shows_the_writes_of_a_loader_and_refreshes_by_itself(server: ChartServer, browser: Chrome) -> None:
    base = f"http://127.0.0.1:{server.port}"
    session = log_in_browser(browser, base, server.issuer.root)
    browser.get(f"{session}/charts")
    first = browser.find_element(By.TAG_NAME, "html")

    def shows_writes() -> bool:
        server.write("game.scores")
        return highest_written(browser.page_source) > 0

    wait_until(shows_writes, "the writes")
    assert browser.find_element(By.TAG_NAME, "html") != first
    assert browser.current_url == f"{session}/charts"
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]  # selenium's
    assert browser.find_element(By.CSS_SELECTOR, ".chart path.line1.line").get_attribute("d")
    assert browser.find_element(By.CSS_SELECTOR, ".chart svg").size["height"] > 100
    assert "game.scores" in browser.find_element(By.CSS_SELECTOR, "table").text
    browser.find_element(By.LINK_TEXT, "Stop refreshing").click()
    assert "Refresh every 5 seconds" in browser.page_source


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_charts_keep_the_rules_of_accessibility(server: ChartServer, browser: Chrome, mode: Mode) -> None:
    set_mode(browser, mode)
    session = log_in_browser(browser, f"http://127.0.0.1:{server.port}", server.issuer.root)

    def shows_charts() -> bool:
        server.write("game.scores")
        browser.get(f"{session}/charts?refresh=")
        return bool(browser.find_elements(By.CSS_SELECTOR, ".chart"))

    wait_until(shows_charts, "charts")
    for path in ("/charts?refresh=", "/tables/game.scores"):
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


def test_the_own_gateway_samples_when_no_page_is_open(server: ChartServer) -> None:
    before = server.samples_of("the server's own gateway")
    wait_until(lambda: server.samples_of("the server's own gateway") > before + 1, "two samples")
    server.write("game.scores")
    wait_until(lambda: server.samples_of("the server's own gateway") > before + 3, "two more samples")
    session = log_in(HttpCaller(server.port), server.issuer.create("read:game.*"))
    # The first page that this reader opens has values from before.
    assert highest_written(session.get("/tables/game.scores").body) > 0


def test_a_reader_of_some_tables_sees_only_these(server: ChartServer) -> None:
    session = log_in(HttpCaller(server.port), server.issuer.create("read:game.*"))
    server.write("other.scores")
    admin = log_in(HttpCaller(server.port), server.issuer.root)

    def shows_other() -> bool:
        server.write("game.scores")
        server.write("other.scores")
        return b"other.scores" in admin.get("/charts").body

    wait_until(shows_other, "both tables")
    page = session.get("/charts")
    assert b"game.scores" in page.body
    assert b"other.scores" not in page.body
    assert b"need a token that may read every table" in page.body
    assert b"<svg" not in page.body
    refused = session.get("/tables/other.scores")
    assert refused.status == 403
    assert b"<svg" not in refused.body


def test_rights_that_are_taken_away_count_at_once(server: ChartServer) -> None:
    token = server.issuer.create("read:*")
    session = log_in(HttpCaller(server.port), token)
    server.write("game.scores")
    wait_for_rate(session, "/charts")
    server.issuer.regrant(token, "read:other.*")
    wait_until(lambda: b"<svg" not in session.get("/charts").body, "the end of the rights")
    assert b"game.scores" not in session.get("/charts").body


def test_a_page_without_refresh_does_not_ask_for_one(server: ChartServer) -> None:
    session = log_in(HttpCaller(server.port), server.issuer.root)
    assert session.get("/charts").headers["refresh"] == "5"
    assert session.get("/charts", refresh="30").headers["refresh"] == "30"
    assert "refresh" not in session.get("/charts", refresh="").headers
    assert "refresh" not in session.get("/tables/game.scores").headers
    assert session.get("/charts", refresh="1").status == 400


def test_without_a_token_the_gateway_samples_while_a_page_is_open(server: ChartServer) -> None:
    with GatewayProcess(server.process.url) as gateway:
        token = server.issuer.create("read:game.*", principal="reader")
        session = log_in(gateway, token)
        assert server.samples_of("reader") == 0
        page = session.get("/tables/game.scores")
        assert b"samples only while a page with charts is open" in page.body
        wait_until(lambda: server.samples_of("reader") >= 2, "two samples")
        server.write("game.scores")
        wait_for_rate(session, "/tables/game.scores")


def test_a_logout_ends_the_samples_at_once(server: ChartServer) -> None:
    with GatewayProcess(server.process.url) as gateway:
        sessions = {
            name: log_in(gateway, server.issuer.create("read:game.*", principal=name)) for name in ("leaves", "stays")
        }
        for name, session in sessions.items():
            assert session.get("/tables/game.scores").status == 200
            wait_until(lambda name=name: server.samples_of(name) >= 1, "a sample")  # type: ignore[misc]
        leaving = sessions["leaves"]
        assert leaving.post("/logout", form_key=leaving.form_key).status == 303
        left, stayed = server.samples_of("leaves"), server.samples_of("stays")
        wait_until(lambda: server.samples_of("stays") >= stayed + 3, "three samples for the other")
        assert server.samples_of("leaves") == left


def test_a_token_file_lets_a_gateway_sample_all_the_time(server: ChartServer, tmp_path: Path) -> None:
    file, log = tmp_path / "token", tmp_path / "log"
    token = server.issuer.create("read:*", principal="sampler")
    write_private(file, token)
    with GatewayProcess(server.process.url, log, charts_token_file=str(file)) as gateway:
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


def test_the_page_goes_on_refreshing_while_the_server_restarts(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, GatewayProcess(server.url) as gateway:
        assert gateway.get("/charts").status == 200
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        answer = gateway.get("/charts")
        assert answer.status == 503
        assert answer.headers["refresh"] == "5"


def test_the_own_gateway_samples_the_tables_of_all_workers(tmp_path: Path) -> None:
    issuer, port = TokenIssuer(tmp_path / "tokens"), free_port()
    arguments = ("--workers", "2", "--http-port", str(port), "--tokens", str(issuer.path))
    names = [name for (name,) in names_of_workers(2, "part")]
    with (
        ServerProcess(tmp_path / "data", *arguments) as server,
        sync.connect(server.url, token=issuer.root) as client,
    ):
        tables = [client.create_table(name, SCORES, primary_key=["player"]) for name in names]
        session = log_in(HttpCaller(port), issuer.root)

        def shows_both() -> bool:
            for table in tables:
                table.upsert(ROWS)
            return all(highest_written(session.get(f"/tables/{name}").body) > 0 for name in names)

        wait_until(shows_both, "the writes to both")
        page = session.get("/charts").body.decode()
        assert highest_written(page) > 0
        assert all(name in page for name in names)


def test_a_page_says_when_sampling_began(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, GatewayProcess(server.url) as gateway:
        page = gateway.get("/charts").body.decode()
        assert "Sampling began 0 s ago. The first values come after two samples" in page
        assert "<svg" not in page
