"""The access log: what a line says about a request, and what no line has."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import sync
from http_gateway.access_log import path_text
from http_gateway.child_log import LineFormatter
from scankv.model.forwarded_peers import peer_text
from streaming_server.access.request_principals import RequestPrincipals
from tests.http.conftest import SCORES, fill_wide
from tests.support.gateway import HttpCaller, target
from tests.support.monitoring import free_port
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGGER = "http_gateway.access_log"
BROWSER = "127.0.0.8"


class LoggingServer:
    """A server with tokens, whose gateway logs each request."""

    def __init__(self, directory: Path, log_format: str) -> None:
        self.issuer = TokenIssuer(directory / "tokens")
        self.port = free_port()
        http = ("--http-port", str(self.port), "--http-access-log", "--log-format", log_format)
        self.process = ServerProcess(directory / "data", "--tokens", str(self.issuer.path), *http)

    def caller(self, principal: str = "reader") -> HttpCaller:
        return HttpCaller(self.port, self.issuer.create("read:*", principal=principal), source=BROWSER)

    def lines(self, path: str) -> list[dict[str, Any]]:
        """Returns the lines of the access log with a path."""
        found = [json.loads(line) for line in self.process.log.splitlines()]
        return [line for line in found if line["logger"] == LOGGER and line["path"] == path]

    def the_line(self, path: str) -> dict[str, Any]:
        (line,) = wait_until(lambda: self.lines(path), "the line of the request")
        return line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggingServer]:
    server = LoggingServer(tmp_path_factory.mktemp("logged"), "json")
    with server.process, sync.connect(server.process.url, token=server.issuer.root) as client:
        for name in ("a.answered", "a.denied", "a.head", "a.secret"):
            client.create_table(name, SCORES, primary_key=["player"]).upsert([{"player": "ann", "score": 31}])
        fill_wide(client, "a.wide")
        yield server


@pytest.mark.breadth
def test_a_line_says_who_asked_for_what_and_what_was_answered(server: LoggingServer) -> None:
    path = "/v1/tables/a.answered/count"
    connection = server.caller("etl").connection()
    connection.request("GET", f"{path}?where=score+%3E+1", headers=server.caller("etl").headers())
    peer = peer_text(*connection.sock.getsockname())
    with connection.getresponse() as response:
        body = response.read()
    connection.close()
    line = server.the_line(path)
    assert re.fullmatch("[0-9a-f]{32}", line["request_id"])
    assert 0 < line["millis"] < 60_000
    expected = {"peer": peer, "method": "GET", "path": path, "status": 200, "bytes": len(body)}
    expected |= {"outcome": "complete", "user": "etl", "level": "info"}
    assert {name: line[name] for name in expected} == expected
    assert line["time"].endswith("+00:00")


def test_users_are_named_only_if_they_are_known(server: LoggingServer) -> None:
    nobody = HttpCaller(server.port, "scankv_0123456789abcdef_wrong")
    assert nobody.get("/v1/tables/a.denied").status == 401
    line = server.the_line("/v1/tables/a.denied")
    assert (line["status"], line["user"]) == (401, None)
    assert nobody.get("/healthz").status == 200
    assert server.the_line("/healthz")["user"] is None


def test_bytes_are_those_of_bodies(server: LoggingServer) -> None:
    assert server.caller().get("/v1/tables/a.head", method="HEAD").status == 200
    line = server.the_line("/v1/tables/a.head")
    assert (line["method"], line["bytes"], line["outcome"]) == ("HEAD", 0, "complete")
    answer = HttpCaller(server.port).get("/no-such-path")
    line = server.the_line("/no-such-path")
    assert (line["status"], line["bytes"], line["outcome"]) == (404, len(answer.body), "complete")


def test_a_download_that_its_reader_leaves_is_aborted(server: LoggingServer) -> None:
    path, caller = "/v1/tables/a.wide/scan", server.caller("leaver")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        header = f"Authorization: Bearer {caller.token}\r\n"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
        taken = 0
        while taken < 100_000:
            part = connection.recv(65536)
            assert part
            taken += len(part)
    line = server.the_line(path)
    assert (line["status"], line["outcome"], line["user"]) == (200, "aborted", "leaver")
    assert 0 < line["bytes"] < 40_000_000


def test_no_line_has_a_token_a_query_or_a_cookie(server: LoggingServer) -> None:
    secret = server.issuer.create("read:*")
    path = "/v1/tables/a.secret/count"
    queries: list[dict[str, Any]] = [{"token": secret}, {secret: ""}, {"where": f"player = '{secret}'"}]
    for query in queries:
        HttpCaller(server.port, secret).get(path, **query)
    HttpCaller(server.port).get(path, headers={"Cookie": f"scankv_session={secret}", "X-Token": secret})
    HttpCaller(server.port).get(path, headers={"Authorization": f"Basic {secret}"})
    HttpCaller(server.port).get("/", headers={"Cookie": f"scankv_session={secret}; other={secret}"})
    HttpCaller(server.port).post("/login", form_key=secret, token=secret)
    raw = [f"http://x:{secret}@localhost{path}?{secret}", f"{path}#{secret}"]
    for each in raw:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(f"GET {each} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            while connection.recv(65536):
                pass
    wait_until(lambda: len(server.lines(path)) == 6 and server.lines("-") and server.lines("/login"), "the lines")
    assert secret not in server.process.log
    assert secret.rpartition("_")[2] not in server.process.log


@pytest.mark.parametrize(
    "forged",
    [
        '/forged\n{"level": 20, "logger": "x", "message": "forged-message", "fields": {}}',
        "/forged\r\nforged-line",
        '/forged" 200 complete, 5 bytes',
        "/forged\u2028\x1b[31mforged-line",
    ],
)
def test_a_path_cannot_forge_a_line(server: LoggingServer, forged: str) -> None:
    before = len(server.process.log.splitlines())
    path = target(forged)
    assert HttpCaller(server.port).get(forged).status == 404
    assert server.the_line(path)["status"] == 404
    assert len(server.process.log.splitlines()) == before + 1


def test_a_message_with_line_breaks_is_one_line_for_the_server() -> None:
    forged = json.dumps({"level": 20, "logger": "x", "message": "forged", "fields": {}})
    try:
        raise ValueError(f"an error\n{forged}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (f"a message\n{forged}",), sys.exc_info())
    line = LineFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["fields"]) == (logging.ERROR, "x", {})
    assert found["message"].startswith(f"a message\n{forged}\nTraceback ")
    assert found["message"].endswith(f"ValueError: an error\n{forged}")


def test_the_text_of_a_line_has_the_same(tmp_path: Path) -> None:
    server = LoggingServer(tmp_path, "text")
    with server.process:
        answer = server.caller("the etl").get("/v1/tables", where="x")
        assert answer.status == 400
        answer = server.caller("the etl").get("/v1/tables")
        pattern = (
            rf"INFO {LOGGER}: ipv4:127\.0\.0\.8:\d+ \"GET /v1/tables\" 200 complete, {len(answer.body)} bytes, "
            r"[\d.]+ ms, request [0-9a-f]{32}, user \"the etl\"$"
        )
        found = wait_until(lambda: re.findall(pattern, server.process.log, re.MULTILINE), "the line")
        assert len(found) == 1
        assert HttpCaller(server.port).get('/a"b\\c').status == 404
        wait_until(lambda: '"GET /a%22b%5Cc" 404 complete, ' in server.process.log, "the line")


@pytest.mark.breadth
def test_requests_are_not_logged_unless_asked_for(tmp_path: Path) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--http-port", str(port), "--log-level", "debug") as server:
        assert HttpCaller(port).get("/v1/tables").status == 200
        assert server.stop() == 0
        assert LOGGER not in server.log
        assert "/v1/tables" not in server.log


@pytest.mark.breadth
def test_a_gateway_alone_logs_requests_without_users(shared_server: ServerProcess) -> None:
    command = [sys.executable, "-m", "scankv", "http", "--port", "0", "--url", shared_server.url, "--access-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        assert HttpCaller(port).get("/v1/tables", x="y").status == 400
        process.terminate()
        _, log = process.communicate(timeout=30)
    pattern = rf'{LOGGER}: ipv4:127\.0\.0\.1:\d+ "GET /v1/tables" 400 complete, \d+ bytes, [\d.]+ ms, request \w+$'
    assert re.search(pattern, log, re.MULTILINE), log


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"/a/b%0Ac", "/a/b%0Ac"),
        (b'/a"b\\', "/a%22b%5C"),
        (b"/a b\n\x00\xff", "/a%20b%0A%00%FF"),
        (b"*", "*"),
        (b"http://user:password@host/a", "-"),
        (b"/a#token", "/a"),
        (b"/" + b"x" * 5000, "/" + "x" * 999),
        (b"/console/secret/scans", "/console/-/scans"),
        (b"/console/secret", "/console/-"),
        (b"/c%6Fnsole%2Fsecret%2Fscans", "/console/-/scans"),
        (b"//console//secret/a%20b", "//console//-/a%20b"),
        (b"/console.css", "/console.css"),
    ],
)
def test_paths_are_visible_ascii(raw: bytes, text: str) -> None:
    assert path_text(raw) == text


def test_a_bounded_number_of_principals_is_remembered() -> None:
    principals = RequestPrincipals()
    for number in range(10_001):
        principals.remember(str(number), f"p{number}")
    assert [principals.take(each) for each in ("0", "1", "10000", "10000")] == ["", "p1", "p10000", ""]
