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
        pass_ended: When the last complete pass ended. None: none has ended.
    """

    removed: int = 0
    pass_ended: float | None = None
    _interval: float | None = None
    _due: float | None = None
    _rows: int = 0
    _expiring_a_second: float = 0.0

    def is_due(self, now: float, ttl_seconds: int) -> bool:
        """Whether the next pass should begin."""
        most = _longest_interval(ttl_seconds)
        if self._due is None:
            self._due = now + min(most, _FIRST_SECONDS)
        elif self._interval is not None and self._interval > most and self.pass_ended is not None:
            # The TTL was shortened.
            self._interval, self._due = most, self.pass_ended + most
        return now >= self._due

    def end_pass(self, began: float, now: float, rows: int, removed: int, ttl_seconds: int) -> None:
        """Records a complete pass.

        Args:
            began: When it began.
            now: When it ended.
            rows: The rows that it has read.
            removed: The rows that it has removed of them.
            ttl_seconds: The TTL of the table.
        """
        most = _longest_interval(ttl_seconds)
        interval = most if self._interval is None else self._interval
        period = max(now - (began - interval if self.pass_ended is None else self.pass_ended), _MIN_SECONDS)
        share = removed / max(rows, 1)
        if share > MAX_SHARE / 2:
            interval /= 2
        elif share < MAX_SHARE / 10:
            interval *= 1.5
        self._interval = max(_MIN_SECONDS, min(interval, most))
        self._due, self.pass_ended = now + self._interval, now
        self._rows, self._expiring_a_second = rows - removed, removed / period

    def share(self, now: float) -> float:
        """Returns the estimated share of the rows that have expired and are not removed yet.

        Assumes that rows go on expiring as fast as between the last two passes.
        """
        if self.pass_ended is None:
            return 0.0
        expired = self._expiring_a_second * (now - self.pass_ended)
        return expired / max(self._rows, expired, 1.0)


def _longest_interval(ttl_seconds: int) -> float:
    return max(_MIN_SECONDS, min(ttl_seconds / _PASSES_A_TTL, _MAX_SECONDS))
