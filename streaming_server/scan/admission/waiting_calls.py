"""Calls that wait until a table or a lease changes. A change wakes them; they do not poll."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from scankv.model.errors import ServerDraining
from scankv.model.tables.expiry import TICK_MICROS
from streaming_server.current_call import count_waiting
from streaming_server.scan.admission.wakeup_throttle import WakeupThrottle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scankv.model.errors import ScanKvError


_TICK_SECONDS: Final = TICK_MICROS / 1e6


class VersionSource(Protocol):
    """A table, or a lease on a snapshot, whose version may change. Hashed by identity."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` whenever the version may have changed, until the returned function is called."""


class VersionQuery(Protocol):
    """The version that a waiting call knows, and how to get the current one."""

    @property
    def source(self) -> VersionSource:
        """The table or lease that has the version."""

    @property
    def version(self) -> bytes:
        """The version that the call knows."""

    @property
    def again(self) -> Callable[[], bytes | None]:
        """Returns the current version; None if it is unknown."""

    @property
    def ticks(self) -> bool:
        """Whether the version may change without a notification of its source, at most once a second."""


@dataclass(slots=True)
class _Group:
    """Calls that wait for the same change."""

    stop: Callable[[], None]
    timer: asyncio.TimerHandle | None = None
    calls: WakeupThrottle = field(default_factory=WakeupThrottle)


class WaitingCalls:
    """The waiting calls of a server. Bound to its event loop.

    All calls that wait for the same change share one listener, which checks the version once per commit, and where rows
    expire, one timer, which checks it once a second. Each call has a timer for its timeout. A waiting call takes
    nothing else: no thread, no mutex, no iterator.

    Args:
        max_calls: The most calls that may wait.

    Attributes:
        waiting: The number of calls that wait.
    """

    def __init__(self, max_calls: int) -> None:
        self.waiting = 0
        self._max_calls = max_calls
        self._groups: dict[tuple[VersionSource, bytes], _Group] = {}
        self._closed: ScanKvError | None = None

    @property
    def is_full(self) -> bool:
        """Whether no further call may wait."""
        return self.waiting >= self._max_calls

    async def wait_for_change(self, asked: VersionQuery, seconds: float, *, is_counted: bool = True) -> None:
        """Returns when the version may have changed, or after `seconds`.

        The call counts as one that waits, unless another process counts it. Do not await anything between `again` and
        this call, or a change in between goes unnoticed.

        Args:
            asked: The version that the call knows.
            seconds: How long it may wait.
            is_counted: Whether the call counts as waiting.

        Raises:
            ServerDraining: The server is shutting down.
        """
        if self._closed is None:
            group = self._group(asked)
            try:
                with self.count() if is_counted else count_waiting(), suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await group.calls.wait()
            finally:
                if not group.calls:
                    self._end((asked.source, asked.version), group)
        self.check_open()

    def check_open(self) -> None:
        """Raises ServerDraining if the server is shutting down."""
        if self._closed is not None:
            raise copy(self._closed)

    @contextmanager
    def count(self) -> Iterator[None]:
        """Counts the current call as one that waits, for the length of the block."""
        self.waiting += 1
        try:
            with count_waiting():
                yield
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Wakes all waiting calls with an error, and accepts no others."""
        self._closed = ServerDraining("the server is shutting down: try again once it has restarted")
        for key, group in list(self._groups.items()):
            self._end(key, group)
            group.calls.wake()

    def _group(self, asked: VersionQuery) -> _Group:
        key = asked.source, asked.version
        there = self._groups.get(key)
        if there is not None:
            return there
        again, version = asked.again, asked.version

        def look() -> None:
            if again() != version:
                self._end(key, group)
                group.calls.wake()

        def tick() -> None:
            look()
            if self._groups.get(key) is group:
                group.timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, tick)

        group = self._groups[key] = _Group(asked.source.on_change(look))
        if asked.ticks:
            group.timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, tick)
        return group

    def _end(self, key: tuple[VersionSource, bytes], group: _Group) -> None:
        if self._groups.get(key) is group:
            del self._groups[key]
            group.stop()
            if group.timer is not None:
                group.timer.cancel()
