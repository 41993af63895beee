"""Clients that are slow, silent, malformed or many cost the gateway little, and others nothing."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from http_gateway.limited_log import LimitedLog
from tests.support.certificates import Authority
from tests.support.gateway import GatewayProcess, HttpCaller, target
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client.sync import Client, Table
    from tests.support.server_process import ServerProcess

REQUEST_SECONDS = 1.5
CLIENT_HELLO = bytes.fromhex("160301020001000200fc0303") + bytes(32)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of `impatient`."""
    return tmp_path_factory.mktemp("impatient") / "log"


@pytest.fixture(scope="module")
def impatient(shared_server: ServerProcess, log: Path) -> Iterator[GatewayProcess]:
    """A gateway that waits for no client for long, and takes 40 connections."""
    with GatewayProcess(
        shared_server.url, log, request_seconds=REQUEST_SECONDS, stall_seconds=1.0, max_connections=40
    ) as gateway:
        assert gateway.get("/healthz").status == 200
        yield gateway


def opened(gateway: GatewayProcess, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=20, source_address=(source, 0))


def ends(connection: socket.socket) -> bool:
    """Returns whether the gateway ends a connection, after whatever it sends."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
    ],
    ids=["silent", "slow-head", "slow-body"],
)
@pytest.mark.breadth
def test_a_request_that_does_not_arrive_in_time_ends_its_connection(impatient: GatewayProcess, start: bytes) -> None:
    with opened(impatient) as connection:
        began = time.monotonic()
        connection.sendall(start)
        connection.settimeout(0.1)
        # A byte now and then does not make it longer.
        while time.monotonic() - began < 20:
            try:
                connection.sendall(b"x" if start else b"")
                if not connection.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - began < 15
        assert impatient.get("/healthz").status == 200


@pytest.mark.breadth
def test_an_idle_connection_is_closed(impatient: GatewayProcess) -> None:
    with opened(impatient) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        assert ends(connection)


@pytest.mark.breadth
def test_a_reader_that_takes_nothing_is_disconnected_and_its_scan_ends(
    impatient: GatewayProcess, client: Client, wide: Table
) -> None:
    connection = socket.socket()
    # Small, so that little of the answer is on the way.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.connect(("127.0.0.1", impatient.port))
        connection.sendall(f"GET {target(f'/v1/tables/{wide.name}/scan')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_until(lambda: wide.name in [scan.table for scan in client.live_scans()], "the scan")
        wait_until(lambda: wide.name not in [scan.table for scan in client.live_scans()], "the end of the scan")


@pytest.mark.breadth
def test_of_too_many_connections_the_oldest_without_a_call_end_first(shared_server: ServerProcess) -> None:
    with GatewayProcess(shared_server.url, max_connections=6, request_seconds=600.0) as gateway, ExitStack() as stack:
        known, *unknown = [stack.enter_context(opened(gateway, f"127.0.0.{2 + number}")) for number in range(6)]
        assert answer_of(known, "/v1/tables")
        newer = [stack.enter_context(opened(gateway)) for _ in range(3)]
        assert all(ends(each) for each in unknown[:3])
        assert answer_of(known, "/v1/tables")
        assert all(answer_of(each, "/healthz") for each in (*unknown[3:], *newer))


@pytest.mark.breadth
def test_idle_connections_of_known_callers_keep_some_places_for_others(shared_server: ServerProcess) -> None:
    with GatewayProcess(shared_server.url, max_connections=30, request_seconds=600.0) as gateway, ExitStack() as stack:
        known = [stack.enter_context(opened(gateway)) for _ in range(30)]
        assert all(answer_of(each, "/v1/tables") for each in known)
        # None of them ends another one of them before its request arrives.
        newer = [stack.enter_context(opened(gateway)) for _ in range(3)]
        assert all(ends(each) for each in known[:3])
        assert all(answer_of(each, "/v1/tables") for each in (*newer, *known[3:]))


@pytest.mark.breadth
def test_connections_with_a_running_request_are_not_ended_for_others(
    shared_server: ServerProcess, scores: Table
) -> None:
    with GatewayProcess(shared_server.url, max_connections=3) as gateway, ExitStack() as stack:
        first, idle, second = [stack.enter_context(opened(gateway)) for _ in range(3)]
        assert answer_of(idle, "/v1/tables")
        for stream in (first, second):
            assert answer_of(stream, f"/v1/tables/{scores.name}/watch/count").startswith(b"HTTP/1.1 200")
        third = stack.enter_context(opened(gateway))
        assert ends(idle)
        assert answer_of(third, f"/v1/tables/{scores.name}/watch/count").startswith(b"HTTP/1.1 200")
        assert ends(stack.enter_context(opened(gateway)))
        for stream in (first, second, third):
            stream.settimeout(0.1)
            with pytest.raises(TimeoutError):
                ends(stream)


@pytest.mark.breadth
def test_a_request_of_a_connection_that_ended_as_one_too_many_is_not_answered(
    shared_server: ServerProcess, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    settings = {"max_unknown_connections": 5, "access_log": True}
    with GatewayProcess(shared_server.url, log, **settings) as gateway, ExitStack() as stack:
        assert gateway.get("/healthz").status == 200
        # So it accepts all connections at once, when their requests have arrived.
        gateway.process.send_signal(signal.SIGSTOP)
        try:
            flood = [stack.enter_context(opened(gateway)) for _ in range(20)]
            for each in flood:
                each.sendall(b"GET /v1/tables HTTP/1.1\r\nHost: localhost\r\n\r\n")
        finally:
            gateway.process.send_signal(signal.SIGCONT)
        assert all(each.recv(65536) for each in flood[15:])
        assert all(ends(each) for each in flood[:15])
        wait_until(lambda: log.read_text().count('"path": "/v1/tables"') >= 5, "the lines of the last five")
        assert gateway.get("/healthz").status == 200
    assert log.read_text().count('"path": "/v1/tables"') == 5


@pytest.mark.breadth
def test_a_request_whose_client_leaves_before_its_answer_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It never answers, so calls are repeated for a minute.
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with GatewayProcess(url, log, access_log=True) as gateway:
            assert gateway.get("/healthz").status == 200
            with opened(gateway) as connection:
                connection.sendall(b"GET /v1/tables HTTP/1.1\r\nHost: localhost\r\n\r\n")
                silent.accept()[0].close()
            wait_until(lambda: '"path": "/v1/tables", "status": null' in log.read_text(), "the line of the request")


@pytest.mark.breadth
def test_an_address_has_few_connections_without_a_call_of_the_server(shared_server: ServerProcess) -> None:
    with GatewayProcess(shared_server.url, max_unknown_connections=5) as gateway, ExitStack() as stack:
        known, *unknown = [stack.enter_context(opened(gateway)) for _ in range(5)]
        assert answer_of(known, "/v1/tables")
        # The place of the known one is free, and the oldest of the others ends for each that is too many.
        newer = [stack.enter_context(opened(gateway)) for _ in range(3)]
        assert [ends(each) for each in unknown[:2]] == [True, True]
        for connection, path in ((unknown[2], "/healthz"), (unknown[3], "/nothing"), *((each, "/") for each in newer)):
            assert answer_of(connection, path)
        # From another address.
        assert HttpCaller(gateway.port, source="127.0.0.2").get("/healthz").status == 200
        assert answer_of(known, "/v1/tables")


@pytest.mark.breadth
def test_a_flood_from_one_address_keeps_no_other_caller_behind_it_away(shared_server: ServerProcess) -> None:
    with GatewayProcess(shared_server.url, max_unknown_connections=5) as gateway, ExitStack() as stack:
        for _ in range(20):
            flood = [stack.enter_context(opened(gateway)) for _ in range(5)]
            assert gateway.get("/v1/tables").status == 200
        assert ends(flood[0])


@pytest.mark.breadth
def test_tls_handshakes_that_stop_count_as_connections_of_their_address(
    shared_server: ServerProcess, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway", "localhost")
    with (
        GatewayProcess(
            shared_server.url,
            max_unknown_connections=5,
            request_seconds=600.0,
            tls_certificate=str(certificate),
            tls_key=str(key),
        ) as gateway,
        ExitStack() as stack,
    ):
        flood = [stack.enter_context(opened(gateway)) for _ in range(20)]
        for connection in flood:
            with suppress(OSError):  # The gateway may have ended it.
                connection.sendall(CLIENT_HELLO[: len(CLIENT_HELLO) // 2])
        assert all(ends(connection) for connection in flood[:15])
        context = ssl.create_default_context(cafile=authority.path)
        assert HttpCaller(gateway.port, tls=context).get("/healthz").status == 200
        assert ends(flood[15])
        # None of the others ends before its time.
        flood[19].settimeout(0.2)
        with pytest.raises(TimeoutError):
            ends(flood[19])


def answer_of(connection: socket.socket, path: str) -> bytes:
    """Sends a request, and returns the beginning of its answer. Empty: the gateway has ended the connection."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection.recv(65536)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/tables\r\n\r\n",
        b"GET /v1/tables HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /\xff%ff%00/..//v1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/v1/tables HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_a_malformed_request_hurts_only_its_connection(gateway: GatewayProcess, request_: bytes) -> None:
    with opened(gateway) as connection:
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        assert ends(connection)
    assert gateway.get("/healthz").status == 200


HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


ASKING = b"HEAD /v1/tables HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", 400, b"a line ends without a carriage return"),
        (HEAD + b"X: a\n\r\n", 400, b"a line ends without a carriage return"),
        (HEAD + b"X: a\n", 400, b"a line ends without a carriage return"),
        (HEAD + b"X: a\r\n b\r\n\r\n", 400, b"a header continues on the next line"),
        (HEAD + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n", 400, b"both Content-Length and Transfer-Encoding"),
        (FORM.replace(b"1.1", b"1.0") + CHUNKED + b"0\r\n\r\n", 400, b"Transfer-Encoding, which only HTTP/1.1 has"),
        (FORM + b"Content-Length: +5\r\n\r\n", 400, b"it is not a valid HTTP/1.1 request"),
        (FORM + b"Content-Length: 9999999999999999999999\r\n\r\n", 400, b"it is not a valid HTTP/1.1 request"),
        (FORM + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, b"it is not a valid HTTP/1.1 request"),
        (FORM + CHUNKED + b"0\r\n\n", 400, b"a line ends without a carriage return"),
        (FORM + CHUNKED + b"0\r\nX: a\r\n b\r\n\r\n", 400, b"a header continues on the next line"),
        (FORM + CHUNKED + b"zz\r\nskv_secret", 400, b"it is not a valid HTTP/1.1 request"),
        (ASKING + CHUNKED + b"zz\r\n", 400, b""),
        (ASKING + b"Content-Length: 32769\r\n\r\n", 413, b""),
        (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED + b"zz\r\n", 400, b""),
        (FORM + b"Expect: 100-continue\r\n" + CHUNKED + b"zz\r\n", 400, b"it is not a valid HTTP/1.1 request"),
        (HEAD + b"skv_secret\r\n\r\n", 400, b"it is not a valid HTTP/1.1 request"),
        (HEAD + b"X: " + b"x" * 32_768 + b"\r\n\r\n", 431, b"the head of the request has more than 32,768 bytes"),
        (FORM + CHUNKED + b"0\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431, b"has more than 32,768 bytes"),
        (HEAD + b"Content-Length: 32769\r\n\r\n", 413, b"the body of the request has more than 32,768 bytes"),
        (FORM + CHUNKED + b"8001\r\n" + b"x" * 32_769 + b"\r\n0\r\n\r\n", 413, b"has more than 32,768 bytes"),
    ],
)
def test_a_request_that_is_ambiguous_or_large_is_refused_in_one_line_of_the_log(
    impatient: GatewayProcess, log: Path, request_: bytes, status: int, reason: bytes
) -> None:
    before = len(log.read_text())
    answer = b""
    with opened(impatient) as connection, suppress(ConnectionResetError):
        connection.sendall(request_)
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.lower().count(b"\r\ncontent-type: ") == 1
    assert reason in answer
    assert impatient.get("/healthz").status == 200
    (line,) = log.read_text()[before:].splitlines()
    assert "a malformed request from ipv4:127.0.0.1:" in line
    assert "skv_secret" not in line


