"""Closes the files of unused buckets, so that a server can have many more buckets than it can keep open."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ScanKvError
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.storage.files.file_limit import has_quarter_of_files_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.bucket.table_state import TableState

_SECONDS: Final = 1.0
"""The longest pause between two searches for idle buckets."""
_RECENT_SECONDS: Final = 60.0

_log: Final = logging.getLogger(__name__)


class IdleBuckets(Background):
    """Bounds the number of open buckets. Bound to the event loop.

    A bucket is opened on use, and closed here: after `idle_seconds` without use, or when too many are open, the least
    recently used first. Buckets in use stay open, however many they are.

    Rule: while files are plentiful, buckets that were used within the last minute stay open, too. Otherwise a load that
    uses more than `most` buckets would reopen them for every request, which took seconds for 64 of them.

    Args:
        tables: Returns the open tables.
        most: The most unused buckets to keep open while files are plentiful, not counting recently used ones.
        few: The most while they are not.
        idle_seconds: How long a bucket must be unused to be closed.
        has_files: Whether files are plentiful.
    """

    def __init__(
        self,
        tables: Callable[[], Iterable[TableState]],
        *,
        most: int,
        few: int,
        idle_seconds: float,
        has_files: Callable[[], bool] = has_quarter_of_files_left,
    ) -> None:
        self._tables = tables
        self._has_files = has_files
        self._most = most
        self._few = few
        self._idle_seconds = idle_seconds
        super().__init__(partial(repeat, min(_SECONDS, idle_seconds / 2), self._look_now))

    async def _look_now(self) -> None:
        await self.look(time.monotonic())

    async def look(self, now: float) -> None:
        """Closes the idle buckets as of a time of the monotonic clock."""
        found = [live for table in list(self._tables()) for live in table.buckets if live.is_open]
        found.sort(key=lambda live: live.used)
        has_files = self._has_files()
        too_many = len(found) - (self._most if has_files else self._few)
        for live in found:
            is_idle = live.used <= now - self._idle_seconds
            is_recent = live.used > now - _RECENT_SECONDS
            if not is_idle and (too_many <= 0 or (is_recent and has_files)):
                break
            # A caller that waits for the mutex is about to use the bucket.
            if live.can_be_closed and not live.mutex.locked() and await _rest(live):
                too_many -= 1


async def _rest(live: LiveBucket) -> bool:
    try:
        async with live.mutex:
            return await live.close_files()
    except ScanKvError as error:
        _log.warning("closing bucket %s of %s, which is idle: %s", live.number, live.table, error.message)
        return False
