"""A worker process: a fork of the supervisor, with pipes to it as its standard input and output.

A fork has all that the supervisor has imported, so it serves at once, also when a worker that has died is started
again: imports alone would take a second or two. It shares the memory of what was imported, too. This needs a supervisor
that opens neither RocksDB nor gRPC: their threads would be missing in the fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Self

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_STANDARD_STREAMS: Final = (0, 1, 2)
# Between the end of the output of a process and the moment when its parent can learn its exit code.
_EXIT_PAUSE_SECONDS: Final = 0.002


class WorkerProcess:
    """A fork of this process, as its parent sees it. Bound to the event loop.

    Attributes:
        pid: Its process id.
        output: Its standard output, which ends with the process.
        returncode: Its exit code, or minus the number of the signal that ended it. None: `wait` has not returned yet.
    """

    def __init__(self, pid: int, stdin: int, output: asyncio.StreamReader, has_closed: asyncio.Event) -> None:
        self.pid = pid
        self.output = output
        self.returncode: int | None = None
        self._stdin = stdin
        self._has_closed = has_closed
        self._reaped = asyncio.create_task(self._reap())

    @classmethod
    async def start(cls, program: Callable[[], int], descriptors: Collection[int]) -> Self:
        """Forks this process.

        Args:
            program: What the fork runs. It returns the exit code.
            descriptors: The open files that the fork keeps besides the standard streams.
        """
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        output, has_closed = asyncio.StreamReader(), asyncio.Event()
        pipe = os.fdopen(from_stdout, "rb", buffering=0)
        try:
            await asyncio.get_running_loop().connect_read_pipe(partial(_Output, output, has_closed), pipe)
            # Nothing is awaited behind the fork, so a caller that is cancelled leaves none behind.
            return cls(fork(program, descriptors, {0: stdin, 1: stdout}), to_stdin, output, has_closed)
        except BaseException:
            os.close(to_stdin)
            raise
        finally:
            os.close(stdin)
            os.close(stdout)

    def write(self, data: bytes) -> None:
        """Writes some bytes, fewer than a pipe holds, to its standard input."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._stdin, data)

    def close_input(self) -> None:
        """Ends its standard input, by which it notices that it has to end."""
        os.close(self._stdin)

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process if it has not ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Waits for its end. Returns the exit code."""
        return await asyncio.shield(self._reaped)

    async def _reap(self) -> int:
        await self._has_closed.wait()
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222  # returns at once
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                return self.returncode
            await asyncio.sleep(_EXIT_PAUSE_SECONDS)


class _Output(asyncio.StreamReaderProtocol):
    """Reads the output of a process, and notes its end."""

    def __init__(self, reader: asyncio.StreamReader, has_closed: asyncio.Event) -> None:
        super().__init__(reader)
        self._has_closed = has_closed

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._has_closed.set()


def fork(program: Callable[[], int], descriptors: Collection[int] = (), streams: dict[int, int] | None = None) -> int:
    """Forks this process. Returns the process id of the fork, which ends with the program.

    Args:
        program: What the fork runs, as if this process had just started: without its event loop, its handlers of
            SIGTERM and SIGINT, and its open files. It returns the exit code.
        descriptors: The open files that the fork keeps besides the standard streams.
        streams: Open files that become standard streams of the fork, by their number there.
    """
    _flush()
    # A signal that came before the fork has its own handlers would be noticed by this process only.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = os.fork()
    if pid == 0:
        _run(program, {*_STANDARD_STREAMS, *descriptors}, streams or {}, blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _run(program: Callable[[], int], descriptors: set[int], streams: dict[int, int], mask: Iterable[int]) -> NoReturn:
    code = 1
    try:
        # The objects of the parent stay as they are: one that was freed would close a file that is not its own here.
        gc.freeze()
        asyncio._set_running_loop(None)  # as `multiprocessing` and Python 3.12 do in a fork
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, descriptor in streams.items():
            os.dup2(descriptor, number)
        # Those of the parent may have been closed, or have a buffer that a terminal needs.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        _close_all_but(descriptors)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = program()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            _flush()
        os._exit(code)


def _close_all_but(descriptors: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in descriptors:
            # The directory that was listed is closed already.
            with contextlib.suppress(OSError):
                os.close(number)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
