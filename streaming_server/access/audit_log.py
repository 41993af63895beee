"""The audit log: a file to which a thread appends one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_WAITING_LINES: Final = 20_000
"""The most lines that wait for the disk. Further ones are lost, and counted."""

_LINES_AT_ONCE: Final = 1000
_COLLECT_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 5.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_log: Final = logging.getLogger(__name__)


class AuditLog:
    """A file to which a thread appends lines.

    Adding a line never waits for the disk. Lines are in the file within about a tenth of a second, in the order in
    which they were added. They are not synced, so they survive a crash of the process, but not one of the machine.

    While the file cannot be written, lines wait in memory and the thread tries again every second. Lines beyond the
    limit are lost. They are counted, and once the file can be written again, a line with `lines_lost` says how many
    were lost.

    The thread opens the file again if it was renamed or removed, so programs may rotate it without a signal.

    Only the thread of the event loop may call `add`. Any thread may read the counters.

    Args:
        path: The file. It is created, for its owner only, if it does not exist.
        now_nanos: Returns the nanoseconds since 1970 UTC.
        max_waiting_lines: The most lines that wait for the disk.

    Attributes:
        lines_written: The lines written since the start.
        lines_lost: The lines that were lost since the start.

    Raises:
        UsageError: The file cannot be opened, or is not a regular file.
    """

    def __init__(self, path: Path, now_nanos: Callable[[], int], *, max_waiting_lines: int = MAX_WAITING_LINES) -> None:
        self.lines_written = 0
        self.lines_lost = 0
        self._path = path
        self._now_nanos = now_nanos
        self._max_waiting = max_waiting_lines
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        # The lines that the thread is writing: how many, their bytes, and how many of these bytes are in the file.
        self._lines, self._data, self._done = 0, b"", 0
        self._reported_lost = 0
        self._failing = False
        self._wake, self._closing = threading.Event(), threading.Event()
        try:
            self._fd = _open(path)
        except OSError as error:
            raise UsageError(
                f"the audit log {path} cannot be opened: {error.strerror}: give a file that the user of the server may "
                "write",
                option="audit_log",
            ) from error
        # A daemon, so that a disk that never answers does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="scankv-audit-log", daemon=True)
        self._thread.start()

    def add(self, entry: dict[str, Any]) -> None:
        """Adds a line with the present time and the entry, which must not be changed afterwards."""
        if len(self._waiting) >= self._max_waiting:
            self.lines_lost += 1
            return
        self._waiting.append((self._now_nanos(), entry))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Writes the lines that wait, for at most five seconds, and closes the file. Blocks."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        if left := len(self._waiting) + self._lines:
            _log.error("%d lines of the audit log %s are lost, because it could not be written", left, self._path)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            closing = self._closing.wait(_COLLECT_SECONDS)
            self._wake.clear()
            try:
                while self._waiting or self._lines:
                    self._write_some()
            except OSError as error:
                self._report_failure(error)
                if closing:
                    return
                self._closing.wait(_RETRY_SECONDS)
                self._wake.set()
                continue
            if closing and not self._waiting:
                os.close(self._fd)
                return

    def _write_some(self) -> None:
        self._reopen_if_moved()
        if not self._lines:
            lost = self.lines_lost
            lines = [_line(*self._waiting.popleft()) for _ in range(min(len(self._waiting), _LINES_AT_ONCE))]
            if lost > self._reported_lost:
                lines.append(_line(self._now_nanos(), {"event": "lines_lost", "lines": lost - self._reported_lost}))
                self._reported_lost = lost
            self._lines, self._data, self._done = len(lines), b"".join(lines), 0
        while self._done < len(self._data):
            self._done += os.write(self._fd, self._data[self._done :])
        self.lines_written += self._lines
        self._lines, self._data, self._done = 0, b"", 0
        if self._failing:
            self._failing = False
            _log.warning("the audit log %s can be written again; %d lines were lost", self._path, self.lines_lost)

    def _reopen_if_moved(self) -> None:
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except FileNotFoundError:
            pass
        opened = _open(self._path)
        os.close(self._fd)
        self._fd = opened
        # A line that was written in part is written again, in full.
        self._done = self._data.rfind(b"\n", 0, self._done) + 1

    def _report_failure(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            _log.error(
                "the audit log %s cannot be written: %s; calls continue, up to %d lines wait in memory, and further "
                "ones are lost",
                self._path,
                error.strerror,
                self._max_waiting,
            )


def _open(path: Path) -> int:
    # O_NONBLOCK, because opening a pipe without a reader would wait forever.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is not a regular file")
    return fd


def _line(nanos: int, entry: dict[str, Any]) -> bytes:
    time = (_EPOCH + timedelta(microseconds=nanos // 1000)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": time, **entry}, ensure_ascii=False).encode(errors="replace") + b"\n"
