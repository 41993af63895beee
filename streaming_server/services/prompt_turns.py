"""Shares few slots for receiving messages between connections."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final


class PromptTurns:
    """Lets a few calls at once receive a message. Connections take turns, whatever number of calls each has.

    With one queue for all, a client that begins calls without sending their messages would delay every other client by
    the time of all its calls.

    Bound to the event loop.

    Args:
        slots: How many calls may receive at once.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        # The calls that wait, by connection. The connection that is next comes first.
        self._waiting: Final[dict[str, deque[asyncio.Future[None]]]] = {}

    async def acquire(self, peer: str) -> bool:
        """Takes a slot as soon as it is the turn of a connection. Returns whether the call had to wait for it."""
        if self._free:
            self._free -= 1
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            else:
                self._forget(peer, turn)
            raise
        return True

    def release(self) -> None:
        """Gives a slot to the connection that is next, or keeps it free."""
        while self._waiting:
            peer, turns = next(iter(self._waiting.items()))
            del self._waiting[peer]
            turn = turns.popleft()
            if turns:
                self._waiting[peer] = turns
            # A call that was cancelled in this turn of the event loop is still in the queue.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _forget(self, peer: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(peer, deque())
        with suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(peer, None)
