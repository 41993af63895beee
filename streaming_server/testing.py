"""For test suites: a real server in a process of its own, which a test may kill and restart.

    from scankv.sync import connect
    from scankv.testing import ServerProcess

    def test_scores(tmp_path):
        with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
            ...
            server.kill()
            server.restart()

Needs the extra `server`. For a server in the event loop of the test there is `streaming_server.server.Server`.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final, Self

from scankv.model.errors import Unavailable, UsageError
from scankv.model.public_names import set_public_module

__all__ = ["ServerProcess"]

_READY: Final = "scankv ready on "
_START_SECONDS: Final = 60.0
_LOG_CHARACTERS: Final = 4000
_PAUSE_SECONDS: Final = 0.005


class ServerProcess:
    """A process that runs `scankv serve` over a data directory on loopback. Leaving `with` kills it.

    All methods block. Not thread-safe. The process is in a session of its own, so an interrupt from the keyboard
    reaches the test and not the server.

    Attributes:
        url: `127.0.0.1:PORT`; it stays the same after `restart`.
        data_dir: The data directory, which outlives the process.
        log_path: The file to which the server appends its log, beside the data directory.
        process: The process that was started last.
    """

    def __init__(self, data_dir: Path, *arguments: str, port: int = 0, wrapper: tuple[str, ...] = ()) -> None:
        """Starts the server, as `start` does.

        Args:
            data_dir: The data directory. It is created when it is missing; its parent must exist.
            *arguments: Further arguments of `scankv serve`, such as `"--set", "max_live_scans=2"`.
            port: The port to listen on. 0: a free one.
            wrapper: A command that runs the server, such as `("strace", "-f")`.
        """
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self._arguments = arguments
        self._wrapper = wrapper
        self._port = port
        self.start()

    def start(self) -> None:
        """Starts the process and waits until it reports that it is ready. `__init__` calls this method.

        Raises:
            Unavailable: The server did not become ready. The message has the end of its log.
        """
        command = [sys.executable, "-m", "scankv", "serve", "--data", str(self.data_dir), "--port", str(self._port)]
        with self.log_path.open("ab") as log:
            self.process = self._popen([*self._wrapper, *command, *self._arguments], log)
        try:
            line = self._first_line()
        except BaseException:  # After Ctrl-C, the caller has no object yet by which to end the process.
            self.kill()
            raise
        if not line.startswith(_READY):
            self._reap()
            raise Unavailable(
                f"the server did not start: it printed {line!r}, and its log ends with: {self._end_of_log()}"
            )
        self.url = line.removeprefix(_READY).strip()

    @property
    def log(self) -> str:
        """The log of the server so far, over all its starts."""
        return self.log_path.read_text()

    def kill(self) -> None:
        """Kills the process, its workers and its wrapper, as `kill -9` does, and waits for their end."""
        # After a wait for the process, its id may belong to another one.
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            while _runs(self.process.pid):
                time.sleep(_PAUSE_SECONDS)
        self._reap()

    def stop(self, timeout: float = 60) -> int:
        """Drains the server with SIGTERM, and returns its exit code.

        Args:
            timeout: Seconds after which the server is killed.

        Raises:
            subprocess.TimeoutExpired: The server had not ended by then.
        """
        if self.process.poll() is None:
            # To the process group, because a wrapper such as strace does not forward the signal.
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            self.kill()

    def restart(self) -> None:
        """Starts the server again, with the same directory and port.

        Raises:
            Unavailable: The server did not become ready.
            UsageError: The server is still running.
        """
        if self.process.poll() is None:
            raise UsageError("the server is still running: end it with kill() or stop() before you restart it")
        self._reap()
        self._port = int(self.url.rsplit(":", 1)[1])
        self.start()

    def _popen(self, command: list[str], log: BinaryIO) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        # No timer: an interrupt while one starts could leave it behind, to kill another process of this id much later.
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(_START_SECONDS):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.stdout.readline()

    def _end_of_log(self) -> str:
        return self.log[-_LOG_CHARACTERS:].strip()

    def _reap(self) -> None:
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _runs(group: int) -> bool:
    """Whether a process of a group still runs. Killed processes keep their ports and locks until they have ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        state, of_group, threads = fields[0], int(fields[2]), int(fields[17])
        # A killed process is a zombie as soon as its first thread has ended. The others still keep its files open.
        if of_group == group and (state not in "ZX" or threads > 1):
            return True
    return False


set_public_module("scankv.testing", globals(), __all__)
