"""`scankv doctor` on this host, without a server and beside one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client.sync import connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine
    from tests.support.server_process import ServerProcess


def run(scankv: CommandLine, *arguments: str) -> dict[str, dict[str, str]]:
    """Runs the command, whose exit code depends on this host: it is 1 exactly if a check fails."""
    try:
        finished = scankv("doctor", "--json", *arguments)
    except AssertionError:
        finished = scankv("doctor", "--json", *arguments, code=1)
    found = {each["check"]: each for each in finished.json}
    assert (finished.code == 1) == any(each["verdict"] == "fail" for each in found.values())
    return found


def test_the_host_is_inspected_and_a_new_directory_is_not_created(scankv: CommandLine, tmp_path: Path) -> None:
    found = run(scankv, str(tmp_path / "data"), "--port", "0")
    assert len(found) >= 15
    assert all(set(each) == {"check", "verdict", "found", "reason", "advice"} for each in found.values())
    assert all(bool(each["advice"]) == (each["verdict"] != "ok") for each in found.values())
    assert found["packages"]["verdict"] == found["directory"]["verdict"] == "ok"
    assert "in the median of" in found["sync latency"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_a_running_server_is_recognized_and_goes_on(scankv: CommandLine, server: ServerProcess) -> None:
    port = server.url.rpartition(":")[2]
    found = run(scankv, str(server.data_dir), "--port", port)
    assert found["port"]["verdict"] == "ok"
    assert f"process {server.process.pid}" in found["port"]["found"]
    with connect(server.url) as client:
        assert client.tables() == []


def test_a_taken_port_fails(scankv: CommandLine, server: ServerProcess, tmp_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    finished = scankv("doctor", str(tmp_path), "--port", port, code=1)
    assert f"fail    port          127.0.0.1:{port}: Address already in use\n" in finished.text
    assert f"change: find who uses it: ss -ltnp 'sport = :{port}'" in finished.text
    assert finished.text.splitlines()[-1].startswith("1")


def test_a_directory_of_another_program_fails(scankv: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    assert run(scankv, str(tmp_path), "--port", "0")["directory"]["verdict"] == "fail"
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_without_a_directory_its_checks_are_unknown(scankv: CommandLine) -> None:
    found = run(scankv, "--port", "0")
    unknown = {name for name, each in found.items() if each["verdict"] == "unknown"}
    assert {"directory", "file system", "free space", "sync latency", "write rate"} <= unknown


def test_an_address_that_a_server_refuses_without_protection_fails(scankv: CommandLine, tmp_path: Path) -> None:
    arguments = str(tmp_path), "--host", "0.0.0.0", "--port", "0"
    found = run(scankv, *arguments)["protection"]
    assert (found["verdict"], found["found"].partition(":")[0]) == ("fail", "host = 0.0.0.0")
    assert run(scankv, *arguments, "--set", "insecure=true")["protection"]["verdict"] == "warn"


def test_settings_come_from_where_a_server_gets_them(scankv: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(f'data = "{tmp_path / "data"}"\nport = 0\nmax_connections = 1000000\n')
    found = run(scankv, "--config", str(tmp_path / "server.toml"))
    assert "the settings need 4,000,000" in found["open files"]["found"]
    assert found["directory"]["found"].startswith(f"{tmp_path / 'data'} does not exist")
    found = run(scankv, "--config", str(tmp_path / "server.toml"), "--set", "max_connections=10")
    assert "the settings need 20,480" in found["open files"]["found"]
    assert "max_connections must be" in scankv.fails("doctor", str(tmp_path), "--set", "max_connections=0")
