"""Renews leases in time, and releases them at the end."""

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

# A release that the server does not answer must not delay the end of the context: the lease expires by itself.
_RELEASE_SECONDS: Final = 5.0
_MAX_SECONDS_OF_SHARED: Final = 20.0

_log = logging.getLogger("aio_client")


class RenewableLease(ABC):
    """A right at the server that ends when it is released, or not renewed within its time to live.

    `async with` renews it, and releases it at the end.
    """

    def __init__(self, *, shared: bool = False) -> None:
        """Starts as a lease that was renewed just now. Must run in the event loop.

        Args:
            shared: Whether the lease has other holders, so that `async with` does not release it.
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
    def _label(self) -> str:
        """The lease's name in log messages."""

    @property
    @abstractmethod
    def ttl(self) -> float:
        """The time to live in seconds: the lease ends unless it is renewed within it."""

    @property
    @abstractmethod
    def remaining(self) -> float:
        """Seconds until the lease ends, counted from the server's last answer to this object. 0 when it has ended."""

    @abstractmethod
    async def renew(self, ttl: float | None = None) -> None:
        """Starts the lease's time to live again."""

    @abstractmethod
    async def release(self) -> None:
        """Ends the lease. Idempotent: does nothing if the lease has ended already."""

    def _on_renewed(self) -> None:
        self._renewed.set()

    def _on_released(self) -> None:
        self._released = True
        self._renewed.set()

    @property
    def _seconds_between_renewals(self) -> float:
        # A server that cannot keep another snapshot ends shared leases that were not renewed for a minute.
        return min(self.ttl / 3, _MAX_SECONDS_OF_SHARED) if self._shared else self.ttl / 3

    async def _keep(self) -> None:
        """Renews the lease after every third of its time to live, until it is released or lost.

        A failed renewal is repeated, even after the time to live: only the server knows whether the lease has ended,
        because a restart of the server starts the time to live again.
        """
        failures, warned = 0, False
        pause = self._seconds_between_renewals
        while not await self._is_released_within(pause):
            try:
                await self.renew()
            except (SnapshotLost, LockLost, UsageError) as error:
                if not self._released:
                    _log.warning("%s is no longer renewed: %s", self._label, error)
                return
            except ScanKvError as error:
                failures += 1
                pause = min(backoff(failures), self._seconds_between_renewals)
                if not self.remaining and not warned:
                    warned = True
                    _log.warning("%s could not be renewed in its time to live: %s", self._label, error)
            else:
                failures, warned = 0, False
                pause = self._seconds_between_renewals

    async def _is_released_within(self, pause: float) -> bool:
        """Waits until the lease was not renewed for `pause` seconds. Returns True if it was released instead."""
        while not self._released:
            self._renewed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._renewed.wait()
            except TimeoutError:
                return False
            # The holder has renewed the lease, perhaps with a shorter time to live.
            pause = self._seconds_between_renewals
        return True


class Keeper:
    """A task that renews a lease. `aclose` ends the task and releases the lease."""

    def __init__(self, lease: RenewableLease) -> None:
        """Starts the task, in the running event loop."""
        self._lease = lease
        self._task = asyncio.create_task(lease._keep(), name=f"renewal of {lease._label}")

    async def aclose(self) -> None:
        """Ends the task and releases the lease, within 5 s even while the caller is being cancelled.

        A shared lease is left to its other holders. A failed release is logged and not raised, because the lease
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
        _log.info("%s was not released and expires by itself: %s", self._lease._label, failure)


def ttl_millis(ttl: float) -> int:
    """Returns a time to live in milliseconds. Raises UsageError if it is out of range."""
    valid = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if not valid or not MIN_LEASE_SECONDS <= ttl <= MAX_LEASE_SECONDS:
        raise UsageError(
            f"ttl must be between {MIN_LEASE_SECONDS:g} and {MAX_LEASE_SECONDS:,.0f} seconds (7 days), not {ttl!r}",
            option="ttl",
        )
    return round(ttl * 1000)
