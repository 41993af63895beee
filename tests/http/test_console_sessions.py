"""A session of the console is of use to its browser only: not over gRPC, not to another port, not after its end."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from aio_client import Unauthenticated, sync
from http_gateway.console.session_files import SessionFiles, SessionKeys
from http_gateway.console.sessions import Session, has_ended_token
from tests.http.test_console import form_key, log_in
from tests.support.console import log_in_browser
from tests.support.gateway import GatewayProcess, HttpCaller
from tests.support.monitoring import free_port
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    from tests.http.conftest import TokenGateway

PATHS = ("/", "/tables/game.scores", "/scans", "/server")


class CuriousProgram(ThreadingHTTPServer):
    """A program on another port of the host, which keeps all that browsers send to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CuriousHandler)
        self.heads: list[tuple[str, dict[str, str]]] = []
        self.base = f"http://127.0.0.1:{self.server_port}"


class CuriousHandler(BaseHTTPRequestHandler):
    """Answers every path with a page that asks for more of them, and sends the browser to the console."""

    server: CuriousProgram

    def do_GET(self) -> None:
        self.server.heads.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        images = "".join(f'<img src="{path}">' for path in ("/console/x.png", "/console", "/scans", "/v1/tables"))
        body = f"<title>curious</title>{images}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "scankv_session=planted; Path=/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def curious_program() -> Iterator[CuriousProgram]:
    with CuriousProgram() as program:
        thread = threading.Thread(target=program.serve_forever)
        thread.start()
        try:
            yield program
        finally:
            program.shutdown()
            thread.join()


def secrets_of(heads: list[tuple[str, dict[str, str]]]) -> set[str]:
    """Returns the values of all cookies, and where the browser says that it comes from."""
    found: set[str] = set()
    for _, headers in heads:
        pairs = [each.partition("=") for each in headers.get("cookie", "").split(";")]
        found |= {value.strip(' "') for _, _, value in pairs} | {headers.get("referer", "")}
    return found - {""}


@pytest.mark.breadth
def test_what_a_browser_sends_to_another_port_is_of_no_use_there(secured: TokenGateway, browser: Chrome) -> None:
    base = log_in_browser(browser, f"http://127.0.0.1:{secured.port}", secured.issuer.root)
    with curious_program() as program:
        for path in ("/", "/login", "/console/", "/tables/game.scores", "/console.css"):
            browser.get(program.base + path)
        browser.get(f"{base}/scans")
        browser.get(program.base)
        heads = list(program.heads)
        assert len(heads) > 5
        # The other port does get cookies: those whose path it is asked for.
        path = base.partition(str(secured.port))[2]
        browser.get(f"{program.base}{path}/")
        assert "cookie" in dict(program.heads)[f"{path}/"]
    caller = HttpCaller(secured.port)
    received = secrets_of(heads)
    assert not any(secret in each for each in received for secret in (secured.issuer.root, path.rpartition("/")[2]))
    for value in received | secrets_of(program.heads):
        with pytest.raises(Unauthenticated), sync.connect(secured.url, token=value) as client:
            client.tables()
        assert caller.get("/v1/tables", headers={"Authorization": f"Bearer {value}"}).status == 401
    for cookie in {headers.get("cookie", "") for _, headers in heads}:
        assert caller.get("/v1/tables", headers={"Cookie": cookie}).status == 401
        for each in {*PATHS, *(asked for asked, _ in heads if asked.startswith("/console/"))}:
            assert caller.get(each, headers={"Cookie": cookie}).status in (303, 404), each
    # The session itself is unharmed.
    browser.get(f"{base}/scans")
    assert browser.title == "Live scans - ScanKV"
    browser.delete_all_cookies()


def test_neither_the_path_of_a_session_nor_its_cookie_is_of_use_alone(secured: TokenGateway) -> None:
    session, other = log_in(secured, secured.issuer.root), log_in(secured, secured.issuer.root)
    caller = session.caller
    for base, cookie in ((session.base, ""), (session.base, other.cookie), ("", session.cookie)):
        for path in PATHS:
            answer = caller.get(base + path, headers={"Cookie": cookie})
            assert (answer.status, answer.headers["location"]) == (303, "/login")
    planted = f"scankv_session=x; {session.cookie}; scankv_session=y"
    assert caller.get(f"{session.base}/", headers={"Cookie": planted}).status == 200


