"""Runs a server for which time passes as the checker says: `ServerProcess(data, wrapper=passing(file))`.

The file contains by how many seconds all clocks of the server are ahead of those of the machine. So for the server, the
time has passed, while a wall clock that is ahead alone has jumped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import runpy
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streaming_server import clock
from streaming_server.clock import SystemClocks

if TYPE_CHECKING:
    from collections.abc import Collection

_WORKER: Final = "streaming_server.worker_process"
_MOST_FILES: Final = 900
"""The numbers from here on belong to preloaded libraries."""


def passing(ahead: Path) -> tuple[str, ...]:
    """Returns the wrapper for a server whose clocks are ahead by the number in the file."""
    return (sys.executable, "-m", __spec__.name, str(ahead))


def main(ahead: str, _: str, __: str, module: str, *arguments: str) -> None:
    """Runs `python -m MODULE ARGUMENTS` in this process, with workers for which the time passes, too."""
    file, start = Path(ahead), asyncio.create_subprocess_exec

    class AheadClocks(SystemClocks):
        """The machine's clocks, and the seconds in the file."""

        def monotonic(self) -> float:
            return super().monotonic() + int(file.read_text())

        def uptime_nanos(self) -> int:
            return super().uptime_nanos() + int(file.read_text()) * 1_000_000_000

        def wall_nanos(self) -> int:
            return super().wall_nanos() + int(file.read_text()) * 1_000_000_000

    def start_process(*command: str, pass_fds: Collection[int] = (), **options: Any) -> Any:
        if _WORKER in command:
            options["preexec_fn"] = partial(_run_worker, pass_fds)
        return start(*command, pass_fds=pass_fds, **options)

    clock.SystemClocks = AheadClocks  # type: ignore[misc]
    asyncio.create_subprocess_exec = start_process  # type: ignore[assignment]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_worker(files: Collection[int]) -> None:
    """Runs the program of a worker in a fork of the supervisor, which saves seconds of imports. Does not return."""
    opened = [number for number in range(3, _MOST_FILES) if number not in files]
    for number in opened:
        with contextlib.suppress(OSError):
            os.close(number)
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    logging.getLogger().handlers.clear()
    asyncio._set_running_loop(None)
    sys.argv = [_WORKER]
    code = 1
    try:
        runpy.run_module(_WORKER, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
