"""Whether a connection has received more than its messages may have: gRPC does not say how much of one has arrived."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SLACK_BYTES: Final = 2 << 20
"""How much more than its messages a connection may receive: frames, headers, and what has arrived of other calls."""

_SLACK_BYTES_PER_SECOND: Final = 64 * 1024
"""The same for each second, for the frames with which a client reads its streams."""

_SHARE_OF_FRAMES: Final = 64
"""One byte in so many may belong to the frames and the TLS records of a message."""

_RECORD_SECONDS: Final = 30.0
"""How long what a connection receives is added up. Without an end, what it may receive would grow without a bound."""


class _Connection:
    """A connection while messages arrive on it."""

    __slots__ = ("before", "began", "expected_bytes", "message_bytes", "messages", "received_bytes")

    def __init__(self, now: float, before: int) -> None:
        self.received_bytes = before
        self.messages = 0
        self.expected_bytes = 0
        self.begin_anew(now, before)

    def begin_anew(self, now: float, before: int) -> None:
        """Begins the record anew. The messages that are arriving stay expected.

        Args:
            now: Monotonic seconds.
            before: How much the connection has received that does not belong to these messages.
        """
        self.before = before
        self.began = now
        self.message_bytes = 0


class Arrivals:
    """Compares what connections receive with the messages that arrive on them, and with those that have arrived since.

    Only connections with large or late messages are looked at. A call that was given up leaves bytes without a message,
    so what this finds is a reason to expect more of a connection, and none to end it.

    Bound to the event loop.

    Args:
        received_bytes: Returns how many bytes a connection has received since it began. None: it is not known.
        now: Returns monotonic seconds.
    """

    def __init__(self, received_bytes: Callable[[str], int | None], now: Callable[[], float] = time.monotonic) -> None:
        self._received_bytes = received_bytes
        self._now = now
        self._connections: dict[str, _Connection] = {}

    def begin(self, connection: str, expected_bytes: int) -> Arrival:
        """Begins to compare what a connection receives from now on with what its messages may have.

        Args:
            connection: The peer of the connection. Empty: of the server itself, which is not looked at.
            expected_bytes: The most bytes that the message may have.
        """
        found = self._connections.get(connection)
        if found is None:
            # One that is not known yet is young, so that all it has received counts.
            found = _Connection(self._now(), self._received_bytes(connection) or 0 if connection else 0)
            self._connections[connection] = found
        elif self._now() - found.began >= _RECORD_SECONDS:
            # No message that claims the largest size looks at the connection.
            self._is_exceeded(connection, found)
        found.messages += 1
        found.expected_bytes += expected_bytes
        return Arrival(self, connection, found, expected_bytes)

    def record(self, connection: str, size: int) -> None:
        """Records a message that has arrived without being expected."""
        if self._connections and (found := self._connections.get(connection)) is not None:
            found.message_bytes += size

    def _is_exceeded(self, name: str, found: _Connection) -> bool:
        received = self._received_bytes(name) if name else None
        if received is None:
            return False
        # It falls when one of two connections from the same address ends, whose bytes no longer count.
        found.before -= max(0, found.received_bytes - received)
        found.received_bytes = received
        seconds = self._now() - found.began
        slack = _SLACK_BYTES + int(_SLACK_BYTES_PER_SECOND * min(seconds, _RECORD_SECONDS))
        arrived = found.message_bytes + found.message_bytes // _SHARE_OF_FRAMES
        # What belongs to messages that are still arriving, or to none.
        rest = received - found.before - arrived - slack
        if seconds >= _RECORD_SECONDS:
            found.begin_anew(self._now(), received - min(max(0, rest), found.expected_bytes))
        return rest > found.expected_bytes

    def _end(self, name: str, found: _Connection) -> None:
        found.messages -= 1
        if not found.messages:
            del self._connections[name]


class Arrival:
    """One message that arrives."""

    __slots__ = ("_arrivals", "_connection", "_expected_bytes", "_name")

    def __init__(self, arrivals: Arrivals, name: str, connection: _Connection, expected_bytes: int) -> None:
        self._arrivals = arrivals
        self._name = name
        self._connection = connection
        self._expected_bytes = expected_bytes

    @property
    def is_exceeded(self) -> bool:
        """Whether its connection has received clearly more bytes than its messages may have."""
        return self._arrivals._is_exceeded(self._name, self._connection)

    def expect(self, size: int) -> None:
        """Sets the most bytes that the message may have."""
        self._connection.expected_bytes += size - self._expected_bytes
        self._expected_bytes = size

    def end(self, size: int) -> None:
        """Ends it, with the bytes of the message. 0: it did not arrive."""
        self.expect(0)
        self._connection.message_bytes += size
        self._arrivals._end(self._name, self._connection)
