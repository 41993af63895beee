"""The lock between commits of transactions, which use tables, and changes of table definitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection


class TableUsageLock:
    """Shared for users of tables, exclusive for tasks that alter or drop a table. Bound to the event loop."""

    def __init__(self) -> None:
        self._using: Counter[str] = Counter()
        self._altering: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def using(self, tables: Collection[str]) -> AsyncIterator[None]:
        """Keeps tables from being altered or dropped for the length of the block."""
        names = list(tables)
        async with self._changed:
            await self._changed.wait_for(lambda: self._altering.keys().isdisjoint(names))
            self._using.update(names)
        try:
            yield
        finally:
            self._using -= Counter(names)
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def altering(self, table: str) -> AsyncIterator[None]:
        """Keeps all users out of a table for the length of the block. The caller alters one table at a time."""
        self._altering[table] += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._using[table])
            yield
        finally:
            self._altering -= Counter([table])
            async with self._changed:
                self._changed.notify_all()
