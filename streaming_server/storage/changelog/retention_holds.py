"""Retention holds: which owners need which changes of a bucket beyond their retention."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Callable


UNDO_OWNER: Final = "undo-"
"""The owners of the holds of undos begin with this."""


class RetentionHolds:
    """The retention holds on the changelog of one bucket. Thread-safe.

    Args:
        clock: Returns monotonic seconds, by which holds expire.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holds: dict[str, tuple[int, float | None]] = {}
        # Readers take and release holds while a thread trims the changelog.
        self._lock = threading.Lock()

    def hold(self, owner: str, offset: int, seconds: float | None = None) -> None:
        """Keeps changes from an offset on until `release`, or for some seconds. Replaces the owner's last hold."""
        until = None if seconds is None else self._clock() + seconds
        with self._lock:
            self._holds[owner] = offset, until

    def release(self, owner: str) -> None:
        """Ends the hold of an owner, if it has one."""
        with self._lock:
            self._holds.pop(owner, None)

    @property
    def owners(self) -> set[str]:
        """The owners of all holds, expired ones included."""
        with self._lock:
            return {*self._holds}

    def oldest(self) -> tuple[str, int] | None:
        """Returns the owner and the offset of the hold that reaches furthest back. None: no hold exists."""
        now = self._clock()
        with self._lock:
            self._holds = {o: (at, until) for o, (at, until) in self._holds.items() if until is None or until > now}
            if not self._holds:
                return None
            owner = min(self._holds, key=lambda owner: count_of(self._holds[owner][0]))
            return owner, self._holds[owner][0]
