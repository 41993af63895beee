"""Holds: one call keeps the buckets of a tablet from changing, so that another call can read them as of that instant.

A table with tablets has several owners. A read of all of its tablets as of one instant holds all of them, has each
tablet open its view, and ends the holds. See `docs/internals/tablets.md`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from scankv.model.errors import Unavailable
from streaming_server.engine.bucket.commit_barrier import lock_mutexes, open_locked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.bucket.bucket import Bucket

_RETRY_SECONDS: Final = 0.2


class BucketHold:
    """The mutexes of the buckets of one tablet, held for a call that is about to open a view. Bound to the event loop.

    Attributes:
        taken: Set once a view is open, or the call needs none.
    """

    def __init__(self, buckets: Iterable[LiveBucket]) -> None:
        self._buckets = {live.number: live for live in buckets}
        self._is_held = False
        self._users = 0
        self._unused = asyncio.Event()
        self.taken = asyncio.Event()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Holds the mutexes for the length of the block, and until no call uses them any more. Opens the buckets."""
        buckets = list(self._buckets.values())
        async with lock_mutexes(buckets):
            await open_locked(buckets)
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False
                while self._users:
                    self._unused.clear()
                    await self._unused.wait()

    @asynccontextmanager
    async def use(
        self, buckets: Sequence[LiveBucket], *, again: bool = False
    ) -> AsyncIterator[list[tuple[LiveBucket, Bucket]]]:
        """Gives the current call some of the buckets for the length of the block, as `lock_buckets` does.

        Args:
            buckets: The buckets.
            again: Whether another call uses the hold after this one.

        Raises:
            Unavailable: The hold has ended before the call used it.
        """
        if not self._is_held or any(self._buckets.get(live.number) is not live for live in buckets):
            raise Unavailable(
                "the views of all tablets could not be opened in time: try again",
                retry_after=_RETRY_SECONDS,
            )
        self._users += 1
        try:
            yield list(zip(buckets, await open_locked(buckets), strict=True))
        finally:
            self._users -= 1
            if not again:
                self.taken.set()
            if not self._users:
                self._unused.set()


class BucketHolds:
    """The holds of this process, by their ids. Bound to the event loop."""

    def __init__(self) -> None:
        self._holds: dict[str, BucketHold] = {}

    def __iter__(self) -> Iterator[BucketHold]:
        return iter(self._holds.values())

    @asynccontextmanager
    async def hold(self, hold_id: str, buckets: Iterable[LiveBucket]) -> AsyncIterator[BucketHold]:
        """Holds some buckets for the length of the block. The caller bounds how long that lasts."""
        hold = BucketHold(buckets)
        async with hold.held():
            self._holds[hold_id] = hold
            try:
                yield hold
            finally:
                del self._holds[hold_id]

    def find(self, hold_id: str) -> BucketHold:
        """Returns the hold of an id. Raises Unavailable if it has ended."""
        if hold_id not in self._holds:
            raise Unavailable("the hold has ended: try again", retry_after=_RETRY_SECONDS)
        return self._holds[hold_id]


CURRENT_HOLD: Final[ContextVar[BucketHold | None]] = ContextVar("scankv_current_hold", default=None)
"""The hold under which the current call opens its view. None: the call locks the buckets itself."""


def open_again() -> None:
    """Keeps the hold of the current call for its next view, which is then as of the same instant, too."""
    hold = CURRENT_HOLD.get()
    if hold is not None:
        hold.taken.clear()
