"""A real server in a process of its own, as a test starts, kills and restarts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

READY = "scankv ready on "


class ServerProcess:
    """`scankv serve` on a free port over a data directory; its log is `log`.

    Attributes:
        url: `127.0.0.1:PORT`.
        data_dir: The data directory; it outlives the process.
        process: The running process.
    """

    def __init__(self, data_dir: Path, *arguments: str, port: int = 0, wrapper: tuple[str, ...] = ()) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self._arguments = arguments
        self._wrapper = wrapper
        self._port = port
        self.start()

    def start(self) -> None:
        """Starts the process and waits until it says that it is ready."""
        command = [sys.executable, "-m", "scankv", "serve", "--data", str(self.data_dir), "--port", str(self._port)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._wrapper, *command, *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(READY):
            self._reap()
            raise RuntimeError(f"the server did not start: {line!r}\n{self.log_path.read_text()}")
        self.url = line.removeprefix(READY).strip()

    @property
    def log(self) -> str:
        """What the server wrote to stderr so far."""
        return self.log_path.read_text()

    def kill(self) -> None:
        """Ends the process (and a wrapper around it) at once, as `kill -9` does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def stop(self, timeout: float = 60) -> int:
        """Drains the server with SIGTERM; its exit code."""
        if self.process.poll() is None:
            # To the group: a wrapper such as strace keeps the signal to itself.
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            self._reap()

    def restart(self) -> None:
        """Starts it anew on the same directory and the same port."""
        self._port = int(self.url.rsplit(":", 1)[1])
        self.start()

    def _reap(self) -> None:
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        else:
            self._reap()
