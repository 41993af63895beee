"""Calls that are made while one is in flight share the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scankv.model.tracing import TraceContext, Tracer

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _WaitingItem(NamedTuple):
    """An item that waits for a call.

    Attributes:
        item: The item.
        future: Gets its result.
        context: The trace context of its caller. None: calls have no spans.
    """

    item: Any
    future: asyncio.Future[Any]
    context: TraceContext | None


class SharedCalls(Generic[_Item, _Result]):
    """Sends the items of concurrent callers to the server in as few calls as possible. Belongs to the event loop.

    A lone item is sent at once. Items that arrive while a call is in flight go out together with the next one, so
    nothing waits for a timer, and the more callers there are, the fewer calls they need. One call is in flight at a
    time: two are no faster, because the server is what limits them.

    Args:
        send: Makes a call with some items. Returns the result of each, or its own error. What it raises is the error of
            all.
        size: What an item counts towards `most`.
        most: The most that one call may have. An item that counts more is sent alone.
        tracer: Makes the spans of calls. A call with items of several callers belongs to the trace of the first one.
            None: calls have no spans.
    """

    def __init__(
        self,
        send: Callable[[Sequence[_Item]], Awaitable[Sequence[_Result | Exception]]],
        size: Callable[[_Item], int],
        most: int,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._send = send
        self._size = size
        self._most = most
        self._is_busy = False
        self._waiting: deque[_WaitingItem] = deque()
        self._draining: asyncio.Task[None] | None = None

    async def call(self, item: _Item) -> _Result:
        """Returns the result of one item. A caller that is cancelled before its item is sent takes it back.

        Raises:
            Exception: The error of the item, or of its call.
        """
        if self._is_busy:
            future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
            self._waiting.append(_WaitingItem(item, future, None if self._tracer is None else self._tracer.current()))
            return await future
        self._is_busy = True
        try:
            (result,) = await self._send([item])
        finally:
            if self._waiting:
                self._draining = asyncio.create_task(self._drain())
            else:
                self._is_busy = False
        if isinstance(result, Exception):
            raise result
        return result

    async def _drain(self) -> None:
        """Sends everything that waits, one call after another."""
        batch: list[_WaitingItem] = []
        try:
            while batch := self._next_batch():
                await self._call_for(batch)
                # Callers that now have their result may call again at once. Otherwise the first of them would make a
                # lone call, for which all others would have to wait.
                await asyncio.sleep(0)
        finally:
            # The callers wait for nothing else, so none may be left, whatever has ended this task.
            for waiting in (*batch, *self._waiting):
                waiting.future.cancel()
            self._waiting.clear()
            self._is_busy = False

    def _next_batch(self) -> list[_WaitingItem]:
        batch: list[_WaitingItem] = []
        size = 0
        while self._waiting:
            first = self._waiting[0]
            if not first.future.done():  # else its caller was cancelled
                size += self._size(first.item)
                if batch and size > self._most:
                    break
                batch.append(first)
            self._waiting.popleft()
        return batch

    async def _call_for(self, batch: Sequence[_WaitingItem]) -> None:
        context = batch[0].context
        try:
            # Otherwise all calls would belong to the trace of the caller that has started this task.
            with nullcontext() if self._tracer is None or context is None else self._tracer.within(context):
                results = await self._send([waiting.item for waiting in batch])
        except Exception as error:
            # A copy for each, because raising an error adds to its traceback.
            results = [copy(error) for _ in batch]
        for (_, future, _), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
