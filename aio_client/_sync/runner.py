"""The event loop of a blocking client: an asynchronous client in a thread of its own, and all ways to close it."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from aio_client._client.client import Client
from aio_client._scan.read_ahead import WAKE_SECONDS
from scankv.model.errors import UsageError
from scankv.model.short_tracebacks import SHORT_TRACEBACK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_client._transport.config import ClientConfig

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _RunnerState:
    """The objects that the thread has made, and the event that ends it."""

    portal: BlockingPortal
    client: Client
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event


class Runner:
    """Runs one asynchronous client in a thread, and the calls of any thread in its event loop.

    Thread-safe; unusable after a fork. Closed by `close`, when it is dropped, and before the interpreter exits.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Starts the thread and opens the client."""
        self._pid = os.getpid()
        self._closed = False
        started: Future[_RunnerState] = Future()
        self._thread = threading.Thread(target=_run, args=(config, started), daemon=True, name="scankv-client")
        self._thread.start()
        self._running = started.result()
        _runners.add(self)

    def __del__(self) -> None:
        # May run in any thread, even the client's own, so it must not wait.
        if hasattr(self, "_running") and not self._closed and os.getpid() == self._pid:
            self._stop()

    @property
    def client(self) -> Client:
        """The asynchronous client, whose coroutines must run in `call`."""
        return self._running.client

    @property
    def address(self) -> str:
        """The server of the client."""
        return self.client.config.address

    def call(self, function: Callable[..., Awaitable[_Result]], *args: object) -> _Result:
        """Calls a coroutine function in the event loop and waits for its result. An interrupt of the wait cancels it.

        Raises:
            UsageError: The client is closed, or was made before a fork.
        """
        with SHORT_TRACEBACK:
            return self.result(self.start(function, *args))

    def result(self, future: Future[_Result]) -> _Result:
        """Waits for a call that `start` has made. An interrupt of the wait cancels it."""
        try:
            try:
                with SHORT_TRACEBACK:
                    return wait_for(future)
            except BaseException:
                future.cancel()
                raise
        except RuntimeError as error:
            # An interrupt within `threading.Condition` leaves it without its lock, which raises this error.
            if (interrupt := error.__context__) is None or isinstance(interrupt, Exception | asyncio.CancelledError):
                raise
            raise interrupt from None

    def start(self, function: Callable[..., Awaitable[_Result]], *args: object) -> Future[_Result]:
        """Calls a coroutine function in the event loop without waiting. Raises UsageError as `call` does."""
        address = self.address
        if os.getpid() != self._pid:
            raise UsageError(
                "the client was made before this process was forked; connect in the child process instead",
                address=address,
            )
        try:
            return self._running.portal.start_task_soon(function, *args)
        except RuntimeError as error:
            if threading.get_ident() == self._thread.ident or not self._closed:
                raise
            raise UsageError(f"the client of {address} is closed", address=address) from error

    def soon(self, function: Callable[[], object]) -> None:
        """Lets the event loop call a function that does not wait. Does nothing if the client is closed."""
        if os.getpid() == self._pid:
            with suppress(RuntimeError):
                self._running.loop.call_soon_threadsafe(function)

    def is_in_loop(self) -> bool:
        """Returns whether the caller is the event loop's own thread, which must not wait."""
        return threading.get_ident() == self._thread.ident

    def close(self) -> None:
        """Ends all scans, closes the client, and waits for the thread. Idempotent."""
        if os.getpid() != self._pid:
            return
        if not self._closed:
            self._stop()
        if not self.is_in_loop():
            self._thread.join()

    def _stop(self) -> None:
        self._closed = True
        if not self._running.loop.is_closed():
            self._running.loop.call_soon_threadsafe(self._running.stopping.set)


def wait_for(future: Future[_Result]) -> _Result:
    """Waits for a result so that a Ctrl-C ends the wait, whenever it arrives."""
    while True:
        try:
            return future.result(WAKE_SECONDS)
        except TimeoutError:
            # The future itself may have failed with TimeoutError.
            if future.done():
                return future.result()


def _run(config: ClientConfig, started: Future[_RunnerState]) -> None:
    async def main() -> None:
        client = Client(config)
        async with BlockingPortal() as portal, client:
            stopping = asyncio.Event()
            started.set_result(_RunnerState(portal, client, asyncio.get_running_loop(), stopping))
            await stopping.wait()

    try:
        anyio.run(main)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


def _close_all() -> None:
    for runner in list(_runners):
        runner.close()


_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
# A thread that is still in gRPC while the interpreter shuts down would crash it.
atexit.register(_close_all)
