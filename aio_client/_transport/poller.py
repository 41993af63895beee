"""Ignores errors that gRPC's poller raises in an event loop although nothing is wrong.

A process has one poller for the gRPC events of all event loops. It wakes every loop for every event:

- The first loop to run handles all events, including those of loops that were closed in the meantime, such as the loop
  of a blocking client whose last calls are being cancelled: RuntimeError, "Event loop is closed".
- The other loops may find nothing left to read: BlockingIOError (https://github.com/grpc/grpc/issues/25364).

Neither error loses an event of an open loop: the poller wakes all loops again for the next event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_CALLBACK: Final = "PollerCompletionQueue._handle_events"


def ignore_stray_events(loop: asyncio.AbstractEventLoop) -> None:
    """Makes a loop log no traceback for these errors, unless the loop has an exception handler already."""
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_handle)


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not (_CALLBACK in context.get("message", "") and _is_stray(context.get("exception"))):
        loop.default_exception_handler(context)


def _is_stray(error: BaseException | None) -> bool:
    return isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "loop is closed" in str(error))
