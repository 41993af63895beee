"""The result cache: a result that many callers ask for is computed once, and served again until the table changes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ScanKvError
from streaming_server.scan.admission.wakeup_throttle import WakeupThrottle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# A result takes at most this fraction of the cache, so that a single one cannot evict all the others.
_MAX_RESULT_FRACTION: Final = 16
# The approximate memory of an entry in addition to its bytes.
_ENTRY_BYTES: Final = 512
# Copying this much takes as long as handing the copy to a thread.
_LONG_BYTES: Final = 1024 * 1024
_VALID_QUERIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of a query. Immutable.

    Attributes:
        version: The version of the view that was read. The view is durable.
        response: The serialized response, the same for all callers.
        first_caller_fields: More serialized fields of the response, for the caller that caused the computation: its
            cost.
    """

    version: bytes
    response: bytes
    first_caller_fields: bytes = b""


class Computation:
    """A computation in progress, and the callers that wait for its result.

    Call `begin_view` immediately before taking the view. Until then any caller may join, because the view will contain
    everything that was acknowledged before the caller came.

    Attributes:
        waiting: The callers that wait for the result.
        task: Runs the computation. Its result is the query's result, or the error for all callers.
        current: Returns the version that the view would have now, None when it is unknown.
    """

    def __init__(self, current: Callable[[], bytes | None]) -> None:
        self.waiting = WakeupThrottle()
        self.task: asyncio.Task[CachedResult | ScanKvError]
        self.current = current
        self._view_begun = False
        self._view_version: bytes | None = None

    def begin_view(self) -> None:
        """Records that the view is being taken."""
        self._view_begun, self._view_version = True, self.current()

    def set_view_version(self, version: bytes) -> None:
        """Records the version of the view."""
        self._view_version = version

    def may_join(self, current: bytes) -> bool:
        """Whether the result will contain everything that the current version contains."""
        return not self._view_begun or self._view_version == current


class ResultCache:
    """The cached results of a server. Bound to the server's event loop.

    The cached results together take at most `max_bytes`; the least recently used one is evicted first. Only the newest
    result of a query is kept. Results that are still being computed are not counted.

    Args:
        max_bytes: Memory for cached results. 0 keeps none.

    Attributes:
        unchanged: The number of responses that reported no change.
        cached: The number of responses that came from the cache, or from a computation that another caller started.
        computed: The number of computed results.
        cached_bytes: Memory in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self.unchanged = self.cached = self.computed = self.cached_bytes = 0
        self._max_bytes = max_bytes
        self._results: OrderedDict[bytes, CachedResult] = OrderedDict()
        self._running: dict[bytes, Computation] = {}
        self._valid: OrderedDict[tuple[bytes, str, int], None] = OrderedDict()

    def is_valid(self, query: bytes, incarnation: str, schema_id: int) -> bool:
        """Whether a query is known to be valid for this schema of this table."""
        return (query, incarnation, schema_id) in self._valid

    def remember_valid(self, query: bytes, incarnation: str, schema_id: int) -> None:
        """Remembers that a query is valid for this schema of this table, until 10,000 others have followed."""
        self._valid[query, incarnation, schema_id] = None
        if len(self._valid) > _VALID_QUERIES:
            self._valid.popitem(last=False)

    def has(self, query: bytes) -> bool:
        """Whether a result of a query is cached, of any version."""
        return query in self._results

    def find(self, query: bytes, version: bytes | None) -> CachedResult | None:
        """Returns the result of a query for a version. None: no such result is cached, or the version is unknown."""
        result = self._results.get(query)
        if result is None or result.version != version:
            return None
        self._results.move_to_end(query)
        return result

    def add(self, query: bytes, result: CachedResult) -> None:
        """Adds the share of a tablet in a result, which no statistic counts. The view of the share must be durable."""
        self._store(query, result)

    async def get_or_compute(
        self,
        query: bytes,
        current: Callable[[], bytes | None],
        compute: Callable[[Computation], Awaitable[CachedResult]],
    ) -> bytes:
        """Returns the response to a query as of now or later: cached, from a running computation, or computed.

        A computation runs as long as at least one caller waits for it, even when the caller that started it has given
        up. All waiting callers get its error.

        Args:
            query: Identifies the query. Equal queries have equal bytes.
            current: Returns the version that the view would have now, without awaiting; None when it is unknown.
            compute: Computes the result. It must call `begin_view` of its argument.

        Raises:
            ScanKvError: What `compute` raised.
        """
        version = current()
        cached_result = self.find(query, version)
        if cached_result is not None:
            self.cached += 1
            return cached_result.response
        running = self._running.get(query)
        if running is not None and version is not None and running.may_join(version):
            response = (await self._wait_for(query, running)).response
            self.cached += 1
            return response
        running = Computation(current)
        running.task = asyncio.create_task(self._compute(query, running, compute))
        running.task.add_done_callback(_consume_exception)
        running.task.add_done_callback(lambda _: running.waiting.wake())
        self._running[query] = running
        result = await self._wait_for(query, running)
        if len(result.response) < _LONG_BYTES:
            return result.response + result.first_caller_fields
        # A thread joins more than a MiB of bytes without the interpreter lock.
        return await asyncio.to_thread(b"".join, (result.response, result.first_caller_fields))

    async def _compute(
        self, query: bytes, running: Computation, compute: Callable[[Computation], Awaitable[CachedResult]]
    ) -> CachedResult | ScanKvError:
        try:
            result = await compute(running)
        except ScanKvError as error:
            # The copy has no traceback, which would keep the computed data alive.
            return copy(error)
        finally:
            self._forget(query, running)
        self.computed += 1
        # Versions do not recur, so an outdated result would never be served.
        if result.version == running.current():
            self._store(query, result)
        return result

    async def _wait_for(self, query: bytes, running: Computation) -> CachedResult:
        try:
            await running.waiting.wait()
        finally:
            if not running.waiting and not running.task.done():
                # No caller waits any more. Forgetting the computation keeps new callers from joining it.
                self._forget(query, running)
                running.task.cancel()
        result = running.task.result()
        if isinstance(result, ScanKvError):
            # Each caller gets its own copy, because raising an exception modifies it.
            raise copy(result)
        return result

    def _forget(self, query: bytes, running: Computation) -> None:
        if self._running.get(query) is running:
            del self._running[query]

    def _store(self, query: bytes, result: CachedResult) -> None:
        self._evict(query)
        size = _size_of(result)
        if size > self._max_bytes // _MAX_RESULT_FRACTION:
            return
        while self.cached_bytes + size > self._max_bytes:
            self._evict(next(iter(self._results)))
        self._results[query] = result
        self.cached_bytes += size

    def _evict(self, query: bytes) -> None:
        result = self._results.pop(query, None)
        if result is not None:
            self.cached_bytes -= _size_of(result)


def _consume_exception(task: asyncio.Task[CachedResult | ScanKvError]) -> None:
    """Retrieves the task's exception, so that asyncio does not log it when no caller waits any more."""
    if not task.cancelled():
        task.exception()


def _size_of(result: CachedResult) -> int:
    return len(result.response) + len(result.first_caller_fields) + _ENTRY_BYTES
