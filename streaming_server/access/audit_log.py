"""The audit log: a thread writes one JSON object a line to an output, such as a file."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.access.audit_outputs import AuditOutput

MAX_WAITING_LINES: Final = 20_000
"""The most lines that wait for the disk. Further ones are lost, and counted."""

_LINES_AT_ONCE: Final = 1000
_COLLECT_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 5.0
# To how many characters and items the texts and lists of a line are cut that is too long, until it is short enough.
_CUTS: Final = ((200, 10), (50, 5), (10, 2))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_log: Final = logging.getLogger(__name__)


class AuditLog:
    """An output to which a thread writes lines.

    Adding a line never waits for the output. Lines are written within about a tenth of a second, in the order in
    which they were added. They are not synced, so they survive a crash of the process, but not one of the machine.

    While the output cannot be written, lines wait in memory and the thread tries again every second. Lines beyond the
    limit are lost. They are counted, and once the output can be written again, a line with `lines_lost` says how many
    were lost.

    Only the thread of the event loop may call `add`. Any thread may read the counters.

    Args:
        output: Where the lines go. It is closed with the log.
        now_nanos: Returns the nanoseconds since 1970 UTC.
        max_waiting_lines: The most lines that wait for the output.

    Attributes:
        now_nanos: Returns the nanoseconds since 1970 UTC.
        kind: What the output is, for metrics.
        lines_written: The lines written since the start.
        lines_lost: The lines that were lost since the start.
    """

    def __init__(
        self, output: AuditOutput, now_nanos: Callable[[], int], *, max_waiting_lines: int = MAX_WAITING_LINES
    ) -> None:
        self.lines_written = 0
        self.lines_lost = 0
        self.kind = output.kind
        self._output = output
        self.now_nanos = now_nanos
        self._max_waiting = max_waiting_lines
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        # The lines that the thread is writing: how many, their bytes, and how many of these bytes are written.
        self._lines, self._data, self._done = 0, b"", 0
        self._reported_lost = 0
        self._failing = False
        self._wake, self._closing = threading.Event(), threading.Event()
        # A daemon, so that a disk that never answers does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="scankv-audit-log", daemon=True)
        self._thread.start()

    def add(self, entry: dict[str, Any], nanos: int | None = None) -> None:
        """Adds a line.

        Args:
            entry: The line without its time, which must not be changed afterwards.
            nanos: The time, in nanoseconds since 1970 UTC. None: now.
        """
        if len(self._waiting) >= self._max_waiting:
            self.lines_lost += 1
            return
        self._waiting.append((self.now_nanos() if nanos is None else nanos, entry))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Writes the lines that wait, for at most five seconds, and closes the output. Blocks."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        if left := len(self._waiting) + self._lines:
            _log.error("%d lines of %s are lost, because it could not be written", left, self._output.name)

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
                self._output.close()
                return

    def _write_some(self) -> None:
        if not self._lines:
            lost = self.lines_lost
            most = self._output.max_line_bytes
            lines = [_line(*self._waiting.popleft(), most) for _ in range(min(len(self._waiting), _LINES_AT_ONCE))]
            if lost > self._reported_lost:
                lines.append(_line(self.now_nanos(), {"event": "lines_lost", "lines": lost - self._reported_lost}))
                self._reported_lost = lost
            self._lines, self._data, self._done = len(lines), b"".join(lines), 0
        while self._done < len(self._data):
            self._done = self._output.write(self._data, self._done)
        self.lines_written += self._lines
        self._lines, self._data, self._done = 0, b"", 0
        if self._failing:
            self._failing = False
            _log.warning("%s can be written again; %d lines were lost", self._output.name, self.lines_lost)

    def _report_failure(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            _log.error(
                "%s cannot be written: %s; calls continue, up to %d lines wait in memory, and further ones are lost",
                self._output.name,
                error.strerror or error,
                self._max_waiting,
            )


def _line(nanos: int, entry: dict[str, Any], most_bytes: int | None = None) -> bytes:
    time = (_EPOCH + timedelta(microseconds=nanos // 1000)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = _encode({"time": time, **entry})
    for characters, items in _CUTS:
        if most_bytes is None or len(line) <= most_bytes:
            break
        line = _encode({"time": time, **_cut(entry, characters, items), "shortened": True})
    return line


def _encode(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n"


def _cut(value: Any, characters: int, items: int) -> Any:  # noqa: ANN401  # any JSON
    """Returns a value of a line with shorter texts and lists, but with all fields."""
    if isinstance(value, str):
        return value if len(value) <= characters else value[:characters] + "..."
    if isinstance(value, list):
        return [_cut(each, characters, items) for each in value[:items]]
    return {name: _cut(each, characters, items) for name, each in value.items()} if isinstance(value, dict) else value
