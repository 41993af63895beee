"""What concurrent clients did and saw: operations, each with the instants between which it took effect."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Key: TypeAlias = tuple[str, int]
"""A table and a key of it."""

Value: TypeAlias = int | None
"""The value of a row. None: the row does not exist."""

FOREVER: Final = float("inf")
"""The end of an operation without an answer: it may take effect at any later time, or never."""


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """An operation that reads some rows and writes some rows, all at one instant between its start and its end.

    Attributes:
        name: What the client called.
        start: The tick before the call.
        end: The tick after the answer, or `FOREVER`.
        reads: The values that it saw before its own writes.
        writes: The values that it wrote.
    """

    name: str
    start: float
    end: float
    reads: Mapping[Key, Value] = field(default_factory=dict)
    writes: Mapping[Key, Value] = field(default_factory=dict)

    @property
    def keys(self) -> set[Key]:
        """The keys that it reads or writes."""
        return {*self.reads, *self.writes}

    def __str__(self) -> str:
        end = "no answer" if self.end == FOREVER else f"{self.end:g}"
        parts = [f"reads {dict(self.reads)}"] * bool(self.reads) + [f"writes {dict(self.writes)}"] * bool(self.writes)
        return f"{self.name} [{self.start:g}, {end}] {', '.join(parts)}"


class OperationRecorder:
    """Collects the operations of all clients of one event loop, whose calls and answers it numbers with ticks.

    Attributes:
        operations: What was recorded so far.
        answered: How many calls were answered, by table.
    """

    def __init__(self) -> None:
        self.operations: list[RecordedOperation] = []
        self.answered: Counter[str] = Counter()
        self._tick = 0
        self._value = 0
        self._changed = asyncio.Event()

    def tick(self) -> int:
        """Returns the next instant."""
        self._tick += 1
        return self._tick

    def new_value(self) -> int:
        """Returns a value that nothing else writes, so that a reader of it shows which write it saw."""
        self._value += 1
        return self._value

    def record(
        self,
        name: str,
        start: float,
        end: float,
        reads: Mapping[Key, Value] | None = None,
        writes: Mapping[Key, Value] | None = None,
    ) -> None:
        """Adds an operation."""
        operation = RecordedOperation(name, start, end, reads or {}, writes or {})
        self.operations.append(operation)
        if end != FOREVER:
            self.answered.update({table for table, _ in operation.keys})
            self._changed.set()

    async def wait_for_more(self, operations: int, tables: Collection[str]) -> None:
        """Waits until so many further operations of some tables were answered."""
        until = self._answered_of(tables) + operations
        while self._answered_of(tables) < until:
            self._changed.clear()
            await self._changed.wait()

    def _answered_of(self, tables: Collection[str]) -> int:
        return sum(self.answered[table] for table in tables)
