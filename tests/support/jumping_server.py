"""A real server in a process of its own, whose wall clock a test sets.

Run as `python -m tests.support.jumping_server FILE serve ...`, as `JumpingServer` does: the `scankv` command with a
wall clock that is ahead by as many seconds as stand in a file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from scankv.cli import main
from streaming_server.clock import SystemClocks
from tests.support.forked import ForkedProcess
from tests.support.server_process import ServerProcess

__all__ = ["JumpingServer"]


class JumpingServer(ServerProcess):
    """A `ServerProcess` whose wall clock jumps, also while it is stopped."""

    def jump(self, seconds: float) -> None:
        """Sets the server's wall clock forward by so many seconds, or back."""
        ahead = _seconds_in(self._file) + seconds
        partial = self._file.with_suffix(".partial")
        partial.write_text(repr(ahead))
        partial.replace(self._file)

    @property
    def _file(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".ahead")

    def _popen(self, command: list[str], log: BinaryIO) -> subprocess.Popen[str]:
        assert command[:3] == [sys.executable, "-m", "scankv"], "a wrapper would get the wrong command"
        command = [sys.executable, "-m", "tests.support.jumping_server", str(self._file), *command[3:]]
        return ForkedProcess(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)


class ShiftedClocks(SystemClocks):
    """The real clocks, with a wall clock that is ahead by what stands in a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def wall_nanos(self) -> int:
        """See `MachineClocks`."""
        return super().wall_nanos() + int(_seconds_in(self._file) * 1e9)


def _seconds_in(file: Path) -> float:
    return float(file.read_text()) if file.exists() else 0.0


if __name__ == "__main__":
    from streaming_server import clock

    shifted = ShiftedClocks(Path(sys.argv.pop(1)))
    clock.SystemClocks = lambda: shifted  # type: ignore[assignment,misc]  # what a server takes that is given none
    main()
