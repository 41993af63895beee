"""Faults of a connection as plain values, and their random choice from a seed. Does no I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

FaultKind: TypeAlias = Literal["cut", "reset", "stall", "slow", "half_close"]
Direction: TypeAlias = Literal["to_client", "to_server"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one connection. Immutable, hashable, picklable.

    - `cut`: both ends are closed in order, as by a proxy that shuts down.
    - `reset`: both ends get a TCP reset, as by a firewall that forgot the connection.
    - `stall`: nothing more is forwarded in the direction, and the connection stays open. The sender's buffers fill up.
    - `slow`: from then on, the direction forwards `bytes_per_second`.
    - `half_close`: the receiver of the direction sees the end of the data; the other direction continues.

    Attributes:
        kind: What happens.
        after_bytes: The number of bytes in the direction before the fault, counted from when an open connection gets
            the fault, or from the beginning of a later connection. 0: at once, even if no byte ever passes.
        direction: The direction whose bytes count, and in which `stall`, `slow` and `half_close` happen.
        bytes_per_second: For `slow`, at least 1; None for the other kinds.
    """

    kind: FaultKind
    after_bytes: int = 0
    direction: Direction = "to_client"
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError, which names the invalid field."""
        if self.kind not in get_args(FaultKind):
            raise UsageError(f"kind must be one of {', '.join(get_args(FaultKind))}, not {self.kind!r}", option="kind")
        if self.direction not in get_args(Direction):
            raise UsageError(f"direction must be to_client or to_server, not {self.direction!r}", option="direction")
        if type(self.after_bytes) is not int or self.after_bytes < 0:
            raise UsageError(
                f"after_bytes must be a whole number of at least 0, not {self.after_bytes!r}", option="after_bytes"
            )
        rate = self.bytes_per_second
        if (self.kind == "slow") != (type(rate) is int and rate >= 1):
            raise UsageError(
                f"bytes_per_second must be a whole number of at least 1 for slow, and None otherwise, not {rate!r}",
                option="bytes_per_second",
            )

    def __str__(self) -> str:
        rate = "" if self.bytes_per_second is None else f" to {self.bytes_per_second:,} bytes/s"
        return f"{self.kind} {self.direction}{rate}"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that has happened.

    Attributes:
        connection: The number of the connection; the proxy's first connection is 1.
        fault: The fault.
        at_bytes: The bytes that the connection had forwarded in the fault's direction.
    """

    connection: int
    fault: Fault
    at_bytes: int

    def __str__(self) -> str:
        return f"connection {self.connection}: {self.fault} at {self.at_bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """Draws a fault for each connection from a seed. Immutable.

    Attributes:
        seed: The seed. A draw depends only on it and the connection's number, not on other connections or time.
        kinds: The kinds to draw from.
        directions: The directions to draw from.
        after_bytes: The least and the most bytes before the fault.
    """

    seed: int
    kinds: Sequence[FaultKind]
    directions: Sequence[Direction]
    after_bytes: tuple[int, int]

    def __post_init__(self) -> None:
        """Raises UsageError if nothing can be drawn; also for `slow`, which has no rate here."""
        low, high = self.after_bytes
        if not self.kinds or not self.directions or low > high:
            raise UsageError(
                f"nothing can be drawn from kinds {self.kinds!r}, directions {self.directions!r}, {low} to {high} bytes"
            )
        for kind in self.kinds:
            for direction in self.directions:
                Fault(kind, low, direction)

    def of(self, connection: int) -> Fault:
        """Draws the fault of the connection with this number."""
        # A string seeds by its SHA-512, the same in every process; a tuple would seed by its hash.
        draw = random.Random(f"{self.seed}/{connection}")
        return Fault(draw.choice(self.kinds), draw.randint(*self.after_bytes), draw.choice(self.directions))
