"""Programs for a shell whose processes are forked, since a page of the documentation runs up to a dozen commands."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support import forked_program
from tests.support.forked import ForkedProcess
from tests.support.zygote import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ForkedPrograms"]


class ForkedPrograms:
    """Forks the processes of the programs that it writes, until the end of the `with` block.

    A program gets the signals SIGINT and SIGTERM, and has the exit code of its process. A program that is killed takes
    its process with it.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Not below the directory of the tests, whose path may be too long for a socket.
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="scankv-"))
            self._path = Path(directory, "tests")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(str(self._path))
            listener.listen()
            thread = threading.Thread(target=self._accept, args=[listener])
            thread.start()
            stack.callback(thread.join)
            # Which ends `accept`.
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def write(self, program: Path, module: str) -> None:
        """Writes a program that does what `python -m MODULE` does."""
        command = shlex.join([sys.executable, "-ISE", forked_program.__file__, str(self._path), module])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)

    def _accept(self, listener: socket.socket) -> None:
        threads = []
        while True:
            try:
                program, _ = listener.accept()
            except OSError:
                break
            threads.append(threading.Thread(target=self._run, args=[program]))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _run(self, program: socket.socket) -> None:
        with program:
            message, streams, _, _ = socket.recv_fds(program, MAX_REQUEST_BYTES, 3)
            try:
                request = json.loads(message)
                process = ForkedProcess[bytes](
                    [sys.executable, "-m", request["module"], *request["arguments"]],
                    env=request["environment"],
                    cwd=request["directory"],
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                )
            finally:
                for stream in streams:
                    os.close(stream)
            with process:
                self._pass_on(program, process)

    def _pass_on(self, program: socket.socket, process: ForkedProcess[bytes]) -> None:
        """Passes signals of the program to its process, and the exit code of the process to the program."""
        ended = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(ended, selectors.EVENT_READ)
                selector.register(program, selectors.EVENT_READ)
                while ended not in {key.fd for key, _ in selector.select()}:
                    if not (number := program.recv(16)):
                        process.kill()
                        break
                    process.send_signal(int(number))
            code = process.wait()
        finally:
            os.close(ended)
        try:
            program.send(str(code).encode())
        except BrokenPipeError:
            pass  # The program was killed.
