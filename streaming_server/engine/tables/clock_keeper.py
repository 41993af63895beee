"""Keeps the server's clock on disk, so that a restart continues it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DiskFailed, DiskFull, ServerBusy
from streaming_server.engine.tasks.background import Background, repeat

if TYPE_CHECKING:
    from streaming_server.clock import ServerClock
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.storage.tables.clock_file import ClockFile

_LOOK_SECONDS: Final = 1.0
"""How often the wall clock is read, so that a jump is noticed even if nothing is written."""

_STORE_SECONDS: Final = 30.0
"""How often the clock is stored. A crash sets service time back by at most this, and things expire that much later."""

_log: Final = logging.getLogger(__name__)


class ClockKeeper(Background):
    """Stores the server's clock periodically. Bound to the event loop.

    Args:
        clock: The clock.
        file: The file that keeps it.
        executor: Runs blocking work.
    """

    def __init__(self, clock: ServerClock, file: ClockFile, executor: StorageExecutor) -> None:
        self._clock = clock
        self._file = file
        self._executor = executor
        super().__init__(self._run)

    async def close(self) -> None:
        """Stops, and stores the clock for the next server. Call it while the executor runs."""
        await super().close()
        await self._store()

    async def _run(self) -> None:
        await self._store()
        await repeat(_LOOK_SECONDS, self._look)

    async def _look(self) -> None:
        if self._clock.has_stepped or self._clock.monotonic() >= self._stored + _STORE_SECONDS:
            await self._store()

    async def _store(self) -> None:
        self._stored = self._clock.monotonic()
        try:
            await self._executor.run(self._file.write, self._clock.store())
        except (DiskFull, DiskFailed, ServerBusy, OSError) as error:
            # The next server continues from an older state of the clock, which is safe.
            _log.warning("the clock cannot be stored: %s", error)
