"""Claims on a location of backups: a prune and the creation of a backup exclude each other.

Each writes its own claim first and then looks for those of the other kind, so at least one of two sees the other. A
process that was killed leaves its claim, which counts as ended when it was not renewed for a while. Ages are compared
by the clock of the store alone.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Final

from scankv.model.errors import BackupFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.storage.backup.backup_store import BackupStore

_RENEW_SECONDS: Final = 30.0
_ENDED_SECONDS: Final = 600.0
_WHAT: Final = {"create": "a backup is being created", "prune": "old backups are being removed"}


class Claim:
    """A claim of one process. Its methods block; threads may call `renew` concurrently.

    Args:
        store: The location.
        kind: What claims it: `create` or `prune`.
        against: The kind that it excludes.
        clock: Returns monotonic seconds.
    """

    def __init__(self, store: BackupStore, kind: str, *, against: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._against = against
        self._clock = clock
        self._name = f"{kind}-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._renewed = 0.0

    def take(self) -> None:
        """Claims the location.

        Raises:
            BackupFailed: The other kind has claimed it, or it cannot be written.
        """
        self._write()
        claims = self._store.claims()
        now = claims.get(self._name, 0)
        for name, written in claims.items():
            if name.startswith(f"{self._against}-") and now - written < _ENDED_SECONDS * 1_000_000:
                self.release()
                raise BackupFailed(
                    f"{_WHAT[self._against]} in {self._store.shown}: try again once that has ended. If its process "
                    f"was killed, this takes {_ENDED_SECONDS / 60:g} minutes"
                )

    def renew(self) -> None:
        """Renews the claim if that is due. Call it while work continues."""
        if self._clock() - self._renewed >= _RENEW_SECONDS:
            with self._lock:
                if self._clock() - self._renewed >= _RENEW_SECONDS:
                    self._write()

    def _write(self) -> None:
        self._renewed = self._clock()
        self._store.write_claim(self._name)

    def release(self) -> None:
        """Ends the claim."""
        self._store.remove_claim(self._name)

    def remove_ended(self) -> None:
        """Removes the claims that killed processes have left."""
        claims = self._store.claims()
        now = claims.get(self._name, 0)
        for name, written in claims.items():
            if now - written >= _ENDED_SECONDS * 1_000_000:
                self._store.remove_claim(name)
