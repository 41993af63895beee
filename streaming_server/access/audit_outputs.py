"""Where the lines of the audit log go: to a file, to standard output or to syslog."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING, Final, Protocol

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

LOCAL_SYSLOG: Final = "/dev/log"
WHOLE_LINE_BYTES: Final = 4096
"""Lines of several processes do not mix in a pipe up to this size: `PIPE_BUF` of Linux. Syslog also takes as much."""

_SEND_SECONDS: Final = 5.0
# The facility for messages about access, and the severity of information, as RFC 3164 numbers them.
_PRIORITY: Final = 10 * 8 + 6


class AuditOutput(Protocol):
    """Takes lines. Only one thread uses it at a time.

    Attributes:
        name: What it is, for messages.
        kind: What it is, for metrics: `file`, `stdout` or `syslog`.
        max_line_bytes: The longest line that it takes, with its end. None: any.
    """

    name: str
    kind: str
    max_line_bytes: int | None

    def write(self, data: bytes, done: int) -> int:
        """Writes some of the lines in `data`, of which `done` bytes were written before.

        Returns:
            How many bytes are written now. It may be fewer than before, if lines must be written again.

        Raises:
            OSError: Nothing could be written. The caller tries again later.
        """

    def close(self) -> None:
        """Closes what it has opened."""


class AuditFile:
    """Appends lines to a file, which it opens again if it was renamed or removed.

    Args:
        path: The file. It is created, for its owner only, if it does not exist.

    Raises:
        UsageError: The file cannot be opened, or is not a regular file.
    """

    kind: str = "file"
    max_line_bytes: int | None = None

    def __init__(self, path: Path) -> None:
        self.name = f"the audit log {path}"
        self._path = path
        try:
            self._fd = _open(path)
        except OSError as error:
            raise UsageError(
                f"the audit log {path} cannot be opened: {error.strerror}: give a file that the user of the server may "
                "write",
                option="audit_log",
            ) from error

    def write(self, data: bytes, done: int) -> int:
        """See `AuditOutput.write`."""
        if self._reopen_if_moved():
            # A line that was written in part is written again, in full.
            done = data.rfind(b"\n", 0, done) + 1
        return done + os.write(self._fd, data[done:])

    def close(self) -> None:
        """See `AuditOutput.close`."""
        os.close(self._fd)

    def _reopen_if_moved(self) -> bool:
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return False
        except FileNotFoundError:
            pass
        opened = _open(self._path)
        os.close(self._fd)
        self._fd = opened
        return True


class AuditStream:
    """Writes lines to standard output, one at a time, so that lines of several processes do not mix.

    Args:
        fd: The descriptor of standard output.
    """

    kind: str = "stdout"
    max_line_bytes: int | None = WHOLE_LINE_BYTES

    def __init__(self, fd: int) -> None:
        self.name = "the audit log on standard output"
        self._fd = fd

    def write(self, data: bytes, done: int) -> int:
        """See `AuditOutput.write`."""
        return done + os.write(self._fd, data[done : data.index(b"\n", done) + 1])

    def close(self) -> None:
        """See `AuditOutput.close`. Standard output stays open."""


class AuditSyslog:
    """Sends lines to syslog, each as one datagram.

    Args:
        address: The path of a local socket, or host and port for UDP.
    """

    kind: str = "syslog"
    max_line_bytes: int | None = WHOLE_LINE_BYTES

    def __init__(self, address: str | tuple[str, int]) -> None:
        self.name = f"the audit log in syslog at {address if isinstance(address, str) else ':'.join(map(str, address))}"
        self._address = address
        self._head = f"<{_PRIORITY}>scankv[{os.getpid()}]: ".encode()
        self._socket: socket.socket | None = None

    def write(self, data: bytes, done: int) -> int:
        """See `AuditOutput.write`."""
        end = data.index(b"\n", done) + 1
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.send(self._head + data[done : end - 1])
        except OSError:
            # Syslog may have been started again.
            self.close()
            raise
        return end

    def close(self) -> None:
        """See `AuditOutput.close`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        if isinstance(self._address, str):
            family, address = socket.AF_UNIX, self._address
        else:
            family, _, _, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]  # type: ignore[assignment]
        opened = socket.socket(family, socket.SOCK_DGRAM)
        try:
            opened.settimeout(_SEND_SECONDS)
            opened.connect(address)
        except OSError:
            opened.close()
            raise
        return opened


def parse_audit_output(text: str) -> str | tuple[str, int] | None:
    """Reads the setting `audit_output`.

    Returns:
        None for standard output, otherwise the address of syslog: a path, or a host and a port.

    Raises:
        UsageError: The text has another form.
    """
    kind, _, address = text.partition(":")
    if text == "stdout":
        return None
    if text == "syslog":
        return LOCAL_SYSLOG
    if kind == "syslog" and address.startswith("/"):
        return address
    host, _, port = address.rpartition(":")
    if kind == "syslog" and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65_535:
        return host.strip("[]"), int(port)
    raise UsageError(
        f'audit_output must be "stdout", "syslog", "syslog:/PATH" or "syslog:HOST:PORT", not "{text}"',
        option="audit_output",
    )


def audit_output(text: str, stdout: int) -> AuditOutput:
    """Returns the output that the setting `audit_output` names.

    Args:
        text: The setting.
        stdout: The descriptor of standard output.
    """
    address = parse_audit_output(text)
    return AuditStream(stdout) if address is None else AuditSyslog(address)


def _open(path: Path) -> int:
    # O_NONBLOCK, because opening a pipe without a reader would wait forever.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is not a regular file")
    return fd
