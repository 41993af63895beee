"""Transactions that are committed one after another, each of which sets all rows of some tables to the next number."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aio_client import Client, Table


@asynccontextmanager
async def counting_transactions(client: Client, tables: Sequence[Table], rows: int) -> AsyncIterator[None]:
    """Commits transactions for the length of the block, which begins after the first one. Transaction N is `job:N`.

    Args:
        client: Begins the transactions.
        tables: Tables with the columns `k` and `v`.
        rows: How many rows of each table are set.
    """
    begun, done = asyncio.Event(), asyncio.Event()

    async def commit() -> None:
        number = 0
        while not done.is_set():
            number += 1
            async with client.transaction(id=f"job:{number}") as transaction:
                for table in tables:
                    await transaction.upsert(table, [{"k": k, "v": number} for k in range(rows)])
            begun.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(commit())
        await begun.wait()
        yield
        done.set()
