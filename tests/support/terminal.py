"""A command on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine

# The escape sequence with which rich returns to the first line of its output.
REDRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command on its own terminal, and what the terminal shows now."""

    def __init__(self, scankv: CommandLine, *arguments: str, width: int = 100, height: int = 24) -> None:
        self._controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = scankv.start(*arguments, stdin=terminal, stdout=terminal, stderr=terminal, terminal=True)
        os.close(terminal)
        self._received = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._controller)

    def _read(self) -> None:
        try:
            while data := os.read(self._controller, 65_536):
                self._received += data
        except OSError:
            # This is how reading from a terminal ends.
            pass

    @property
    def received(self) -> str:
        """Returns all output that the terminal has received."""
        return self._received.decode(errors="replace").replace("\r\n", "\n")

    @property
    def screen(self) -> str:
        """Returns what was drawn last."""
        return STYLES.sub("", REDRAWN.split(self.received)[-1])

    def interrupt(self) -> int:
        """Presses Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        self._reader.join()
        return code