def test_the_cookies_of_earlier_versions_which_had_the_token_are_expired(secured: TokenGateway) -> None:
    session = log_in(secured, secured.issuer.root)
    expired = {
        "scankv_token": 'scankv_token=""; HttpOnly; Max-Age=0; Path=/; SameSite=strict',
        "__Host-scankv_token": '__Host-scankv_token=""; HttpOnly; Max-Age=0; Path=/; SameSite=strict; Secure',
    }
    for path, status in ((f"{session.base}/scans", 200), ("/login", 200), ("/", 303), ("/nothing", 404)):
        for name, header in expired.items():
            cookies = f"{session.cookie}; {name}={secured.issuer.root}"
            answer = session.caller.get(path, headers={"Cookie": cookies})
            assert (answer.status, answer.headers["set-cookie"]) == (status, header)
        assert "set-cookie" not in session.caller.get(path, headers={"Cookie": session.cookie}).headers


def test_a_browser_forgets_the_cookie_of_an_earlier_version(secured: TokenGateway, browser: Chrome) -> None:
    browser.get(f"http://127.0.0.1:{secured.port}/console.css")
    browser.delete_all_cookies()
    browser.add_cookie({"name": "scankv_token", "value": "skv_x", "path": "/", "httpOnly": True, "sameSite": "Strict"})
    browser.get(f"http://127.0.0.1:{secured.port}/login")
    assert browser.get_cookies() == []


def test_logging_out_ends_a_session_for_whoever_has_its_cookie(secured: TokenGateway) -> None:
    session, other = log_in(secured, secured.issuer.root), log_in(secured, secured.issuer.root)
    key = session.form_key
    assert session.post("/logout", form_key=other.form_key).status == 403
    assert session.get("/").status == 200
    assert session.post("/logout", form_key=key).headers["location"] == "/login"
    assert session.get("/").status == 303
    assert session.post("/scans/stop", form_key=key, scan_id="x").headers["location"] == "/login"
    assert other.get("/").status == 200


@pytest.mark.breadth
def test_sessions_survive_a_restart_and_end_when_their_token_is_revoked(tmp_path: Path) -> None:
    issuer, port = TokenIssuer(tmp_path / "tokens"), free_port()
    caller, token = HttpCaller(port), issuer.create("read:*")

    def start() -> ServerProcess:
        return ServerProcess(tmp_path / "data", "--tokens", str(issuer.path), "--http-port", str(port))

    with start():
        session = log_in(caller, token)
    (file,) = (tmp_path / "data" / "console").iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, file.parent)] == [0o600, 0o700]
    secrets = (token, session.base.rpartition("/")[2], session.cookie.partition("=")[2])
    assert not any(secret in file.name + file.read_text() for secret in secrets)
    with start():
        key = session.form_key
        assert session.post("/scans/stop", form_key=key, scan_id="x").status == 403
        issuer.revoke(token)
        wait_until(lambda: session.get("/").status == 303, "the end of the session")
        assert not file.exists()


@pytest.mark.breadth
def test_a_server_without_tokens_makes_no_sessions(tmp_path: Path, shared_server: ServerProcess) -> None:
    with GatewayProcess(shared_server.url, sessions=str(tmp_path)) as gateway:
        answer = gateway.post("/login", form_key=form_key(gateway, "/login"), token="any")
        assert (answer.status, answer.headers["location"]) == (303, "/")
    assert list(tmp_path.iterdir()) == []


def test_the_login_says_how_long_a_session_lasts(secured: TokenGateway) -> None:
    caller = HttpCaller(secured.port)
    refused = caller.post("/login", form_key=form_key(caller, "/login"), token="skv_0_wrong")
    for answer in (caller.get("/login"), refused):
        assert b"after 1 h without use, with the token, and at the latest after 12 h." in answer.body


@pytest.mark.breadth
def test_a_page_that_refreshes_itself_is_in_use(tmp_path: Path, secured: TokenGateway) -> None:
    with GatewayProcess(secured.url, sessions=str(tmp_path), session_idle_seconds=3600.0) as gateway:
        session = log_in(gateway, secured.issuer.root)
        (file,) = tmp_path.iterdir()
        for _ in range(2):
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 3000))
            assert session.get("/scans", refresh="5").status == 200
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 4000))
        assert session.get("/scans", refresh="5").status == 303
        file.unlink()
        tmp_path.rmdir()
        tmp_path.write_text("in the way")
        answer = gateway.post("/login", form_key=form_key(gateway, "/login"), token=secured.issuer.root)
        assert answer.status == 503
        assert b"the session cannot be stored (File exists)" in answer.body


