"""The event loop and the process that a client belongs to."""

from __future__ import annotations

import asyncio
import os
import weakref

from scankv.model.errors import UsageError


class ClientOwner:
    """The running event loop and the process, as of when a client is made. Only in them may the client be used.

    Args:
        address: The server of the client, for messages.

    Attributes:
        loop: The event loop.

    Raises:
        UsageError: The process was forked while a client was open in its parent.
    """

    def __init__(self, address: str) -> None:
        if _forked_while_open:
            raise UsageError(
                "this process was forked while a client was open in its parent, after which gRPC hangs; close all "
                "clients before forking, or start the process by spawning it",
                address=address,
            )
        self.loop = asyncio.get_running_loop()
        self._address = address
        self._pid = os.getpid()
        _owners_of_open_clients.add(self)

    def check(self) -> None:
        """Raises UsageError in another event loop or in a forked process."""
        if os.getpid() != self._pid:
            raise UsageError(
                "the client was made before this process was forked; connect in the child process instead",
                address=self._address,
            )
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError(
                "the client belongs to another event loop; connect once in each loop, or use scankv.sync",
                address=self._address,
            )

    def release(self) -> None:
        """Records that the client is closed, so that the process may be forked."""
        _owners_of_open_clients.discard(self)


def _record_fork() -> None:
    global _forked_while_open
    _forked_while_open = _forked_while_open or bool(_owners_of_open_clients)


_owners_of_open_clients: weakref.WeakSet[ClientOwner] = weakref.WeakSet()
_forked_while_open = False
os.register_at_fork(after_in_child=_record_fork)
