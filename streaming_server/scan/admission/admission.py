"""Admission control: limits the scans that hold iterators, queues a bounded number of others, and refuses the rest.

While a scan waits, principals with more than their share of the places, counted as in `access.owners`, lose those
whose readers take no whole message. A principal that is alone keeps them all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from scankv.model.errors import ServerDraining, TooManyScans
from streaming_server.access.owners import admin_reserve, own_share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from scankv.model.errors import ScanKvError

_RETRY_AFTER_SECONDS = 1.0

STALLED_SECONDS = 1.0
"""A reader that takes longer for a message may lose its place to the scan of another principal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a place, and how it can lose it.

    Attributes:
        principal: The principal of the scan. Empty: it has none, takes no place from others and loses none.
        is_admin: Whether it is an admin of every table.
        stalled_since: Returns since when a message has been waiting for the reader to take all of it. None: none is.
        end: Ends the scan, which releases its place at once. Given the reason.
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
    # Looked up for each full bucket.
    buckets: dict[int, None]
    holder: Holder
    free: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    taken: bool = False
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Limit:
    """A limit on live scans: of one bucket, or of the server.

    Attributes:
        most: How many scans may be live.
        table: The table of the bucket.
        bucket: The bucket. None: the limit is that of the server.
    """

    most: int
    table: str = ""
    bucket: int | None = None

    @property
    def text(self) -> str:
        """What has reached the limit, for errors."""
        if self.bucket is None:
            return f"the server has {self.most} live scans (max_live_scans)"
        return f"bucket {self.bucket} of {self.table} has {self.most} live scans (max_live_scans_per_bucket)"

    def counts(self, place: _Place) -> bool:
        """Whether a place counts against the limit."""
        return self.bucket is None or (self.bucket in place.buckets and self.table == place.table)


class Admission:
    """Admits scans in order of arrival, as far as the limits of their buckets allow.

    Scans of principals that have their share come after those of others.

    Bound to the server's event loop.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._live: dict[_Place, None] = {}
        self._of_principals: Counter[str] = Counter()
        # The live scans of each bucket, by table and principal; those of all principals under "".
        self._on_buckets: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
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
        place = _Place(table, dict.fromkeys(buckets), holder)
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
        losers = self._losers(place)
        if losers:
            # Takes the room before it is there, or other scans in the queue would get it.
            self._admit(place)
            for loser, reason in losers.items():
                loser.holder.end(reason)
        if not place.taken:
            place.timer = asyncio.get_running_loop().call_later(STALLED_SECONDS / 2, self._look, place)

    def _let_in(self) -> None:
        if not self._queue:
            return
        own = own_share(self._limits.live, self._limits.share)

        def has_share(place: _Place) -> bool:
            holder = place.holder
            return bool(holder.principal) and not holder.is_admin and self._of_principals[holder.principal] >= own

        for place in sorted(self._queue, key=has_share):
            if self._obstacle(place) is None:
                self._admit(place)

    def _admit(self, place: _Place) -> None:
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
        principal = place.holder.principal
        self._of_principals[principal] += by
        if not self._of_principals[principal]:
            del self._of_principals[principal]
        for key in {(place.table, ""), (place.table, principal)}:
            live = self._on_buckets[key]
            if by > 0:
                live.update(place.buckets.keys())
            else:
                live.subtract(place.buckets.keys())
            if not any(live.values()):
                del self._on_buckets[key]

    def _obstacle(self, place: _Place) -> str | None:
        """Describes the limit that keeps a scan out. None: the scan can be admitted."""
        return next((limit.text for limit in self._full(place)), None)

    def _full(self, place: _Place) -> Iterator[_Limit]:
        """Yields the limits that keep a scan out."""
        if len(self._live) >= self._limits.live:
            yield _Limit(self._limits.live)
        live, most = self._on_buckets.get((place.table, "")) or Counter[int](), self._limits.live_per_bucket
        for bucket in place.buckets:
            if live[bucket] >= most:
                yield _Limit(most, place.table, bucket)

    def _losers(self, place: _Place) -> dict[_Place, str]:
        """Returns the scans that make room for another one if they end, and why each has to. Empty: there are none.

        Principals with a scan that waits may see to it that this takes long, so a limit costs as little as possible,
        and none costs anything while no scan can lose its place.
        """
        losers: dict[_Place, str] = {}
        stalled = self._stalled(place)
        for limit in self._full(place) if stalled else ():
            loser = self._loser(place.holder, limit, chain(losers, stalled))
            if loser is None:
                return {}
            if not any(map(limit.counts, losers)):
                losers[loser] = self._reason(loser.holder.principal, limit)
        return losers

    def _loser(self, waiting: Holder, limit: _Limit, stalled: Iterable[_Place]) -> _Place | None:
        """Returns the first stalled scan that loses its place if a limit keeps another one out. None: there is none."""
        own = own_share(limit.most, self._limits.share)
        if waiting.is_admin:
            others = sum(map(limit.counts, self._others(waiting)))
            if others > limit.most - admin_reserve(limit.most):
                own = 0
        elif self._number(limit, waiting.principal) >= own:
            return None
        for each in stalled:
            if limit.counts(each) and self._number(limit, each.holder.principal) > own:
                return each
        return None

    def _stalled(self, place: _Place) -> list[_Place]:
        """Returns the scans that may lose their places to another one, those that have stalled for longest first."""
        latest = asyncio.get_running_loop().time() - STALLED_SECONDS
        since = {
            each: began
            for each in self._others(place.holder)
            if (began := each.holder.stalled_since()) is not None and began <= latest
        }
        return sorted(since, key=since.__getitem__)

    def _others(self, waiting: Holder) -> Iterator[_Place]:
        """Yields the live scans of other principals, without those of admins."""
        for each in self._live:
            if each.holder.principal not in ("", waiting.principal) and not each.holder.is_admin:
                yield each

    def _number(self, limit: _Limit, principal: str) -> int:
        """Returns how many scans of a principal count against a limit."""
        if limit.bucket is None:
            return self._of_principals[principal]
        live = self._on_buckets.get((limit.table, principal))
        return 0 if live is None else live[limit.bucket]

    def _reason(self, principal: str, limit: _Limit) -> str:
        return (
            f'{limit.text}, {self._number(limit, principal):,} of them of the principal "{principal}"; while others '
            f"wait, each principal keeps {own_share(limit.most, self._limits.share):,} (max_caller_share), and admins "
            f"get the last {admin_reserve(limit.most):,}"
        )

    def _refusal(self, place: _Place, circumstances: str) -> TooManyScans:
        return TooManyScans(
            f"{self._obstacle(place)}, {circumstances}: try again later, end some scans, or raise the limit",
            retry_after=_RETRY_AFTER_SECONDS,
            table=place.table,
        )