def test_a_malformed_body_breaks_an_answer_that_has_begun(impatient: GatewayProcess, log: Path, wide: Table) -> None:
    before = len(log.read_text())
    with opened(impatient) as connection:
        path = target(f"/v1/tables/{wide.name}/scan").encode()
        connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"zz\r\n")
        assert ends(connection)
    assert impatient.get("/healthz").status == 200
    assert len(log.read_text()[before:].splitlines()) == 1


def test_a_form_whose_sender_leaves_is_no_error(impatient: GatewayProcess, log: Path) -> None:
    before = len(log.read_text())
    with opened(impatient) as connection:
        connection.sendall(FORM + b"Content-Length: 10\r\n\r\nx")
    # The line of a later request, before which that of the form would be.
    with opened(impatient) as connection:
        connection.sendall(HEAD + b"skv_secret\r\n\r\n")
        assert ends(connection)
    wait_until(lambda: "a malformed request from" in log.read_text()[before:], "the line of the later request")
    assert "Traceback" not in log.read_text()[before:]
    assert len(log.read_text()[before:].splitlines()) <= 2


def test_a_log_of_malformed_requests_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("limited"))
    with caplog.at_level("INFO"):
        for number in range(1000):
            log.info("request %d", number)
    assert [record.getMessage() for record in caplog.records] == [f"request {number}" for number in range(100)]


def test_a_later_minute_says_how_many_lines_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("limited"), lambda: now)
    with caplog.at_level("INFO"):
        for _ in range(130):
            log.info("early")
        now = 59.0
        log.info("late")
        assert len(caplog.records) == 100
        caplog.clear()
        for now in (60.0, 200.0):
            log.info("request at %d", now)
    assert [record.getMessage() for record in caplog.records] == [
        "31 more malformed requests were refused",
        "request at 60",
        "request at 200",
    ]


@pytest.mark.breadth
def test_pipelined_requests_get_their_answers_in_order(gateway: GatewayProcess, scores: Table) -> None:
    with opened(gateway) as connection:
        for path in ("/healthz", "/nothing", f"/v1/tables/{scores.name}/count"):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        data = b""
        while b'"count": 100' not in data:
            part = connection.recv(65536)
            assert part
            data += part
    assert [data.find(each) for each in (b'"alive"', b"NO_SUCH_PATH", b'"count"')] == sorted(
        data.find(each) for each in (b'"alive"', b"NO_SUCH_PATH", b'"count"')
    )
