"""Answers that many ask for: computed once, kept while small and current, and given again without reading anything."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ScanKvError
from streaming_server.scan.admission.wakeup_throttle import Crowd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_SHARE: Final = 16
"""One answer has at most this part of the cache, so that it does not drive out all others."""
_ENTRY_BYTES: Final = 512
"""About what keeping an answer takes beside its bytes."""
_LONG_BYTES: Final = 1024 * 1024
"""To copy as much takes as long as to have a thread do it."""
_VALID_QUERIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What was computed. Immutable.

    Attributes:
        version: Of the view that was read, which is durable.
        response: The response, serialised, as it is given to all.
        for_the_first: Further fields of it, serialised, for the call that had it computed: what that cost.
    """

    version: bytes
    response: bytes
    for_the_first: bytes = b""


class Computation:
    """One computation that is under way, and how many wait for it.

    `opening` must be called just before its view is taken: up to then everybody may join, because what was acknowledged
    before they came will be in it.

    Attributes:
        waiting: Those who wait for it.
        task: Runs it; its result is the answer, or the error for all who wait.
        current: The version that its view would have now; None when that is not known.
    """

    def __init__(self, current: Callable[[], bytes | None]) -> None:
        self.waiting = Crowd()
        self.task: asyncio.Task[Answer | ScanKvError]
        self.current = current
        self._begun = False
        self._floor: bytes | None = None

    def opening(self) -> None:
        """Notes that the view is taken from now on."""
        self._begun, self._floor = True, self.current()

    def opened(self, version: bytes) -> None:
        """Notes the version of the view."""
        self._floor = version

    def may_join(self, current: bytes) -> bool:
        """Whether its answer has all that is in the current version."""
        return not self._begun or self._floor == current


class Answers:
    """The answers of a server. Bound to its event loop.

    Bounded: all answers kept take at most so many bytes, the one that was asked for longest ago goes first, and of one
    query only the newest is kept. What is under way is not counted in it.

    Args:
        max_bytes: Memory for answers; 0 keeps none.

    Attributes:
        unchanged: How many answers were that nothing has changed.
        cached: How many were computed before, or at the same time, for another call.
        computed: How many were computed.
        cached_bytes: The memory that is used.
    """

    def __init__(self, max_bytes: int) -> None:
        self.unchanged = self.cached = self.computed = self.cached_bytes = 0
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Answer] = OrderedDict()
        self._running: dict[bytes, Computation] = {}
        self._valid: OrderedDict[tuple[bytes, str, int], None] = OrderedDict()

    def is_valid(self, query: bytes, incarnation: str, schema_id: int) -> bool:
        """Whether a query was found to be one that can be answered for this schema of this table."""
        return (query, incarnation, schema_id) in self._valid

    def note_valid(self, query: bytes, incarnation: str, schema_id: int) -> None:
        """Remembers that a query can be answered for this schema of this table, for a while."""
        self._valid[query, incarnation, schema_id] = None
        if len(self._valid) > _VALID_QUERIES:
            self._valid.popitem(last=False)

    async def answer(
        self,
        query: bytes,
        current: Callable[[], bytes | None],
        compute: Callable[[Computation], Awaitable[Answer]],
    ) -> bytes:
        """The answer to a query as of now, or later: from memory, from a computation under way, or computed.

        A computation goes on as long as somebody waits for it, whoever began it; its error goes to all who wait.

        Args:
            query: Names what is asked; the same for the same question.
            current: The version that its view would have now, without awaiting; None when that is not known.
            compute: Computes the answer. Must call `opening` of what it is given.

        Raises:
            ScanKvError: What `compute` raised.
        """
        version = current()
        kept = self._kept.get(query)
        if kept is not None and kept.version == version:
            self._kept.move_to_end(query)
            self.cached += 1
            return kept.response
        running = self._running.get(query)
        if running is not None and version is not None and running.may_join(version):
            response = (await self._result(query, running)).response
            self.cached += 1
            return response
        running = Computation(current)
        running.task = asyncio.create_task(self._compute(query, running, compute))
        running.task.add_done_callback(_retrieve)
        running.task.add_done_callback(lambda _: running.waiting.wake())
        self._running[query] = running
        answer = await self._result(query, running)
        if len(answer.response) < _LONG_BYTES:
            return answer.response + answer.for_the_first
        # A thread joins bytes over a MiB without the interpreter lock.
        return await asyncio.to_thread(b"".join, (answer.response, answer.for_the_first))

    async def _compute(
        self, query: bytes, running: Computation, compute: Callable[[Computation], Awaitable[Answer]]
    ) -> Answer | ScanKvError:
        try:
            answer = await compute(running)
        except ScanKvError as error:
            # Without its traceback, which would keep alive whatever was computed.
            return copy(error)
        finally:
            self._leave(query, running)
        self.computed += 1
        # An older one would never be asked for again: no version comes back.
        if answer.version == running.current():
            self._keep(query, answer)
        return answer

    async def _result(self, query: bytes, running: Computation) -> Answer:
        try:
            await running.waiting.wait()
        finally:
            if not running.waiting and not running.task.done():
                # Nobody joins it from now on.
                self._leave(query, running)
                running.task.cancel()
        answer = running.task.result()
        if isinstance(answer, ScanKvError):
            # One for each, because raising it writes to it.
            raise copy(answer)
        return answer

    def _leave(self, query: bytes, running: Computation) -> None:
        if self._running.get(query) is running:
            del self._running[query]

    def _keep(self, query: bytes, answer: Answer) -> None:
        self._drop(query)
        size = _size(answer)
        if size > self._max_bytes // _SHARE:
            return
        while self.cached_bytes + size > self._max_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[query] = answer
        self.cached_bytes += size

    def _drop(self, query: bytes) -> None:
        answer = self._kept.pop(query, None)
        if answer is not None:
            self.cached_bytes -= _size(answer)


def _retrieve(task: asyncio.Task[Answer | ScanKvError]) -> None:
    """Looks at how a task has ended, so that asyncio does not complain where nobody waited for it any more."""
    if not task.cancelled():
        task.exception()


def _size(answer: Answer) -> int:
    return len(answer.response) + len(answer.for_the_first) + _ENTRY_BYTES
