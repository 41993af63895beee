"""Starts processes without a second of imports each, by forking one that has imported everything."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, AnyStr, Final

from tests.support import zygote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ONE_THREAD", "ForkedProcess", "end_zygotes", "run_forked"]

_PR_SET_CHILD_SUBREAPER: Final = 36
# Without these, OpenBLAS and the allocator of Arrow would start threads when they are imported.
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables of a process that is to have one thread when it forks."""


class ForkedProcess(subprocess.Popen[AnyStr]):
    """`subprocess.Popen` for `[sys.executable, "-m", MODULE, ...]`, which runs in a fork of a zygote.

    There is one zygote for each library that `LD_PRELOAD` of `env` names, and one for processes without such a library.

    It is a child of this process with its own streams, environment, session and exit code, as if it was started. Only
    its imports were made before, and `/proc/PID/cmdline` names the zygote.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = ".",
        start_new_session: bool = False,
        **streams: Any,
    ) -> None:
        """Starts the process. `streams` are `stdin`, `stdout` and `stderr`, and how this process opens them."""
        assert tuple(command[:2]) == (sys.executable, "-m"), command
        self._request: zygote.Request = {
            "module": command[2],
            "arguments": list(command[3:]),
            "environment": dict(os.environ if env is None else env),
            "directory": os.path.abspath(cwd),
            "new_session": start_new_session,
        }
        super().__init__(command, **streams)

    def _execute_child(self, *arguments: Any) -> None:
        """Overrides how Popen starts a process with the pipes that it has created."""
        pipes = arguments[10:16]
        streams = [given if given >= 0 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        try:
            self.pid = _zygotes.get(self._request["environment"].get("LD_PRELOAD", "")).fork(self._request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # Popen's own


def run_forked(*command: str, stdin: bytes = b"", timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
    """Works as `subprocess.run` with captured output, in a fork of the zygote.

    Raises:
        subprocess.TimeoutExpired: The process took longer than `timeout` seconds and was killed.
    """
    pipe = subprocess.PIPE
    with ForkedProcess[bytes](command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


class _Zygote:
    """A zygote of this process, started on first use. Thread-safe."""

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: zygote.Request, streams: Sequence[int]) -> int:
        """Forks a child of this process that carries out `request`, and returns its process id."""
        message = json.dumps(request).encode()
        assert len(message) <= zygote.MAX_REQUEST_BYTES
        with self._mutex:
            if self._process is None:
                self._start()
            try:
                socket.send_fds(self._socket, [message], streams)
                return int(self._socket.recv(16))
            except BaseException:
                # The zygote is unusable now, since its next answer might belong to this request.
                self._end()
                raise

    def _start(self) -> None:
        # The processes that the zygote forks become orphans at once, and so children of this process.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "this process cannot become the parent of orphans")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", zygote.__name__, str(theirs.fileno())]
            environment = os.environ | ONE_THREAD
            if self._preload:
                environment["LD_PRELOAD"] = self._preload
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])

    def end(self) -> None:
        """Ends the zygote if it is running. Its children continue."""
        with self._mutex:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._socket.close()
            self._process.wait()
            self._process = None


class _Zygotes:
    """The zygotes of this process, by the library that is preloaded into each. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._zygotes: dict[str, _Zygote] = {}

    def get(self, preload: str) -> _Zygote:
        """Returns the zygote with the library at the path `preload`, or with none if that is empty."""
        with self._mutex:
            return self._zygotes.setdefault(preload, _Zygote(preload))

    def end(self) -> None:
        """Ends all zygotes that are running. Their children continue."""
        with self._mutex:
            for zygote_ in self._zygotes.values():
                zygote_.end()


_zygotes: Final = _Zygotes()
end_zygotes: Final = _zygotes.end
