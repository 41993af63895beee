"""Runs a server whose wall clock a test sets: `ServerProcess(data, wrapper=jumping(file))`.

The file contains by how many seconds the server's wall clock is off, and may change at any time. No file means 0.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from streaming_server import clock
from streaming_server.clock import SystemClocks


def jumping(offset: Path) -> tuple[str, ...]:
    """Returns the wrapper for a server whose wall clock is off by the number in the file."""
    return (sys.executable, "-m", __name__, str(offset))


def main(offset: str, _: str, __: str, module: str, *arguments: str) -> None:
    """Runs `python -m MODULE ARGUMENTS` in this process."""
    file = Path(offset)

    class SetClocks(SystemClocks):
        """The machine's clocks, except for the wall clock."""

        def wall_nanos(self) -> int:
            try:
                return super().wall_nanos() + int(file.read_text()) * 1_000_000_000
            except (FileNotFoundError, ValueError):  # The file does not exist yet, or is being written.
                return super().wall_nanos()

    clock.SystemClocks = SetClocks  # type: ignore[misc]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
