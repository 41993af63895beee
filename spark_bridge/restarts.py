"""Riding through a restart of the server, where a query or a job that runs asks what may be asked again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from aio_client import sync
from scankv.model.errors import ConnectionFailed, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")

_PAUSE_SECONDS: Final = 0.1


def riding_through(address: str | None, ask: Callable[[], _Answer], *, timeout: float = 60.0) -> _Answer:
    """Asks, and asks again when the server is back where it was away.

    What only asks something fails at once where there is no server, as `load()` should; a query that has been running
    for days should not.

    Args:
        address: The server; None: as for `scankv.sync.connect`.
        ask: What may be done any number of times.
        timeout: Seconds that the server may be away.

    Raises:
        ConnectionFailed: The server was away for longer: what `ask` has raised last.
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
                with sync.connect(address) as client:
                    client.wait_ready(left)
            except DeadlineExceeded as error:
                raise failure from error
            time.sleep(_PAUSE_SECONDS)
