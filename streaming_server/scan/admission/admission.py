"""Admission control: limits the scans that hold iterators, queues a bounded number of others, and refuses the rest."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import ServerDraining, TooManyScans

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scankv.model.errors import ScanKvError

_RETRY_AFTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits on scans.

    Attributes:
        live: Live scans of the server.
        live_per_bucket: Live scans of one bucket.
        waiting: Scans that wait to be admitted.
        wait_seconds: How long a scan waits before it is refused.
    """

    live: int
    live_per_bucket: int
    waiting: int
    wait_seconds: float


@dataclass(slots=True, eq=False)
class _Place:
    """The place of one scan among the live scans. It counts against the limits while `taken`."""

    table: str
    buckets: tuple[int, ...]
    free: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False


class Admission:
    """Admits scans in order of arrival, as far as the limits of their buckets allow.

    Bound to the server's event loop.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._live = 0
        self._on_buckets: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._queue: list[_Place] = []
        self._closed: ScanKvError | None = None

    @property
    def waiting(self) -> int:
        """The number of scans that wait to be admitted."""
        return len(self._queue)

    @asynccontextmanager
    async def admit(self, table: str, buckets: tuple[int, ...]) -> AsyncIterator[Callable[[], None]]:
        """Takes a place for the length of the block, after waiting for one if necessary.

        Yields a function that releases the place before the end of the block, for a scan that no longer holds
        resources.

        Raises:
            TooManyScans: The queue is full, or the wait took too long. The message names the limit.
            ServerDraining: The server is shutting down.
        """
        place = _Place(table, buckets)
        await self._enter(place)
        try:
            yield lambda: self._leave(place)
        finally:
            self._leave(place)

    def close(self) -> None:
        """Admits no further scans, and refuses those that wait."""
        self._closed = ServerDraining(
            "the server is shutting down and accepts no new scans: try again once it has restarted"
        )
        for place in self._queue:
            place.free.set_exception(copy(self._closed))
        self._queue.clear()

    async def _enter(self, place: _Place) -> None:
        if self._closed is not None:
            raise copy(self._closed)
        if self._obstacle(place) is None:
            self._take(place)
            return
        if len(self._queue) >= self._limits.waiting:
            raise self._refusal(place, f"and {len(self._queue)} more are waiting")
        self._queue.append(place)
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await asyncio.shield(place.free)
        except TimeoutError:
            if not place.free.done():
                self._queue.remove(place)
                raise self._refusal(place, f"and none ended within {self._limits.wait_seconds:g} s") from None
            place.free.result()
        except asyncio.CancelledError:
            if place in self._queue:
                self._queue.remove(place)
            self._leave(place)
            raise

    def _let_in(self) -> None:
        for place in list(self._queue):
            if self._obstacle(place) is None:
                self._queue.remove(place)
                self._take(place)
                place.free.set_result(None)

    def _take(self, place: _Place) -> None:
        place.taken = True
        self._count(place, 1)

    def _leave(self, place: _Place) -> None:
        if place.taken:
            place.taken = False
            self._count(place, -1)
            self._let_in()

    def _count(self, place: _Place, by: int) -> None:
        self._live += by
        live = self._on_buckets[place.table]
        if by > 0:
            live.update(place.buckets)
        else:
            live.subtract(place.buckets)
        if not any(live.values()):
            del self._on_buckets[place.table]

    def _obstacle(self, place: _Place) -> str | None:
        """Describes the limit that keeps a scan out. None: the scan can be admitted."""
        if self._live >= self._limits.live:
            return f"the server has {self._limits.live} live scans (max_live_scans)"
        live, most = self._on_buckets.get(place.table) or Counter[int](), self._limits.live_per_bucket
        for bucket in place.buckets:
            if live[bucket] >= most:
                return f"bucket {bucket} of {place.table} has {most} live scans (max_live_scans_per_bucket)"
        return None

    def _refusal(self, place: _Place, circumstances: str) -> TooManyScans:
        return TooManyScans(
            f"{self._obstacle(place)}, {circumstances}: try again later, end some scans, or raise the limit",
            retry_after=_RETRY_AFTER_SECONDS,
            table=place.table,
        )
