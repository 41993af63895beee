"""Commands recognize a server that is down, a port of HTTP, and a server with or without TLS, and say what to do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer

from scankv.cli import connecting
from scankv.cli.app import app
from tests.support.certificates import Authority
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess
from tests.support.waiting import in_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMANDS_THAT_WAIT = {"wait", "http"}


def commands_of_a_server(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if any(each.name == "url" for each in command.params) and not getattr(command, "commands", {}):
        yield words, command
    for name, subcommand in dict(getattr(command, "commands", {})).items():
        yield from commands_of_a_server(subcommand, (*words, name))


COMMANDS = {
    words: command
    for words, command in commands_of_a_server(typer.main.get_command(app))
    if words[0] not in COMMANDS_THAT_WAIT
}
OPTIONS = {
    ("create",): ["--schema", "k string", "--key", "k"],
    ("delete",): ["k"],
    ("drop",): ["--yes"],
    ("alter",): ["--set", "changelog=none"],
    ("top",): ["--order-by", "score"],
    ("consumers", "reset"): ["--to", "earliest"],
}
VALUES = {"TABLE": "game.scores", "COLUMN=VALUE...": "player=ann", "KEY...": "ann", "A,B": "score"}


@pytest.fixture
def down() -> Iterator[CommandLine]:
    """The command line, with the address of a port at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield CommandLine(f"localhost:{bound.getsockname()[1]}")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_says_within_two_seconds_how_to_start_a_server_that_is_down(
    down: CommandLine, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "rows.csv").write_text("player,score\nann,1\n")
    values = {**VALUES, "FILE": str(tmp_path / "rows.csv"), "PATH": str(tmp_path / "out.parquet")}
    required = [each for each in COMMANDS[words].params if each.param_type_name == "argument" and each.required]
    given = [values.get(each.metavar, "game.scores") for each in required] + OPTIONS.get(words, [])
    if words == ("create",):
        given = ["game.scores", *given]
    port = down.url.rpartition(":")[2]

    def attempt() -> float:
        started = time.monotonic()
        message = down.fails(*words, *given)
        assert message == (
            f"no ScanKV server answers at {down.url}: the connection was refused; start a server there with "
            f"`scankv serve --data DIR --port {port}`, or connect to another address"
        )
        return time.monotonic() - started

    in_time(attempt, 2.0, tries=5)


@pytest.mark.parametrize(
    "words", [("load", "game.scores", "-", "--create", "--key", "k"), ("replace", "game.scores", "-")]
)
def test_a_command_finds_that_the_server_is_down_before_it_reads_standard_input(
    down: CommandLine, words: tuple[str, ...]
) -> None:
    def attempt() -> float:
        started = time.monotonic()
        # Standard input is a pipe that stays empty and does not end.
        with down.start(*words, stdin=subprocess.PIPE) as process:
            assert process.stderr
            try:
                assert process.wait(60) == 1
                assert b"no ScanKV server answers at" in process.stderr.read()
            finally:
                process.kill()
        return time.monotonic() - started

    in_time(attempt, 2.0, tries=5)


def test_all_commands_of_a_server_are_tried() -> None:
    assert len(COMMANDS) > 30


def test_the_addresses_of_a_host_that_does_not_answer_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.2")]
    found = [(family, socket.SOCK_STREAM, 6, "", (address, 1)) for family, address in addresses]
    now, limits = [0.0], []

    def time_out(self: socket.socket, address: object) -> None:
        limit = self.gettimeout()
        assert limit is not None
        limits.append(round(limit, 6))
        now[0] += limit
        raise TimeoutError

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket.socket, "connect", time_out)
    monkeypatch.setattr(connecting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert "it does not answer within 1.5 s; start a server there" in CommandLine("localhost:1").fails("tables")
    assert limits == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("host", ["foo..bar", "a" * 70 + ".com"])
def test_a_text_that_names_no_host_is_refused(host: str) -> None:
    message = CommandLine(f"{host}:7070").fails("tables")
    assert message.startswith(f"no ScanKV server answers at {host}:7070: the name of the host has no address")


def test_a_host_without_an_address_is_named() -> None:
    message = CommandLine("no-such-host.invalid:7070").fails("tables")
    assert message.startswith(
        "no ScanKV server answers at no-such-host.invalid:7070: the name of the host has no address"
    )


def test_wait_waits_and_then_says_how_to_start_a_server(down: CommandLine) -> None:
    started = time.monotonic()
    message = down.fails("wait", "--timeout", "0.5")
    assert time.monotonic() - started >= 0.5
    assert re.fullmatch(
        r"the ScanKV server at localhost:\d+ was not ready within 0\.5 s: it does not answer: the connection was "
        r"refused; start a server there with `scankv serve --data DIR --port \d+`, or connect to another address",
        message,
    )


def test_a_port_of_http_is_recognized_and_named(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ServerProcess(tmp_path / "data", "--metrics-port", port):
        message = CommandLine(f"localhost:{port}").fails("tables")
    assert message == (
        f"no ScanKV server answers at localhost:{port}: it answers HTTP/1.1, as the HTTP gateway and the metrics port "
        "of a server do; connect to the port of the server itself, which is 7070 unless `scankv serve --port` names "
        "another"
    )


def test_a_client_with_tls_is_told_at_once_that_the_metrics_port_has_none(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ServerProcess(tmp_path / "data", "--metrics-port", port):

        def attempt() -> float:
            started = time.monotonic()
            message = CommandLine(f"scankvs://localhost:{port}").fails("tables")
            assert message == (
                f"no encrypted connection to the ScanKV server at localhost:{port}: it does not use TLS "
                f"(WRONG_VERSION_NUMBER); connect to scankv://localhost:{port}, without TLS settings"
            )
            return time.monotonic() - started

        in_time(attempt, 2.0, tries=3)


def test_a_server_with_tls_is_recognized_by_a_client_without(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("server", "localhost")
    flags = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with ServerProcess(tmp_path / "data", *flags) as server:
        address = f"localhost:{server.url.rpartition(':')[2]}"
        message = CommandLine(address).fails("tables")
    assert message == (
        f"no ScanKV server answers at {address}: it closes the connection; it may require TLS, or a client "
        f"certificate: connect to scankvs://{address} or give TLS settings"
    )


@pytest.mark.breadth
def test_a_server_without_tls_is_recognized_in_one_line_on_stderr(shared_server: ServerProcess) -> None:
    address = f"localhost:{shared_server.url.rpartition(':')[2]}"
    # Not in this process and not forked from one: gRPC decides when it is imported whether it logs.
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    finished = subprocess.run(
        [sys.executable, "-m", "scankv", "tables", "--url", f"scankvs://{address}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stderr == (
        f"scankv: error: no encrypted connection to the ScanKV server at {address}: it does not use TLS "
        f"(WRONG_VERSION_NUMBER); connect to scankv://{address}, without TLS settings\n"
    )
