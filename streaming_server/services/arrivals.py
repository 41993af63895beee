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

_MOST_FRAME_BYTES: Final = 30 * _SLACK_BYTES_PER_SECOND
"""How much may be taken for frames before it is certain."""

_EXCEEDED_SECONDS: Final = 30.0
"""How long a connection may have received too much. Then what belongs to no message counts no more, for example because
its call was given up."""

_SHARE_OF_FRAMES: Final = 64
"""One byte in so many may belong to the frames and the TLS records of a message."""

_LOOK_SECONDS: Final = 1.0
"""A message begins at most this long after a look, because each look allows for the frames since the one before."""


class _Connection:
    """A connection while messages arrive on it.

    Attributes:
        received_bytes: What it had received at the last look.
        looked_at: When this was, in monotonic seconds.
        rest_bytes: What it had received by then for messages that are still arriving, or for none. Less than 0: some
            have arrived since then.
        frame_bytes: How much of this may be frames, because these messages need not be as large as they may be.
        message_bytes: The messages that have arrived since then.
        expected_bytes: The most bytes that these messages may have.
        messages: How many they are.
        exceeded_since: Since when it has received too much. None: it has not.
    """

    __slots__ = (
        "exceeded_since",
        "expected_bytes",
        "frame_bytes",
        "looked_at",
        "message_bytes",
        "messages",
        "received_bytes",
        "rest_bytes",
    )

    def __init__(self, now: float, received_bytes: int) -> None:
        self.received_bytes = received_bytes
        self.looked_at = now
        self.rest_bytes = 0
        self.frame_bytes = 0
        self.message_bytes = 0
        self.expected_bytes = 0
        self.messages = 0
        self.exceeded_since: float | None = None

    def record(self, size: int) -> None:
        """Records a message that has arrived. So what was received for it was no frame."""
        self.message_bytes += size
        self.rest_bytes -= size
        self.frame_bytes = min(self.frame_bytes, max(0, self.rest_bytes))

    def look(self, now: float, received_bytes: int) -> bool:
        """Returns whether it has received more than its messages and their frames may have."""
        # It falls when one of two connections from the same address ends, whose bytes no longer count.
        rest = max(0, self.rest_bytes + max(0, received_bytes - self.received_bytes))
        frames = self.message_bytes // _SHARE_OF_FRAMES + int(_SLACK_BYTES_PER_SECOND * (now - self.looked_at))
        self.received_bytes, self.looked_at, self.message_bytes = received_bytes, now, 0
        # What the messages cannot have is frames, as far as there may be any. Others may be in what they can have.
        surely_frames = min(frames, max(0, rest - self.expected_bytes))
        rest -= surely_frames
        self.frame_bytes = min(self.frame_bytes + frames - surely_frames, _MOST_FRAME_BYTES, rest)
        is_exceeded = rest > self.expected_bytes + _SLACK_BYTES + self.frame_bytes
        if not is_exceeded:
            self.exceeded_since = None
        elif self.exceeded_since is None:
            self.exceeded_since = now
        elif now - self.exceeded_since >= _EXCEEDED_SECONDS:
            rest, self.exceeded_since = self.expected_bytes, None
        self.rest_bytes = rest
        return is_exceeded


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
        elif self._now() - found.looked_at >= _LOOK_SECONDS:
            self._is_exceeded(connection, found)
        found.messages += 1
        found.expected_bytes += expected_bytes
        return Arrival(self, connection, found, expected_bytes)

    def record(self, connection: str, size: int) -> None:
        """Records a message that has arrived without being expected."""
        if self._connections and (found := self._connections.get(connection)) is not None:
            found.record(size)

    def _is_exceeded(self, name: str, found: _Connection) -> bool:
        received = self._received_bytes(name) if name else None
        return received is not None and found.look(self._now(), received)

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
        self._connection.record(size)
        self._arrivals._end(self._name, self._connection)
