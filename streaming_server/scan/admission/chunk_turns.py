"""Scans take turns on the event loop, and give way to calls that need little of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# gRPC starts the handler of a call in the fifth turn after the event of its arrival.
_TURNS_AFTER_EVENT: Final = 7
# When a call arrives, two threads of gRPC have to wake up before its event can be seen. With 1 turn here, a call waited
# for 1.0 complete slices on average; with 3 or 5 turns, for 0.4.
_TURNS_APART: Final = 4
# A turn without work takes 20 to 40 microseconds, so turns between slices are left out while there are no calls.
_RECENT_SECONDS: Final = 1.0
# A slice takes about 1 ms of the event loop. Scans get at least a quarter of the event loop, however many calls arrive.
_LONGEST_WAIT_SECONDS: Final = 0.003


class ChunkTurns:
    """Decides when a scan may do its next slice of work. Bound to the event loop.

    A slice takes the event loop for about a millisecond, and the shortest call needs about eight turns of the event
    loop. If scans did a slice in each of these turns, such a call would take as long as eight slices. So a scan waits
    until no new call is being answered. If a call has arrived in the last second, each event may be another call, so a
    scan also waits for some turns after an event. The scan that is next waits for at most 3 ms. Calls that are still
    running by then are not waited for again.

    Args:
        turns_with_events: Returns a number that grows with each turn before which an event has arrived. None: an event
            is assumed for each slice.
    """

    def __init__(self, turns_with_events: Callable[[], int] | None = None) -> None:
        self._turns_with_events = turns_with_events
        self._events_seen = 0
        # New calls that are being answered.
        self._calls: set[object] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns_left = 0
        self._is_watching = False
        self._last_call = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def begin_call(self, call: object) -> None:
        """Records that a call has arrived. Scans wait for its end."""
        self._calls.add(call)
        self._last_call = asyncio.get_running_loop().time()

    def end_call(self, call: object) -> None:
        """Records that a call has been answered, or will not be answered soon."""
        self._calls.discard(call)
        if self._waiting and not self._calls and not self._turns_left:
            self._give()

    async def wait(self) -> None:
        """Returns when a scan may do its next slice of work."""
        if not self._calls and not self._turns_left and not self._waiting:
            self._record_turn()
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._timer = loop.call_later(_LONGEST_WAIT_SECONDS, self._stop_waiting_for_calls)
        await turn

    def _record_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._turns_left:
            loop.call_soon(self._count_turn)
        self._turns_left = 1
        if loop.time() - self._last_call >= _RECENT_SECONDS:
            self._is_watching = False
        elif self._turns_with_events is None:
            self._turns_left = _TURNS_AFTER_EVENT
        else:
            self._turns_left = _TURNS_APART
            self._is_watching, self._events_seen = True, self._turns_with_events()

    def _count_turn(self) -> None:
        if self._is_watching and self._turns_with_events is not None:
            events = self._turns_with_events()
            if events != self._events_seen:
                self._events_seen, self._turns_left = events, _TURNS_AFTER_EVENT
        self._turns_left -= 1
        if self._turns_left:
            asyncio.get_running_loop().call_soon(self._count_turn)
        elif self._waiting and not self._calls:
            self._give()

    def _stop_waiting_for_calls(self) -> None:
        self._timer = None
        self._calls.clear()
        self._give()

    def _give(self) -> None:
        """Lets the scan that has waited longest do a slice of work."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._record_turn()
                break
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LONGEST_WAIT_SECONDS, self._stop_waiting_for_calls)
