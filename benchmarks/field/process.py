"""Starts a server of another system on loopback, and stops it by its handle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02


class LoopbackServer:
    """A server process, ready when its output has a certain text. Leaving `with` stops it.

    Args:
        command: The command.
        ready: The text that it prints when it is ready.
        log: The file for its output.
        stop_signal: The signal that makes it stop in order.
        user: The user to run it as. None: the user of the harness.
        environment: Variables to add to the environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready: str,
        log: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stop_signal = stop_signal
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        try:
            self._wait_until(ready, log)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_until(self, ready: str, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while ready not in (text := log.read_text(errors="replace")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.process.args!r} did not start; its output ends with:\n{text[-2000:]}")
            time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(self._stop_signal)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    """Returns a port of loopback that was free just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def find_program(name: str, *folders: Path) -> str | None:
    """Returns the path of a program in $PATH or in one of the folders, or None."""
    return shutil.which(name) or next((str(each / name) for each in folders if (each / name).is_file()), None)


def disk_bytes(directory: Path) -> int:
    """Returns the bytes that the files of a directory take on disk. A file with two names counts once."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            status = os.stat(os.path.join(folder, name), follow_symlinks=False)
            found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())
