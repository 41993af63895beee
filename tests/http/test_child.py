"""The gateway that `scankv serve --http-port` starts: its life, its security, and what it may not do to the server."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aio_client import Tls, sync
from scankv.model.errors import UsageError
from streaming_server.config import ServerConfig
from tests.support.gateway import HttpCaller
from tests.support.server_process import ServerProcess
from tests.support.tls_server import TlsServer
from tests.support.waiting import wait_until

SCORES = pa.schema([pa.field("player", pa.string(), nullable=False), pa.field("score", pa.int64())])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def children_of(pid: int) -> list[int]:
    """Returns the gateways that a server runs."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if b"http_gateway" in Path(f"/proc/{child}/cmdline").read_bytes()]


def the_child(pid: int, *others: int) -> int:
    def find() -> list[int]:
        with suppress(FileNotFoundError):
            return [child for child in children_of(pid) if child not in others]
        return []

    return wait_until(find, "a gateway")[0]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.breadth
def test_the_log_names_the_address_of_the_console(tmp_path: Path) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "plain", "--http-port", str(port)) as server:
        assert HttpCaller(port).get("/healthz").status == 200
        assert f"serving HTTP and the console on http://127.0.0.1:{port}" in server.log
    with TlsServer(tmp_path, "--http-port", str(port), "--http-host", "0.0.0.0") as secured:
        the_child(secured.process.process.pid)
        assert f"serving HTTP and the console on https://0.0.0.0:{port}" in secured.process.log


@pytest.mark.breadth
def test_a_killed_gateway_is_started_again_and_ends_with_a_killed_server(tmp_path: Path) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--http-port", str(port)) as server:
        caller = HttpCaller(port)
        assert caller.get("/v1/tables").status == 200
        first = the_child(server.process.pid)
        os.kill(first, signal.SIGKILL)
        with sync.connect(server.url) as client:
            client.create_table("game.scores", SCORES, primary_key=["player"])
        # The server listens, so the request waits for the next gateway.
        assert [table["name"] for table in caller.get("/v1/tables").json["tables"]] == ["game.scores"]
        second = the_child(server.process.pid, first)
        assert "the HTTP gateway has ended with code -9, and is started again in 0.5 s" in server.log
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(second), "the end of the gateway")


def test_a_gateway_gets_no_secret_of_its_environment_and_ends_in_order_with_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "SCANKV_TOKEN",
        "SCANKV_BACKUP_LOCATION",
        "https_proxy",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ):
        monkeypatch.setenv(name, "s3://the-secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    with ServerProcess(tmp_path / "data", "--http-port", str(port), "--log-format", "json") as server:
        assert HttpCaller(port).get("/v1/tables").status == 200
        child = the_child(server.process.pid)
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert b"the-secret" not in environment
        assert b"LC_ALL=C.UTF-8" in environment
        assert server.stop() == 0
        assert is_gone(child)
        assert "Traceback" not in server.log


def test_a_gateway_trusts_exactly_the_server_with_its_own_certificate(tmp_path: Path) -> None:
    port = free_port()
    with TlsServer(tmp_path, "--http-port", str(port), "--http-host", "0.0.0.0") as server:
        with sync.connect(server.url, token=server.root, tls=Tls(ca=server.authority.path)) as client:
            client.create_table("game.scores", SCORES, primary_key=["player"]).upsert([{"player": "ann", "score": 1}])
        trusting = ssl.create_default_context(cafile=str(server.authority.path))
        assert HttpCaller(port, server.root, trusting).get("/v1/tables/game.scores/count").json["count"] == 1
        assert HttpCaller(port, None, trusting).get("/v1/tables/game.scores/count").status == 401
        with pytest.raises(OSError, match=r"reset|closed|EOF|disconnected|http"):
            HttpCaller(port, server.root).get("/v1/tables")
        child = the_child(server.process.process.pid)
        for file in ("cmdline", "environ"):
            assert server.root.encode() not in Path(f"/proc/{child}/{file}").read_bytes()


@pytest.mark.breadth
def test_a_port_in_use_is_noticed_at_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "scankv", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
        ended = subprocess.run([*command, "--http-port", str(port)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4
    assert f"cannot listen on 127.0.0.1:{port} for HTTP" in ended.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"http_host": "0.0.0.0"}, "http_host = 0.0.0.0: .* no TLS and no tokens"),
        ({"http_host": "0.0.0.0", "tokens": "t"}, "http_host = 0.0.0.0: .* no TLS"),
        ({"tls_certificate": "c", "tls_key": "k", "tls_client_ca": "a"}, "http_port and tls_client_ca exclude"),
        ({"host": "10.0.0.5", "insecure": True}, "http_port needs TLS"),
    ],
)
def test_http_is_as_secure_as_grpc(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ServerConfig(data=Path("data"), http_port=7080, **settings)


@pytest.mark.breadth
def test_a_gateway_runs_alone(scores: sync.Table, shared_server: ServerProcess) -> None:
    command = [sys.executable, "-m", "scankv", "http", "--port", "0", "--url", shared_server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("scankv http ready on http://127.0.0.1:")
        caller = HttpCaller(int(line.rpartition(":")[2]))
        assert caller.get(f"/v1/tables/{scores.name}/count").json["count"] == 100
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.breadth
def test_alone_it_needs_tls_beyond_loopback() -> None:
    command = [sys.executable, "-m", "scankv", "http", "--port", "0", "--host", "0.0.0.0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "the gateway has no TLS" in ended.stderr
