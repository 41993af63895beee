"""Runs `scankv serve` in its own process, as users do."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

_READY = "scankv ready on "


class ServerProcess:
    """A server over a data directory, on a free port, with default settings except those given.

    Args:
        data: The data directory.
        **settings: Settings of `ServerConfig` that differ from their defaults.

    Attributes:
        url: Its address, `127.0.0.1:PORT`.
        pid: Its process id.
    """

    def __init__(self, data: Path, **settings: float) -> None:
        command = [sys.executable, "-m", "scankv", "serve", "--data", str(data), "--port", "0"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self._log_path = data.with_name(data.name + ".log")
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_READY):
            self._process.wait()
            raise RuntimeError(f"the server did not start:\n{self._log_path.read_text()}")
        self.url = line.removeprefix(_READY).strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the server with SIGTERM, so that it drains and closes its buckets."""
        self._process.terminate()
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if code != 0:
            raise RuntimeError(f"the server ended with code {code}:\n{self._log_path.read_text()}")
