"""Bounds the memory of answers that the server has built and that their clients have not taken yet."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ServerBusy

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_BYTES: Final = 64 * 1024
"""The last fifth of the memory is kept for answers of at most this size, so that clients that read nothing cannot keep
others from reading single rows."""

_RETRY_SECONDS: Final = 0.25

_log = logging.getLogger(__name__)


class UnreadAnswers:
    """The answers of a server that are in memory until HTTP/2 flow control lets them go. Bound to the event loop.

    A client that makes calls and does not read their answers leaves them here. One connection gets at most half of the
    memory. If an answer finds no room, the connection with the most bytes among those that have not taken an answer in
    time is closed, because gRPC can give up an answer only together with its connection.

    Args:
        max_bytes: The most bytes of all answers together.
        stall_seconds: How long a client may take nothing before its connection may be closed.
        close_connection: Closes the connection of a peer. None: no connection is closed.

    Attributes:
        unread_bytes: The bytes of all answers now.
        refused: The number of calls that were refused for lack of memory since the start.
    """

    def __init__(
        self, max_bytes: int, stall_seconds: float, close_connection: Callable[[str], bool] | None = None
    ) -> None:
        self.unread_bytes = 0
        self.refused = 0
        self._max_bytes = max_bytes
        self._max_large_bytes = max_bytes // 5 * 4
        self._max_connection_bytes = max_bytes // 2
        self._stall_seconds = stall_seconds
        self._close_connection = close_connection
        self._connections: dict[str, _PeerAnswers] = {}

    def check(self, peer: str) -> None:
        """Checks that a connection has room for the answer of another call, before the answer is built.

        Raises:
            ServerBusy: The client has to read earlier answers first.
        """
        connection = self._connections.get(peer)
        if connection is not None and connection.unread_bytes >= self._max_connection_bytes:
            raise self._refuse_connection(connection)

    def answer(self, peer: str) -> UnreadAnswer:
        """Returns the record of an answer of a connection. It takes no memory yet."""
        return UnreadAnswer(self, peer)

    def _expect(self, answer: UnreadAnswer, size: int) -> None:
        connection = self._connections.get(answer.peer)
        if connection is not None and connection.unread_bytes + size > self._max_connection_bytes:
            raise self._refuse_connection(connection)
        if self.unread_bytes > self._max_bytes // 2 and self.unread_bytes + size > self._max_large_bytes:
            raise self._refuse(self._max_large_bytes)

    def _resize(self, answer: UnreadAnswer, size: int, *, may_refuse: bool) -> None:
        growth, connection = size - answer.size, self._connections.get(answer.peer)
        if growth > 0 and may_refuse:
            if connection is not None and connection.unread_bytes + growth > max(size, self._max_connection_bytes):
                raise self._refuse_connection(connection)
            limit = self._max_bytes if size <= SMALL_BYTES else self._max_large_bytes
            if self.unread_bytes + growth > limit:
                raise self._refuse(limit)
        if connection is None:
            connection = self._connections[answer.peer] = _PeerAnswers()
        answer.size = size
        self.unread_bytes += growth
        connection.unread_bytes += growth
        if size:
            connection.answers.setdefault(answer)
        else:
            connection.answers.pop(answer, None)
            if not connection.answers:
                del self._connections[answer.peer]

    def _refuse_connection(self, connection: _PeerAnswers) -> ServerBusy:
        self.refused += 1
        return ServerBusy(
            f"this connection has {connection.unread_bytes:,} bytes of answers that its client has not read, of at "
            f"most {self._max_connection_bytes:,} (half of max_unread_answer_bytes): read them, then try again",
            retry_after=_RETRY_SECONDS,
        )

    def _refuse(self, limit: int) -> ServerBusy:
        self.refused += 1
        self._close_stalled()
        return ServerBusy(
            f"the server has {self.unread_bytes:,} bytes of answers that clients have not read, of at most {limit:,} "
            "(max_unread_answer_bytes): try again",
            retry_after=_RETRY_SECONDS,
        )

    def _close_stalled(self) -> None:
        """Closes the connection with the most bytes among those that have not taken an answer in time."""
        since = asyncio.get_running_loop().time() - self._stall_seconds
        stalled = [peer for peer, each in self._connections.items() if each.oldest < since and not each.closed]
        if not stalled or self._close_connection is None:
            return
        peer = max(stalled, key=lambda each: self._connections[each].unread_bytes)
        connection = self._connections[peer]
        # Its answers are released once gRPC has noticed.
        connection.closed = True
        if self._close_connection(peer):
            _log.warning(
                "closed the connection of %s: it had %d bytes of answers that its client did not read within %g s, and "
                "the memory for answers was full",
                peer,
                connection.unread_bytes,
                self._stall_seconds,
            )


class UnreadAnswer:
    """One answer, from the moment when its size is known until its client has taken it.

    Attributes:
        peer: The client's address, which identifies its connection.
        size: The bytes that the answer takes.
        began_at: When its size became known, on the event loop's clock.
    """

    __slots__ = ("_all", "began_at", "peer", "size")

    def __init__(self, all_answers: UnreadAnswers, peer: str) -> None:
        self._all = all_answers
        self.peer = peer
        self.size = 0
        self.began_at = 0.0

    def expect(self, size: int) -> None:
        """Checks that the answer has room for at most this many bytes, before it is built.

        Not exact: unless much of the memory is in use, an answer is built, and claims what it takes.

        Raises:
            ServerBusy: No room is left.
        """
        self._all._expect(self, size)

    def claim(self, size: int, *, may_refuse: bool = True) -> None:
        """Sets how many bytes the answer takes.

        Args:
            size: The bytes.
            may_refuse: Whether the call may be refused. Otherwise the answer is counted in any case.

        Raises:
            ServerBusy: No room is left. The answer keeps the size that it had.
        """
        if not self.size:
            self.began_at = asyncio.get_running_loop().time()
        self._all._resize(self, size, may_refuse=may_refuse)

    def release(self) -> None:
        """Ends the claim. Does nothing if the answer has none."""
        if self.size:
            self._all._resize(self, 0, may_refuse=False)


class _PeerAnswers:
    __slots__ = ("answers", "closed", "unread_bytes")

    def __init__(self) -> None:
        self.unread_bytes = 0
        # In the order in which they began.
        self.answers: dict[UnreadAnswer, None] = {}
        self.closed = False

    @property
    def oldest(self) -> float:
        return next(iter(self.answers)).began_at
