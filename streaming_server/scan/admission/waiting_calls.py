"""Calls that are not answered before what they ask about has changed: woken by what changes it, not by looking."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from scankv.model.errors import ServerDraining
from streaming_server.scan.admission.wakeup_throttle import WakeupThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.errors import ScanKvError


class Changing(Protocol):
    """What a version is of: a table, or a lease on a snapshot. Hashable by identity."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has a listener called whenever the version may be another, until the function returned is called."""


class Waited(Protocol):
    """What a call asks about."""

    @property
    def changing(self) -> Changing:
        """What tells of changes."""

    @property
    def version(self) -> bytes:
        """The version that it has, as far as the call knows."""

    @property
    def again(self) -> Callable[[], bytes | None]:
        """Gives the version that it has now; None when that is not known."""


@dataclass(slots=True)
class _Group:
    """Calls that wait for the same."""

    stop: Callable[[], None]
    calls: WakeupThrottle = field(default_factory=WakeupThrottle)


class WaitingCalls:
    """The calls of a server that wait. Bound to its event loop.

    All that wait for another version of the same share one listener, which looks at the version once for each commit;
    each call has a timer for its own time. Nothing else is held for them: no thread, no mutex, no iterator.

    Args:
        max_calls: How many may wait.

    Attributes:
        waiting: How many do.
    """

    def __init__(self, max_calls: int) -> None:
        self.waiting = 0
        self._max_calls = max_calls
        self._groups: dict[tuple[Changing, bytes], _Group] = {}
        self._closed: ScanKvError | None = None

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there may be."""
        return self.waiting >= self._max_calls

    async def changed(self, asked: Waited, seconds: float) -> None:
        """Returns when the version may be another, or after so many seconds. Call it without awaiting after `again`.

        Raises:
            ServerDraining: The server is shutting down.
        """
        if self._closed is None:
            group = self._group(asked)
            self.waiting += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await group.calls.wait()
            finally:
                self.waiting -= 1
                if not group.calls:
                    self._end((asked.changing, asked.version), group)
        if self._closed is not None:
            raise copy(self._closed)

    def close(self) -> None:
        """Ends all that wait, and lets no others wait."""
        self._closed = ServerDraining("the server is shutting down: ask again once it is back")
        for key, group in list(self._groups.items()):
            self._end(key, group)
            group.calls.wake()

    def _group(self, asked: Waited) -> _Group:
        key = asked.changing, asked.version
        there = self._groups.get(key)
        if there is not None:
            return there
        again, version = asked.again, asked.version

        def look() -> None:
            if again() != version:
                self._end(key, group)
                group.calls.wake()

        group = self._groups[key] = _Group(asked.changing.on_change(look))
        return group

    def _end(self, key: tuple[Changing, bytes], group: _Group) -> None:
        if self._groups.get(key) is group:
            del self._groups[key]
            group.stop()
