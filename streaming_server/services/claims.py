"""The memory that requests claim: of the server, of each connection, and of each principal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from scankv.model.errors import ServerBusy

_RETRY_SECONDS: Final = 0.25
_SHARE_OF_CONNECTION: Final = 1 / 2
_SHARE_OF_PRINCIPAL: Final = 3 / 4


class Sender(NamedTuple):
    """Whose messages claim memory together.

    Attributes:
        connection: The peer of the connection. Empty: a process of the server, which sends the messages of many.
        principal: Who makes the call. Empty: the server asks for no tokens.
    """

    connection: str = ""
    principal: str = ""


_NOBODY: Final = Sender()


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """The memory of one message. Released once, by `Claims.release`."""

    size: int
    sender: Sender = _NOBODY


NO_CLAIM: Final = MemoryClaim(0)


class Claims:
    """The claims of all requests. Bound to the event loop.

    One connection gets half of the memory, and one principal three quarters or what leaves the largest message to
    others, so that none can keep all others from writing. If the memory is small, each gets at least the largest one.

    Args:
        max_bytes: The most bytes of all claims.
        largest: The bytes of the largest message.

    Attributes:
        claimed_bytes: The bytes of all claims now.
        refused: The number of claims that were refused since the start.
    """

    def __init__(self, max_bytes: int, largest: int) -> None:
        self.claimed_bytes = 0
        self.refused = 0
        self._max_bytes = max_bytes
        # Two messages without an announced size may be late at once, as on a busy machine.
        least = max(largest, min(2 * largest, max_bytes - largest))
        self._most_of_connection = max(least, int(max_bytes * _SHARE_OF_CONNECTION))
        self._most_of_principal = max(least, min(int(max_bytes * _SHARE_OF_PRINCIPAL), max_bytes - largest))
        self._of_connections: Counter[str] = Counter()
        self._of_principals: Counter[str] = Counter()

    def claim(self, size: int, sender: Sender) -> MemoryClaim:
        """Claims memory for a message.

        Raises:
            ServerBusy: Too little of it is left, or of the share of its sender.
        """
        connection, principal = sender.connection, sender.principal
        self._check("the server has", self.claimed_bytes, size, self._max_bytes)
        if connection:
            self._check("this connection has", self._of_connections[connection], size, self._most_of_connection)
        if principal:
            self._check(f"{principal} has", self._of_principals[principal], size, self._most_of_principal)
        self._add(size, sender)
        return MemoryClaim(size, sender)

    def release(self, claim: MemoryClaim) -> None:
        """Releases claimed memory."""
        if claim.size:
            self._add(-claim.size, claim.sender)

    def _check(self, who: str, claimed: int, size: int, most: int) -> None:
        if claimed + size > most:
            self.refused += 1
            raise ServerBusy(
                f"{who} {claimed:,} bytes of other requests in memory, of at most {most:,}: try again",
                retry_after=_RETRY_SECONDS,
            )

    def _add(self, size: int, sender: Sender) -> None:
        self.claimed_bytes += size
        for counter, name in ((self._of_connections, sender.connection), (self._of_principals, sender.principal)):
            if name:
                counter[name] += size
                if not counter[name]:
                    del counter[name]
