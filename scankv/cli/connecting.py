"""Connects the commands to the server: by their option `--url`, and by `scankv --profile`.

No option takes a token, because all users of a machine see the arguments of its processes.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aio_client import sync

PROFILE: Final[ContextVar[str | None]] = ContextVar("PROFILE", default=None)
"""The profile that was given before the command. None: that of the environment, if there is one."""


def open_client(url: str | None) -> sync.Client:
    """Opens a client of the server that the command is for. Raises UsageError as `connect` does."""
    # The list of commands needs this module, and must not wait for the client.
    from aio_client import sync

    return sync.connect(url, profile=PROFILE.get())
