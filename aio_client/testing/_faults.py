"""What can go wrong with a connection, as plain values, and the draw of a seed: without sockets or clocks."""

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
    - `stall`: nothing is forwarded any more in the direction, and the connection stays. The sender's buffers fill up.
    - `slow`: from then on the direction has `bytes_per_second`.
    - `half_close`: the receiver of the direction is told that nothing more will come; the other direction goes on.

    Attributes:
        kind: What happens.
        after_bytes: After how many more bytes in the direction: counted from when a running connection gets the fault,
            for a later connection from its beginning. 0: at once, even when no byte ever passes.
        direction: The direction whose bytes count, and which `stall`, `slow` and `half_close` happen to.
        bytes_per_second: Of `slow`, at least 1; None for the others.
    """

    kind: FaultKind
    after_bytes: int = 0
    direction: Direction = "to_client"
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError naming the field that cannot be so."""
        if self.kind not in get_args(FaultKind):
            raise UsageError(f"a fault is one of {', '.join(get_args(FaultKind))}, not {self.kind!r}", option="kind")
        if self.direction not in get_args(Direction):
            raise UsageError(f"direction is to_client or to_server, not {self.direction!r}", option="direction")
        if type(self.after_bytes) is not int or self.after_bytes < 0:
            raise UsageError(f"after_bytes is a number of at least 0, not {self.after_bytes!r}", option="after_bytes")
        rate = self.bytes_per_second
        if (self.kind == "slow") != (type(rate) is int and rate >= 1):
            raise UsageError(
                f"bytes_per_second is a number of at least 1 for slow, and None for the others, not {rate!r}",
                option="bytes_per_second",
            )

    def __str__(self) -> str:
        rate = "" if self.bytes_per_second is None else f" to {self.bytes_per_second:,} bytes/s"
        return f"{self.kind} {self.direction}{rate}"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that the proxy has injected.

    Attributes:
        connection: Which connection: 1 is the first that the proxy took.
        fault: The fault.
        at_bytes: Bytes that the connection had forwarded in the fault's direction by then.
    """

    connection: int
    fault: Fault
    at_bytes: int

    def __str__(self) -> str:
        return f"connection {self.connection}: {self.fault} at {self.at_bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """A fault for each connection, drawn from a seed. Immutable.

    Attributes:
        seed: What it is drawn from, together with the connection's number and nothing else: neither the other
            connections nor the time have a part in it.
        kinds: The kinds to draw from.
        directions: The directions to draw from.
        after_bytes: The least and the most bytes before the fault.
    """

    seed: int
    kinds: Sequence[FaultKind]
    directions: Sequence[Direction]
    after_bytes: tuple[int, int]

    def __post_init__(self) -> None:
        """Raises UsageError for what nothing can be drawn from, also for `slow`, which has no rate here."""
        low, high = self.after_bytes
        if not self.kinds or not self.directions or low > high:
            raise UsageError(
                f"nothing can be drawn from kinds {self.kinds!r}, directions {self.directions!r}, {low} to {high} bytes"
            )
        for kind in self.kinds:
            for direction in self.directions:
                Fault(kind, low, direction)

    def of(self, connection: int) -> Fault:
        """The fault of the connection with this number."""
        # A string seeds by its SHA-512, the same in every process; a tuple would seed by its hash.
        draw = random.Random(f"{self.seed}/{connection}")
        return Fault(draw.choice(self.kinds), draw.randint(*self.after_bytes), draw.choice(self.directions))
