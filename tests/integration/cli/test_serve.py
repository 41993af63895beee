from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import StartFrom, StopAt
from aio_client.sync import connect
from streaming_server.addresses import address_of
from tests.support.certificates import Authority
from tests.support.command_line import CommandLine
from tests.support.forked import run_forked
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def serve(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a server that fails to start."""
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


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.breadth
def test_a_taken_port_is_exit_code_4_and_one_line_on_stderr(taken_port: str, tmp_path: Path) -> None:
    # Not forked: gRPC decides when it is imported whether it logs.
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    refused = subprocess.run(
        [sys.executable, "-m", "scankv", "serve", "--data", str(tmp_path), "--port", taken_port],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"scankv: error: cannot listen on 127.0.0.1:{taken_port}: it is in use; give another --port or --host\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (4, "", said)


def test_a_taken_port_of_the_gateway_is_one_line_on_stderr(taken_port: str) -> None:
    refused = run_forked(sys.executable, "-m", "scankv", "http", "--port", taken_port)
    assert (refused.returncode, refused.stdout) == (1, b"")
    (said,) = refused.stderr.decode().splitlines()
    assert said.startswith(f"scankv: error: cannot listen on 127.0.0.1:{taken_port}: Address already in use")


def test_an_address_of_another_machine_is_not_called_in_use(tmp_path: Path) -> None:
    refused = serve("--data", str(tmp_path), "--host", "192.0.2.1", "--port", "0", "--insecure")
    assert refused.returncode == 4
    assert b"192.0.2.1:0: Cannot assign requested address; give another --port or --host" in refused.stderr


def test_a_directory_of_something_else_is_exit_code_5_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "trash").mkdir()
    (tmp_path / "trash" / "letter.txt").write_text("precious")
    refused = serve("--data", str(tmp_path), "--port", "0")
    assert refused.returncode == 5
    (said,) = refused.stderr.decode().splitlines()
    assert said.startswith(f"scankv: error: the directory {tmp_path} is not a ScanKV data directory")
    assert [path.name for path in tmp_path.rglob("*")] == ["trash", "letter.txt"]
    assert (tmp_path / "trash" / "letter.txt").read_text() == "precious"


def unusable_access(directory: Path) -> dict[str, tuple[list[str], str]]:
    """Returns options with a file of tokens, keys or certificates that cannot be used, and what the error says."""
    certificate, key = (str(each) for each in Authority(directory).issue("server", "localhost"))
    garbage, missing = directory / "garbage", str(directory / "missing")
    garbage.write_text("garbage")
    tls = ["--tls-certificate", certificate, "--tls-key", key]
    jwt = ["--set=jwt_issuer=https://issuer.example.com", "--set=jwt_audience=x"]
    return {
        "missing tokens": (["--tokens", missing], "the token file"),
        "damaged tokens": (["--tokens", str(garbage)], "the token file"),
        "missing certificate": (["--tls-certificate", missing, "--tls-key", key], missing),
        "damaged key": (["--tls-certificate", certificate, "--tls-key", str(garbage)], str(garbage)),
        "missing authorities": ([*tls, "--tls-client-ca", missing], missing),
        "missing grants": ([*jwt, f"--set=jwt_grants={missing}"], missing),
        "damaged grants": ([*jwt, f"--set=jwt_grants={garbage}"], str(garbage)),
    }


@pytest.mark.parametrize("exists", [False, True], ids=["new directory", "used directory"])
@pytest.mark.breadth
def test_a_server_that_cannot_use_its_tokens_or_certificates_leaves_the_data_directory_alone(
    tmp_path: Path, exists: bool
) -> None:
    data = tmp_path / "data"
    if exists:
        with ServerProcess(data) as server, connect(server.url) as client:
            client.create_table("game.scores", pa.schema([("player", pa.string())]), primary_key=["player"])
            assert server.stop() == 0

    def contents() -> dict[str, tuple[int, bytes]]:
        files = [data, *data.rglob("*")] if data.exists() else []
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in files}

    before = contents()
    assert bool(before) == exists
    for what, (options, said) in unusable_access(tmp_path).items():
        refused = serve("--data", str(data), "--port", "0", *options)
        assert refused.returncode == 1, what
        (line,) = refused.stderr.decode().splitlines()
        assert line.startswith("scankv: error: "), what
        assert said in line, what
        assert contents() == before, what


@pytest.mark.parametrize(
    ("location", "said", "workers"),
    [
        ("/proc/backups", "backups cannot be written to /proc/backups: ", "1"),
        ("/proc/backups", "backups cannot be written to /proc/backups: ", "2"),
        ("{there}/file", "it is not a directory; give another --backup-location", "1"),
        ("{there}/file/backups", "it is not a directory; give another --backup-location", "1"),
        ("s3://user:secret@bucket/backups", "contains credentials", "1"),
        ("{there}", "contain one another", "1"),
    ],
)
@pytest.mark.represented_by("/proc/backups-backups cannot be written to /proc/backups: -1")
def test_a_server_that_cannot_write_backups_says_so_at_the_start(
    tmp_path: Path, location: str, said: str, workers: str
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    backups = "--backup-location", location.format(there=tmp_path)
    with ServerProcess(tmp_path / "data", "--workers", workers, *backups) as server:
        wait_until(lambda: "backups will fail" in server.log, "the log has the reason")
        (line,) = [line for line in server.log.splitlines() if "backups will fail" in line]
        assert said in line
        assert "secret" not in line
        assert server.stop() == 0
    assert file.read_text() == "in the way"


def test_a_server_starts_without_asking_the_object_store_of_its_backups(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.setblocking(False)
        location = f"s3://bucket/backups?endpoint_override=127.0.0.1:{store.getsockname()[1]}&scheme=http"
        settings = ("--backup-location", location, "--set", "archive_every_seconds=0")
        with ServerProcess(tmp_path / "data", *settings) as server:
            assert server.stop() == 0
        with pytest.raises(BlockingIOError):
            store.accept()


@pytest.mark.breadth
def test_everything_that_a_server_writes_is_private(tmp_path: Path) -> None:
    public = ("sh", "-c", 'umask 0 && exec "$@"', "sh")
    with (
        ServerProcess(tmp_path / "data", "--set", "base_maintenance_seconds=0.05", wrapper=public) as server,
        connect(server.url) as client,
    ):
        columns = pa.schema([("player", pa.string()), ("score", pa.int64())])
        table = client.create_table(
            "game.scores", columns, primary_key=["player"], indexes=["score"], columnar_base="eager"
        )
        table.upsert([{"player": f"p{n}", "score": n} for n in range(100)])
        wait_until(lambda: list(server.data_dir.glob("tables/*/*/bases/*/*")), "a base")
        table.snapshot(ttl=600)
        with table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c").stream() as stream:
            next(stream)
            stream.commit()
        with client.transaction() as transaction:
            transaction.upsert(table, [{"player": "staged", "score": 1}])
            found: set[Path] = set()
            made: set[tuple[str, ...]] = set()
            for path in server.data_dir.rglob("*"):
                with suppress(FileNotFoundError):  # a file that the server has removed in the meantime
                    if path.lstat().st_mode & 0o077:
                        found.add(path)
                made.add(path.relative_to(server.data_dir).parts)
        assert found == set()
        assert server.data_dir.stat().st_mode & 0o777 == 0o700
        assert {"tables", "trash", "transactions", "LOCK", "scankv.json"} <= {parts[0] for parts in made}
        assert {"buckets", "bases", "snapshots", "consumers"} <= {parts[3] for parts in made if len(parts) > 3}
        assert any(parts[0] == "transactions" and len(parts) > 2 for parts in made)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_listening_beyond_this_machine_is_logged_as_a_warning(tmp_path: Path, host: str) -> None:
    with ServerProcess(tmp_path / "data", "--host", host, "--insecure") as server:
        warned = [line for line in server.log.splitlines() if " WARNING " in line]
    if host == "127.0.0.1":
        assert warned == []
    else:
        assert "with no TLS and no tokens, because of --insecure" in warned[0]


def test_an_ipv6_host_stands_in_brackets() -> None:
    hosts = ("::1", "[::1]", "::", "127.0.0.1", "localhost")
    assert [address_of(host, 7) for host in hosts] == ["[::1]:7", "[::1]:7", "[::]:7", "127.0.0.1:7", "localhost:7"]


def test_settings_come_from_flags_then_environment_then_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scankv.toml"
    file.write_text('data = "/from/file"\nport = 1\nmax_live_scans = 2\nchunk_bytes = 4096\n')
    monkeypatch.setenv("SCANKV_PORT", "4")
    monkeypatch.setenv("SCANKV_MAX_LIVE_SCANS", "5")
    printed = serve(
        "--config", str(file), "--port", "3", "--set", "drain_seconds=1.5", "--set", "metrics_port=9", "--print-config"
    )
    assert printed.returncode == 0, printed.stderr
    settings = tomllib.loads(printed.stdout.decode())
    assert settings["data"] == "/from/file"
    assert settings["port"] == 3
    assert settings["max_live_scans"] == 5
    assert settings["chunk_bytes"] == 4096
    assert settings["drain_seconds"] == 1.5
    assert settings["metrics_port"] == 9, "it has an option of its own, which was not given"
    assert settings["host"] == "127.0.0.1"


def test_set_takes_settings_that_have_a_flag_of_their_own(tmp_path: Path) -> None:
    given = ("--set", "metrics_port=3", "--set", f"tokens={tmp_path / 'tokens'}", "--set", "port=4", "--port", "5")
    printed = serve("--data", str(tmp_path / "data"), *given, "--print-config")
    assert printed.returncode == 0, printed.stderr
    settings = tomllib.loads(printed.stdout.decode())
    assert settings["metrics_port"] == 3
    assert settings["tokens"] == str(tmp_path / "tokens")
    assert settings["port"] == 5


def test_printed_settings_are_explained_and_are_read_back(tmp_path: Path) -> None:
    printed = serve("--data", str(tmp_path / 'a "b"\n'), "--set", "aggregators=x.y,z.w", "--print-config").stdout
    blocks = printed.decode().strip().split("\n\n")
    for block in blocks:
        *comments, setting = block.splitlines()
        assert comments, block
        assert all(line.startswith("# ") and len(line) <= 100 for line in comments)
        assert re.match(r"[a-z_]+ = ", setting)
    assert len(blocks) == len(tomllib.loads(printed.decode()))
    assert "# A scan that takes longer ends with `ScanTooLong`.\nmax_scan_seconds = 3600.0" in printed.decode()
    file = tmp_path / "printed.toml"
    file.write_bytes(printed)
    assert serve("--config", str(file), "--print-config").stdout == printed


def test_the_log_has_what_its_level_says(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--log-level", "error", "--host", "0.0.0.0", "--insecure") as server:
        assert server.stop() == 0
        assert server.log == ""
    refused = serve("--data", str(tmp_path), "--log-level", "loud")
    assert b"log_level must be debug or info or warning or error, not loud" in refused.stderr


@pytest.mark.breadth
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
