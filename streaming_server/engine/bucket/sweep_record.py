"""What the sweep of expired rows has done in a table, and when it is due again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_SHARE: Final = 0.1
"""The share of the rows of a table that may have expired and not be removed yet, which the sweep aims for."""

_PASSES_A_TTL: Final = 20
_MIN_SECONDS: Final = 0.2
_MAX_SECONDS: Final = 3600.0
_FIRST_SECONDS: Final = 60.0


@dataclass(slots=True)
class SweepRecord:
    """The sweep of one table. Times are monotonic, in seconds.

    Attributes:
        removed: The rows that were removed since the start of the server.
        pass_ended: When the last complete pass ended. None: no pass has ended.
    """

    removed: int = 0
    pass_ended: float | None = None
    _interval: float | None = None
    _due: float | None = None
    _began: float = 0.0
    _pass_rows: int = 0
    _pass_removed: int = 0
    _found: float = 0.0
    _period: float = _MIN_SECONDS

    def is_due(self, now: float, ttl_seconds: int) -> bool:
        """Whether the next pass should begin."""
        most = _longest_interval(ttl_seconds)
        if self._due is None:
            self._due = now + min(most, _FIRST_SECONDS)
        elif self._interval is not None and self._interval > most and self.pass_ended is not None:
            # The TTL was shortened.
            self._interval, self._due = most, self.pass_ended + most
        return now >= self._due

    def begin_pass(self, now: float) -> None:
        """Records that a pass begins."""
        self._began, self._pass_rows, self._pass_removed = now, 0, 0

    def add_rows(self, rows: int) -> None:
        """Records that the pass has come to stored rows, expired ones included."""
        self._pass_rows += rows

    def add_removed(self, rows: int) -> None:
        """Records that the pass has removed rows."""
        self.removed += rows
        self._pass_removed += rows

    def end_pass(self, now: float, ttl_seconds: int) -> None:
        """Records that the pass has ended, and decides when the next one is due.

        Args:
            now: The time.
            ttl_seconds: The TTL of the table.
        """
        most = _longest_interval(ttl_seconds)
        interval = most if self._interval is None else self._interval
        self._period = max(now - (self._began - interval if self.pass_ended is None else self.pass_ended), _MIN_SECONDS)
        self._found = self._share_of_pass()
        if self._found > MAX_SHARE / 2:
            interval /= 2
        elif self._found < MAX_SHARE / 10:
            interval *= 1.5
        self._interval = max(_MIN_SECONDS, min(interval, most))
        self._due, self.pass_ended = now + self._interval, now
        self._pass_rows = self._pass_removed = 0

    def share(self, now: float) -> float:
        """Returns the greatest share of the stored rows that had expired since the pass before the last one.

        It is what the last pass has found, since fewer rows had expired before it. From then on, as many rows are taken
        to expire in the same time, so the share grows if the next pass takes longer. What a pass has found counts at
        once.
        """
        if self.pass_ended is None:
            return self._share_of_pass()
        late = max(1.0, (now - self.pass_ended) / self._period)
        return max(min(1.0, self._found * late), self._share_of_pass())

    def _share_of_pass(self) -> float:
        return min(1.0, self._pass_removed / max(self._pass_rows, 1))


def _longest_interval(ttl_seconds: int) -> float:
    return max(_MIN_SECONDS, min(ttl_seconds / _PASSES_A_TTL, _MAX_SECONDS))