def test_a_session_ends_without_use_and_at_the_latest_after_its_time(tmp_path: Path) -> None:
    files = SessionFiles(tmp_path / "sessions", seconds=100, idle_seconds=10)
    unused, used = files.begin("one", 1000.0), files.begin("two", 1000.0)
    for now in range(1000, 1100, 9):
        assert files.use(used, float(now)) == "two"
    assert files.use(unused, 1010.0) is None
    assert files.use(used, 1100.0) is None
    # A clock that is set back does not bring it to life again for long.
    assert files.use(used, 900.0) is None
    assert len(list(tmp_path.glob("sessions/*"))) == 2
    files.begin("three", 1101.0)
    assert len(list(tmp_path.glob("sessions/*"))) == 1


@pytest.mark.breadth
def test_the_file_of_a_session_has_the_end_of_its_token(tmp_path: Path, secured: TokenGateway) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    with GatewayProcess(secured.url, sessions=str(tmp_path)) as gateway:
        for expires, until in ((end, end.timestamp()), (None, None)):
            session = log_in(gateway, secured.issuer.create("read:*", expires=expires))
            (file,) = tmp_path.iterdir()
            assert json.loads(file.read_text())["until"] == until
            assert session.get("/").status == 200
            session.post("/logout", form_key=session.form_key)


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    files = SessionFiles(tmp_path, seconds=100, idle_seconds=100)
    keys = files.begin("token", 1000.0, 1050.0)
    assert [files.use(keys, now) for now in (1049.0, 1050.0)] == ["token", None]
    files.begin("other", 1051.0)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_token_has_a_bounded_number_of_sessions(tmp_path: Path) -> None:
    files = SessionFiles(tmp_path, seconds=100, idle_seconds=100)
    other = files.begin("other", 1000.0)
    first, *sessions = [files.begin("token", 1000.0 + number) for number in range(20)]
    assert files.use(first, 1050.0) == "token"
    files.begin("token", 1051.0)
    # The one that was not used for the longest time has ended.
    assert [files.use(each, 1052.0) for each in (other, first, *sessions[:2])] == ["other", "token", None, "token"]


def test_the_subject_of_web_tokens_has_a_bounded_number_of_sessions_however_many_tokens_it_has(tmp_path: Path) -> None:
    files = SessionFiles(tmp_path, seconds=100, idle_seconds=100)
    ann, bob = [files.begin(web_token("ann", number), 1000.0) for number in range(25)], files.begin("bob", 1000.0)
    assert sum(files.use(each, 1001.0) is not None for each in ann) == 20
    assert files.use(bob, 1001.0) == "bob"


def test_a_full_console_ends_a_session_of_whoever_has_the_most(tmp_path: Path) -> None:
    files = SessionFiles(tmp_path, seconds=100, idle_seconds=100, most=50)
    first = files.begin("one", 1000.0)
    ann = [files.begin("ann", 1001.0 + number / 100) for number in range(20)]
    others = [files.begin(f"other {number}", 1000.0) for number in range(29)]
    # A gateway that has been started again counts them, too.
    for number, further in enumerate((files, SessionFiles(tmp_path, seconds=100, idle_seconds=100, most=50))):
        assert further.begin(f"further {number}", 1002.0)
        assert len(list(tmp_path.iterdir())) == 50
    assert [files.use(each, 1003.0) for each in (first, *ann[:3], others[0])] == ["one", None, None, "ann", "other 0"]


def web_token(subject: str, number: int, **more: int) -> str:
    claims = json.dumps({"iss": "https://issuer.example", "sub": subject, "jti": str(number), **more}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


def test_only_a_web_token_that_has_not_expired_may_be_accepted_again() -> None:
    keys, now = SessionKeys("path", "secret"), int(time.time())
    tokens = ["skv_1_secret", web_token("ann", 1), web_token("ann", 1, exp=now - 1), web_token("ann", 1, exp=now + 900)]
    assert [has_ended_token(Session(keys, each)) for each in tokens] == [True, True, True, False]


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"began": "x", "owner": "", "sealed": ""}', "\udcff"])
def test_a_damaged_file_is_no_session(tmp_path: Path, damage: str) -> None:
    files = SessionFiles(tmp_path, seconds=100, idle_seconds=100)
    keys = files.begin("token", 1000.0)
    (tmp_path / keys.name).write_bytes(damage.encode(errors="surrogateescape"))
    os.utime(tmp_path / keys.name, (1000, 1000))
    assert files.use(keys, 1000.0) is None
    files.end(keys)
    files.end(keys)
