"""Lets a running query or job survive a restart of the server by repeating its idempotent calls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from scankv.model.errors import ConnectionFailed, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import sync

_Answer = TypeVar("_Answer")

_PAUSE_SECONDS: Final = 0.1


def retry_through_restart(
    open_client: Callable[[], sync.Client], ask: Callable[[], _Answer], *, timeout: float = 60.0
) -> _Answer:
    """Calls `ask`, and returns its result. While the server cannot be reached, waits for it and calls `ask` again.

    Use this function in queries that run for days. Do not use it in `load()`, which should fail at once without a
    server.

    Args:
        open_client: Opens a client of the server.
        ask: The call. It must be safe to repeat.
        timeout: Seconds to wait for the server, in total, after the first failure.

    Raises:
        ConnectionFailed: The server could not be reached for longer. This is the last error that `ask` raised.
    """
    deadline = None
    while True:
        try:
            return ask()
        except ConnectionFailed as failure:
            deadline = deadline or time.monotonic() + timeout
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            try:
                with open_client() as client:
                    client.wait_ready(left)
            except DeadlineExceeded as error:
                raise failure from error
            time.sleep(_PAUSE_SECONDS)
