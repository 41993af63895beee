from __future__ import annotations

import signal
import sys
import tomllib
from typing import TYPE_CHECKING

from tests.support.command_line import CommandLine
from tests.support.forked import run_forked

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    import pytest

    from tests.support.server_process import ServerProcess


def serve(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a server that does not come up."""
    return run_forked(sys.executable, "-m", "scankv", "serve", *arguments)


def test_a_drained_server_ends_with_0_and_has_printed_one_line(server: ServerProcess) -> None:
    assert server.url.startswith("127.0.0.1:")
    server.process.send_signal(signal.SIGTERM)
    stdout, _ = server.process.communicate(timeout=60)
    assert stdout == ""
    assert server.process.returncode == 0


def test_ctrl_c_drains_as_well(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0


def test_a_locked_directory_is_exit_code_3_and_names_the_process(server: ServerProcess) -> None:
    second = serve("--data", str(server.data_dir), "--port", "0")
    assert second.returncode == 3
    assert second.stdout == b""
    assert str(server.process.pid) in second.stderr.decode()
    assert b"Traceback" not in second.stderr


def test_a_taken_port_is_exit_code_4(server: ServerProcess, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    second = serve("--data", str(tmp_path), "--port", port)
    assert second.returncode == 4
    assert second.stdout == b""
    assert f"127.0.0.1:{port}" in second.stderr.decode()
    assert b"Traceback" not in second.stderr


def test_settings_come_from_flags_then_environment_then_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scankv.toml"
    file.write_text('data = "/from/file"\nport = 1\nmax_live_scans = 2\nchunk_bytes = 4096\n')
    monkeypatch.setenv("SCANKV_PORT", "4")
    monkeypatch.setenv("SCANKV_MAX_LIVE_SCANS", "5")
    printed = serve("--config", str(file), "--port", "3", "--set", "drain_seconds=1.5", "--print-config")
    assert printed.returncode == 0, printed.stderr
    settings = tomllib.loads(printed.stdout.decode())
    assert settings["data"] == "/from/file"
    assert settings["port"] == 3
    assert settings["max_live_scans"] == 5
    assert settings["chunk_bytes"] == 4096
    assert settings["drain_seconds"] == 1.5
    assert settings["host"] == "127.0.0.1"


def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        ([], "--data DIR"),
        (["--data", str(tmp_path), "--set", "drain_second=1"], 'did you mean "drain_seconds" or "max_scan_seconds"'),
        (["--data", str(tmp_path), "--port", "70000"], "port"),
        (["--data", str(tmp_path), "--host", "0.0.0.0"], "--insecure"),
        (["--config", str(tmp_path / "missing.toml")], "missing.toml"),
    ):
        refused = serve(*arguments)
        assert refused.returncode == 1, arguments
        (said,) = refused.stderr.decode().splitlines()
        assert said.startswith("scankv: error: ")
        assert message in said


def test_wait_returns_when_the_server_is_ready(server: ServerProcess) -> None:
    scankv = CommandLine(server.url)
    assert scankv("wait", "--timeout", "20").stdout == b""
    server.kill()
    assert server.url in scankv.fails("wait", "--timeout", "0.3")
