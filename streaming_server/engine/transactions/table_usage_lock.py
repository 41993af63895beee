"""Who needs tables to stay as they are, and who changes them: transactions being committed, and definitions altered."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection


class TableUsageLock:
    """While some use a table, nobody alters or drops it, and the other way round. Bound to the event loop."""

    def __init__(self) -> None:
        """Begins with nobody."""
        self._using: Counter[str] = Counter()
        self._altering: set[str] = set()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def using(self, tables: Collection[str]) -> AsyncIterator[None]:
        """Keeps tables as they are for the length of the block."""
        names = list(tables)
        async with self._changed:
            await self._changed.wait_for(lambda: self._altering.isdisjoint(names))
            self._using.update(names)
        try:
            yield
        finally:
            self._using -= Counter(names)
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def altering(self, table: str) -> AsyncIterator[None]:
        """Has a table to oneself for the length of the block; one at a time."""
        self._altering.add(table)
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._using[table])
            yield
        finally:
            self._altering.discard(table)
            async with self._changed:
                self._changed.notify_all()
