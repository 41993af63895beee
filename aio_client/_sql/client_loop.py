"""The event loop of an asynchronous client, for the threads of DuckDB."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Result = TypeVar("_Result")


class ClientLoop:
    """Runs calls of other threads in the event loop in which it was made; see `LoopThread`.

    The calls have the context of the task that made it, whose token they send. DuckDB's own threads have none.

    Attributes:
        address: The server of the client.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._context = contextvars.copy_context()

    def call(self, function: Callable[..., Awaitable[_Result]], *args: object) -> _Result:
        """Calls a coroutine function in the event loop and waits for its result."""

        async def run() -> _Result:
            return await function(*args)

        # A copy, since a context can be entered by one thread only.
        return self._context.copy().run(asyncio.run_coroutine_threadsafe, run(), self._loop).result()

    def soon(self, function: Callable[[], Any]) -> None:
        """Lets the event loop call a function that does not wait. Does nothing if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def is_in_loop(self) -> bool:
        """Returns whether the caller is the thread of the event loop."""
        return threading.get_ident() == self._thread
