"""Admission control: limits the scans that hold iterators, queues a bounded number of others, and refuses the rest.

While a scan waits, principals with more than their share of the places, counted as in `access.owners`, lose those
whose readers take nothing. A principal that is alone keeps them all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import ServerDraining, TooManyScans
from streaming_server.access.owners import admin_reserve, own_share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from scankv.model.errors import ScanKvError

_RETRY_AFTER_SECONDS = 1.0

STALLED_SECONDS = 1.0
"""A reader that takes nothing for this long may lose its place to the scan of another principal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a place, and how it can lose it.

    Attributes:
        principal: The principal of the scan. Empty: it has none, takes no place from others and loses none.
        is_admin: Whether it is an admin of every table.
        stalled_since: Returns since when the reader has taken nothing. None: the scan is not waiting for its reader.
        end: Ends the scan, which releases its place. Given the reason.
    """

    principal: str
    is_admin: bool
    stalled_since: Callable[[], float | None]
    end: Callable[[str], None]


_NOBODY = Holder(principal="", is_admin=False, stalled_since=lambda: None, end=lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits on scans.

    Attributes:
        live: Live scans of the server.
        live_per_bucket: Live scans of one bucket.
        waiting: Scans that wait to be admitted.
        wait_seconds: How long a scan waits before it is refused.
        share: The share of the live scans that one principal keeps, read or not, while others wait.
    """

    live: int
    live_per_bucket: int
    waiting: int
    wait_seconds: float
    share: float = 1.0


@dataclass(slots=True, eq=False)
class _Place:
    """The place of one scan among the live scans. It counts against the limits while `taken`."""

    table: str
    buckets: tuple[int, ...]
    holder: Holder
    free: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _Full:
    """A limit that keeps a scan out.

    Attributes:
        text: What has reached the limit, for errors.
        most: The limit.
        places: The places that count against it.
    """

    text: str
    most: int
    places: Sequence[_Place]


class Admission:
    """Admits scans in order of arrival, as far as the limits of their buckets allow.

    Scans of principals that have their share come after those of others.

    Bound to the server's event loop.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._live: dict[_Place, None] = {}
        self._on_buckets: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._queue: list[_Place] = []
        self._closed: ScanKvError | None = None

    @property
    def waiting(self) -> int:
        """The number of scans that wait to be admitted."""
        return len(self._queue)

    @asynccontextmanager
    async def admit(
        self, table: str, buckets: tuple[int, ...], holder: Holder = _NOBODY
    ) -> AsyncIterator[Callable[[], None]]:
        """Takes a place for the length of the block, after waiting for one if necessary.

        Yields a function that releases the place before the end of the block, for a scan that no longer holds
        resources.

        Raises:
            TooManyScans: The queue is full, or the wait took too long. The message names the limit.
            ServerDraining: The server is shutting down.
        """
        place = _Place(table, buckets, holder)
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
        others = len(self._queue)
        self._queue.append(place)
        try:
            self._look(place)
            if others >= self._limits.waiting and not place.taken:
                self._queue.remove(place)
                raise self._refusal(place, f"and {others} more are waiting")
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
        finally:
            if place.timer is not None:
                place.timer.cancel()

    def _look(self, place: _Place) -> None:
        """Makes room for a scan that waits, now and once more readers have taken nothing for long enough."""
        if not place.holder.principal or place.free.done():
            return
        full = list(self._full(place))
        losers = [_loser(place, each, self._limits.share) for each in full]
        if None not in losers:
            # First in the queue, because the loser may have other scans that wait for longer.
            self._queue.remove(place)
            self._queue.insert(0, place)
            for each, loser in zip(full, losers, strict=True):
                if loser is not None and loser.taken:
                    loser.holder.end(_reason(loser, each, self._limits.share))
        if not place.taken:
            place.timer = asyncio.get_running_loop().call_later(STALLED_SECONDS / 2, self._look, place)

    def _let_in(self) -> None:
        if not self._queue:
            return
        live = Counter(each.holder.principal for each in self._live)
        own = own_share(self._limits.live, self._limits.share)

        def has_share(place: _Place) -> bool:
            holder = place.holder
            return bool(holder.principal) and not holder.is_admin and live[holder.principal] >= own

        for place in sorted(self._queue, key=has_share):
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
        if by > 0:
            self._live[place] = None
        else:
            del self._live[place]
        live = self._on_buckets[place.table]
        if by > 0:
            live.update(place.buckets)
        else:
            live.subtract(place.buckets)
        if not any(live.values()):
            del self._on_buckets[place.table]

    def _obstacle(self, place: _Place) -> str | None:
        """Describes the limit that keeps a scan out. None: the scan can be admitted."""
        return next((full.text for full in self._full(place)), None)

    def _full(self, place: _Place) -> Iterator[_Full]:
        """Yields the limits that keep a scan out."""
        if len(self._live) >= self._limits.live:
            text = f"the server has {self._limits.live} live scans (max_live_scans)"
            yield _Full(text, self._limits.live, list(self._live))
        live, most = self._on_buckets.get(place.table) or Counter[int](), self._limits.live_per_bucket
        for bucket in place.buckets:
            if live[bucket] >= most:
                text = f"bucket {bucket} of {place.table} has {most} live scans (max_live_scans_per_bucket)"
                there = [each for each in self._live if each.table == place.table and bucket in each.buckets]
                yield _Full(text, most, there)

    def _refusal(self, place: _Place, circumstances: str) -> TooManyScans:
        return TooManyScans(
            f"{self._obstacle(place)}, {circumstances}: try again later, end some scans, or raise the limit",
            retry_after=_RETRY_AFTER_SECONDS,
            table=place.table,
        )


def _loser(place: _Place, full: _Full, share: float) -> _Place | None:
    """Returns the place that another scan gets: of a principal with too many, the one that has stalled for longest.

    None: there is none.
    """
    mine, counts = place.holder, Counter(each.holder.principal for each in full.places)
    others = [each for each in full.places if each.holder.principal not in ("", mine.principal)]
    others = [each for each in others if not each.holder.is_admin]
    if not (mine.is_admin and len(others) > full.most - admin_reserve(full.most)):
        own = own_share(full.most, share)
        if counts[mine.principal] >= own and not mine.is_admin:
            return None
        others = [each for each in others if counts[each.holder.principal] > own]
    latest = asyncio.get_running_loop().time() - STALLED_SECONDS
    since = {each: began for each in others if (began := each.holder.stalled_since()) is not None and began <= latest}
    return min(since, key=since.__getitem__, default=None)


def _reason(place: _Place, full: _Full, share: float) -> str:
    principal, own = place.holder.principal, own_share(full.most, share)
    count = sum(each.holder.principal == principal for each in full.places)
    return (
        f'{full.text}, {count:,} of them of the principal "{principal}"; while others wait, each principal keeps '
        f"{own:,} (max_caller_share), and admins get the last {admin_reserve(full.most):,}"
    )
