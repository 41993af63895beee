"""Leases of the server as their holder keeps them: renewed in time, and given back at the end."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Self

import anyio

from aio_client._transport.retry import backoff
from scankv.model.errors import LockLost, ScanKvError, SnapshotLost, UsageError
from scankv.model.limits import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

# A release that the server does not answer must not hold up whoever leaves the context; the lease expires by itself.
_RELEASE_SECONDS: Final = 5.0
_MOST_SECONDS_OF_SHARED: Final = 20.0

_log = logging.getLogger("aio_client")


class Lease(ABC):
    """Something at the server that ends when it is released, or not renewed for its time to live.

    In `async with` it is renewed, and released at the end.
    """

    def __init__(self, *, shared: bool = False) -> None:
        """Begins as one that was renewed just now. Must run in the event loop.

        Args:
            shared: Whether it has other holders: a block that keeps it does not release it in the end.
        """
        self._shared = shared
        self._released = False
        self._renewed = asyncio.Event()
        self._keeper: Keeper | None = None

    async def __aenter__(self) -> Self:
        self._keeper = Keeper(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        await self._keeper.aclose()

    @property
    @abstractmethod
    def _what(self) -> str:
        """What the log calls it."""

    @property
    @abstractmethod
    def ttl(self) -> float:
        """Seconds that the lease lives without being renewed."""

    @property
    @abstractmethod
    def remaining(self) -> float:
        """Seconds that the lease has left, reckoned from the server's last answer to this object; 0 when it is over."""

    @abstractmethod
    async def renew(self, ttl: float | None = None) -> None:
        """Begins the lease's time to live anew."""

    @abstractmethod
    async def release(self) -> None:
        """Gives the lease back. Idempotent: nothing happens when it has ended already."""

    def _note_renewed(self) -> None:
        self._renewed.set()

    def _note_released(self) -> None:
        self._released = True
        self._renewed.set()

    @property
    def _seconds_between_renewals(self) -> float:
        # The server ends shared leases that were not renewed for a minute where it needs their places.
        return min(self.ttl / 3, _MOST_SECONDS_OF_SHARED) if self._shared else self.ttl / 3

    async def _keep(self) -> None:
        """Renews the lease whenever a third of its time has gone by, until it is released or lost.

        A renewal that fails is tried again for as long as that takes, also when the time to live is over: only the
        server knows whether the lease is, since a restart begins its time anew.
        """
        failures, warned = 0, False
        pause = self._seconds_between_renewals
        while not await self._ended_within(pause):
            try:
                await self.renew()
            except (SnapshotLost, LockLost, UsageError) as error:
                if not self._released:
                    _log.warning("%s is not renewed any more: %s", self._what, error)
                return
            except ScanKvError as error:
                failures += 1
                pause = min(backoff(failures), self._seconds_between_renewals)
                if not self.remaining and not warned:
                    warned = True
                    _log.warning("%s could not be renewed in its time to live: %s", self._what, error)
            else:
                failures, warned = 0, False
                pause = self._seconds_between_renewals

    async def _ended_within(self, pause: float) -> bool:
        """Waits until nobody has renewed the lease for so long; True when it was released instead."""
        while not self._released:
            self._renewed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._renewed.wait()
            except TimeoutError:
                return False
            # The holder has renewed it, perhaps for a shorter time than before.
            pause = self._seconds_between_renewals
        return True


class Keeper:
    """Keeps a lease by a task that renews it, from its making until `aclose`, which releases the lease."""

    def __init__(self, lease: Lease) -> None:
        """Starts the task, in the running event loop."""
        self._lease = lease
        self._task = asyncio.create_task(lease._keep(), name=f"renewal of {lease._what}")

    async def aclose(self) -> None:
        """Ends the task and releases the lease, within 5 s also when the caller is being cancelled.

        A shared lease is left to its other holders. A release that fails is noted in the log and not raised: the lease
        expires by itself.
        """
        failure = f"the server did not answer within {_RELEASE_SECONDS:g} s"
        with anyio.move_on_after(_RELEASE_SECONDS, shield=True):
            self._task.cancel()
            await asyncio.wait([self._task])
            if self._lease._shared:
                return
            try:
                await self._lease.release()
            except ScanKvError as error:
                failure = error.message
            else:
                return
        _log.info("%s was not released and expires by itself: %s", self._lease._what, failure)


def ttl_millis(ttl: float) -> int:
    """A time to live in milliseconds. Raises UsageError when it is out of its range."""
    valid = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if not valid or not MIN_LEASE_SECONDS <= ttl <= MAX_LEASE_SECONDS:
        raise UsageError(
            f"ttl is {MIN_LEASE_SECONDS:g} to {MAX_LEASE_SECONDS:,.0f} seconds (7 days), not {ttl!r}", option="ttl"
        )
    return round(ttl * 1000)
