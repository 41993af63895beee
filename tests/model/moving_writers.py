"""Writers that record when each of their operations began and ended, and what tables as of an instant may then have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aio_client import ConnectionFailed, TransactionLost

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence
    from random import Random

    from aio_client import Client, Table


def now_micros() -> int:
    """Returns the time now, in microseconds since 1970 UTC, by the clock of this machine, which servers have, too."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class MoveOperation:
    """One operation, which writes its number to a row in some tables.

    Attributes:
        tables: The tables.
        begun: Before this instant, in microseconds since 1970 UTC, no table has it.
        ended: From this instant on, all tables have it. None: it has not ended.
    """

    tables: Sequence[str]
    begun: int
    ended: int | None = None


@dataclass(slots=True)
class MovingWriter:
    """One writer, with a row of its own in each table. An operation that was cut off is repeated.

    Attributes:
        key: The key of its row.
        tables: The tables that it writes to.
        random: What it does.
        operations: What it has done.
    """

    key: int
    tables: Sequence[str]
    random: Random
    operations: list[MoveOperation] = field(default_factory=list)

    async def run(self, client: Client, done: asyncio.Condition) -> None:
        """Writes until it is cancelled, and notifies after each operation."""
        tables = {name: await client.table(name) for name in self.tables}
        while True:
            if not self.operations or self.operations[-1].ended is not None:
                chosen = self.random.sample(self.tables, self.random.randint(1, len(self.tables)))
                self.operations.append(MoveOperation(tuple(chosen), now_micros()))
            current = [tables[name] for name in self.operations[-1].tables]
            await self._write(client, len(self.operations), current)
            self.operations[-1].ended = now_micros()
            async with done:
                done.notify_all()

    async def _write(self, client: Client, number: int, tables: Sequence[Table]) -> None:
        rows = [{"k": self.key, "v": number}]
        while True:
            try:
                if len(tables) == 1:
                    await tables[0].upsert(rows)
                    return
                # Without an id, because looking for one takes all workers, and one may be paused.
                transaction = await client.transaction()
                for table in tables:
                    await transaction.upsert(table, rows)
                await transaction.commit()
            except (ConnectionFailed, TransactionLost):
                continue
            return

    def problem_at(self, instant: int, found: Mapping[str, int | None]) -> str | None:
        """Returns what is wrong with the values of its row in each table as of an instant. None: nothing."""
        begun = sum(each.begun <= instant for each in self.operations)
        ended = sum(each.ended is not None and each.ended <= instant for each in self.operations)
        possible = [self._values(number) for number in range(ended, begun + 1)]
        return None if dict(found) in possible else f"writer {self.key} at {instant}: {dict(found)} not in {possible}"

    def _values(self, number: int) -> dict[str, int | None]:
        """Returns the value in each table after so many operations."""
        values: dict[str, int | None] = dict.fromkeys(self.tables)
        for each, operation in enumerate(self.operations[:number], 1):
            values |= dict.fromkeys(operation.tables, each)
        return values
