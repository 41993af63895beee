"""Whom the server names as the client of a request over HTTP: the browser, and only if its own gateway says so."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import sync
from scankv.model.forwarded_peers import FORWARDED_PEER, forwarded_peer, peer_text
from streaming_server.access.forwarded_peers import ForwardedPeers
from tests.http.conftest import SCORES, fill_wide
from tests.http.test_child import the_child
from tests.support.gateway import GatewayProcess, HttpCaller
from tests.support.monitoring import free_port
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import http.client
    from collections.abc import Iterator

# An address of this machine that only the browser of these tests uses.
BROWSER = "127.0.0.9"
FORGED = "ipv4:10.9.8.7:65"
DENIED = "scankv.v1.LookupService/Count"


class PeerServer:
    """A server with tokens, an audit log and a gateway of its own, which takes every call for slow."""

    def __init__(self, directory: Path) -> None:
        self.issuer = TokenIssuer(directory / "tokens")
        self.audit = directory / "audit.log"
        self.port = free_port()
        settings = ("--http-port", str(self.port), "--tokens", str(self.issuer.path), "--audit-log", str(self.audit))
        debug = ("--log-level", "debug", "--set", "slow_request_seconds=0.000001")
        self.process = ServerProcess(directory / "data", *settings, *debug)
        self.stranger = self.issuer.create("read:none.*", principal="stranger")

    def audited_peer(self, principal: str) -> str:
        """Returns the peer in the newest line of a principal; empty if it has no line."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return next((str(line["peer"]) for line in reversed(lines) if line.get("principal") == principal), "")

    @contextmanager
    def browse(self, path: str, token: str) -> Iterator[tuple[str, http.client.HTTPResponse]]:
        """Sends a request from the address of the browser. Yields the browser as a peer, and the open answer."""
        connection = HttpCaller(self.port, source=BROWSER).connection()
        connection.request("GET", path, headers=HttpCaller(0, token).headers())
        host, port = connection.sock.getsockname()
        with connection.getresponse() as response:
            yield peer_text(host, port), response
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerServer]:
    server = PeerServer(tmp_path_factory.mktemp("peers"))
    with server.process, sync.connect(server.process.url, token=server.issuer.root) as client:
        client.create_table("game.scores", SCORES, primary_key=["player"])
        fill_wide(client, "game.wide")
        yield server


def test_the_audit_log_names_the_browser(server: PeerServer) -> None:
    with server.browse("/v1/tables/game.scores/count", server.stranger) as (peer, response):
        assert response.status == 403
    wait_until(lambda: server.audited_peer("stranger") == peer, "a line with the address of the browser")
    with server.browse("/v1/tables", "scankv_0123456789abcdef_wrong") as (peer, response):
        assert response.status == 401
    wait_until(lambda: f"TableService/ListTables from {peer}: " in server.process.log, "the refused token in the log")


@pytest.mark.breadth
def test_live_scans_and_slow_calls_name_the_browser(server: PeerServer) -> None:
    with sync.connect(server.process.url, token=server.issuer.root) as client:
        with server.browse("/v1/tables/game.wide/scan", server.issuer.root) as (peer, response):
            response.read(1000)
            (scan,) = client.live_scans()
            assert scan.peer == peer
            client.cancel_scan(scan.scan_id)
        assert f"ending scan {scan.scan_id} of game.wide by {peer}: " in server.process.log

        def slow_peers() -> list[str | None]:
            return [call.peer for call in client.slow_calls() if call.method == "ScanService/ScanKv"]

        assert wait_until(slow_peers, "the slow scan") == [peer]
        assert all(call.peer and call.peer.startswith("ipv") for call in client.slow_calls())


@pytest.mark.parametrize(
    "metadata",
    [
        [(FORWARDED_PEER, FORGED)],
        [(FORWARDED_PEER, f" {FORGED}")],
        [forwarded_peer("0" * 64, FORGED)],
        [forwarded_peer("", FORGED), forwarded_peer("0" * 64, FORGED)],
        [("x-forwarded-for", "10.9.8.7"), ("forwarded", "for=10.9.8.7")],
    ],
)
def test_a_forged_peer_of_another_client_changes_nothing(server: PeerServer, metadata: list[tuple[str, str]]) -> None:
    principal = f"forger{len(server.issuer.path.read_text())}"
    with SecuredServer(server.process.url, server.issuer) as direct:
        forger = TokenCaller(direct.channel, server.issuer.create("read:none.*", principal=principal))
        forger.metadata += tuple(metadata)
        wait_until(lambda: forger.code(DENIED, table="game.scores") == "PERMISSION_DENIED", "the new token")
    peer = wait_until(lambda: server.audited_peer(principal), "the line of the forger")
    assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+", peer)
    assert "10.9.8.7" not in server.process.log


def test_a_browser_cannot_name_another_address(server: PeerServer) -> None:
    caller = HttpCaller(server.port, server.stranger)
    headers = {FORWARDED_PEER: f"{'0' * 64} {FORGED}", "X-Forwarded-For": "10.9.8.7", "Forwarded": "for=10.9.8.7"}
    assert caller.get("/v1/tables/game.scores/count", headers=headers).status == 403
    wait_until(lambda: server.audited_peer("stranger").startswith("ipv4:127.0.0.1:"), "a line with the real address")


@pytest.mark.breadth
def test_a_gateway_that_the_server_has_not_started_is_itself_the_client(server: PeerServer) -> None:
    with GatewayProcess(server.process.url) as alone:
        caller = HttpCaller(alone.port, server.issuer.create("read:none.*", principal="alone"), source=BROWSER)
        assert caller.get("/v1/tables/game.scores/count").status == 403
    assert wait_until(lambda: server.audited_peer("alone"), "its line").startswith("ipv4:127.0.0.1:")


@pytest.mark.breadth
def test_the_next_gateway_is_believed_and_no_key_is_in_a_log(server: PeerServer) -> None:
    pid = server.process.process.pid
    first = the_child(pid)
    os.kill(first, signal.SIGKILL)
    with server.browse("/v1/tables/game.scores/count", server.stranger) as (peer, response):
        assert response.status == 403
    wait_until(lambda: server.audited_peer("stranger") == peer, "a line with the address of the browser")
    child = the_child(pid, first)
    shown = [Path(f"/proc/{child}/{file}").read_bytes().decode() for file in ("cmdline", "environ")]
    for text in (*shown, server.process.log, server.audit.read_text()):
        assert not re.search("[0-9a-f]{64}", text)


def test_a_key_is_believed_while_its_gateway_runs() -> None:
    peers, real = ForwardedPeers(), "ipv4:127.0.0.1:1"
    with peers.believe() as key:
        named: Any = forwarded_peer(key, "ipv4:10.0.0.7:2")
        assert peers.client_of(real, [("user-agent", "x"), named]) == "ipv4:10.0.0.7:2"
        for metadata in ([], [named, named], [forwarded_peer(key, "")], [forwarded_peer(key[:-1], FORGED)]):
            assert peers.client_of(real, metadata) == real
        with peers.believe() as other:
            assert other != key
            assert peers.client_of(real, [named]) == "ipv4:10.0.0.7:2"
        assert peers.client_of(real, [forwarded_peer(other, FORGED)]) == real
    assert peers.client_of(real, [named]) == real


def test_peers_are_written_as_by_grpc() -> None:
    assert peer_text("10.0.0.7", 44882) == "ipv4:10.0.0.7:44882"
    assert peer_text("::1", 44882) == "ipv6:%5B::1%5D:44882"
