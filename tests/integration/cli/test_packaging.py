"""What the container image and the service of systemd run works on this host, as far as no engine is needed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.forked import ForkedProcess
from tests.support.packaging_files import ROOT, arguments_of, read_stages, read_unit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUILD, FINAL = read_stages()


def environment_of(directory: Path) -> dict[str, str]:
    """Returns the environment of the image, with its data in a directory of the test."""
    (environment,) = arguments_of(FINAL, "ENV")
    variables = dict(pair.split("=", 1) for pair in environment.split())
    return os.environ | variables | {"PATH": os.environ["PATH"], "SCANKV_DATA": str(directory)}


@contextmanager
def start(*words: str, environment: dict[str, str]) -> Iterator[ForkedProcess[str]]:
    """Starts a command of `scankv`, and kills it at the end if it still runs."""
    command, pipe = [sys.executable, "-m", "scankv", *words], subprocess.PIPE
    with ForkedProcess[str](command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with start(*words, environment=environment) as process:
        stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def test_the_server_of_the_image_refuses_to_serve_everybody(tmp_path: Path) -> None:
    (arguments,) = arguments_of(FINAL, "CMD")
    refused = run(*json.loads(arguments), environment=environment_of(tmp_path / "data"))
    assert refused.returncode == 1
    assert "0.0.0.0: other machines can reach this address" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_the_server_of_the_image_is_healthy_and_ends_with_its_stop_signal(tmp_path: Path) -> None:
    environment = environment_of(tmp_path / "data") | {"SCANKV_HOST": "127.0.0.1", "SCANKV_PORT": "0"}
    (arguments,) = arguments_of(FINAL, "CMD")
    with start(*json.loads(arguments), environment=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        (probe,) = arguments_of(FINAL, "HEALTHCHECK")
        _, *words = json.loads(probe.partition("CMD ")[2])
        assert run(*words, environment=environment | {"SCANKV_URL": address}).returncode == 0
        (name,) = arguments_of(FINAL, "STOPSIGNAL")
        process.send_signal(signal.Signals[name])
        process.communicate(timeout=60)
        assert process.returncode == 0
    words[-1] = "0.1"
    assert run(*words, environment=environment | {"SCANKV_URL": address}).returncode == 1


def test_the_service_starts_with_the_options_of_its_environment_file(tmp_path: Path) -> None:
    (command,) = read_unit()["ExecStart"]
    options = ["--config", str(tmp_path / "server.toml"), "--print-config"]
    (tmp_path / "server.toml").write_text("drain_seconds = 7\n")
    words = command.replace("/var/lib/scankv", str(tmp_path / "data")).split()[1:-1]
    shown = run(*words, *options, environment=dict(os.environ) | {"SCANKV_MAX_LIVE_SCANS": "100"})
    assert "\ndrain_seconds = 7" in shown.stdout
    assert "\nmax_live_scans = 100\n" in shown.stdout


@pytest.mark.soak
@pytest.mark.timeout(600)  # installs the server from a package index
def test_the_commands_of_the_image_install_a_server(tmp_path: Path) -> None:
    for arguments in arguments_of(BUILD, "COPY"):
        *sources, target = arguments.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, tmp_path / target)
    prefix = tmp_path / "opt"
    venv.create(prefix, with_pip=True, symlinks=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for command in arguments_of(BUILD, "RUN"):
        if command.startswith("pip "):
            subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=environment, check=True)
    assert not (prefix / "bin" / "pip").exists()
    # Outside of the sources.
    (tmp_path / "elsewhere").mkdir()
    for words in (["--version"], ["serve", "--data", "x", "--print-config"]):
        subprocess.run([prefix / "bin" / "scankv", *words], cwd=tmp_path / "elsewhere", env=environment, check=True)
