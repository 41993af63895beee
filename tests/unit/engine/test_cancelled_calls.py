"""Calls that are cancelled at any moment: their work is completed or never happened, and nothing blocks others."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import SchemaMismatch, TableNotFound
from scankv.model.tables.evolution import ColumnChanges
from tests.support.snapshots import TABLE, new_table, put, tables_in

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    """Disables the garbage collector: nothing may depend on when it runs."""
    gc.disable()
    yield
    gc.enable()


async def cancelled_after(steps: int, call: Coroutine[Any, Any, Any]) -> bool:
    """Cancels the call after this number of turns of the event loop; returns whether it was still running."""
    task = asyncio.create_task(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return task.cancelled()


async def test_a_bucket_whose_opening_is_cancelled_can_be_used_by_the_next_one(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        cancelled = 0
        for number in range(12):
            table = await new_table(tables, f"game.scores_{number}", buckets=2)
            cancelled += await cancelled_after(number, table.reads.count(None))
            await put(table, {"ann": number})
            assert (await table.reads.count(None))[0] == 1
        assert cancelled > 5


async def test_an_alteration_whose_caller_gives_up_is_made_or_not_and_never_half(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        for number in range(8):
            column = pa.schema([(f"column_{number}", pa.int64())])
            await cancelled_after(number, tables.alter(TABLE, columns=ColumnChanges(add=column)))
            try:
                definition = await tables.alter(TABLE, columns=ColumnChanges(add=column))
            except SchemaMismatch:
                (definition,) = tables.definitions()
            assert column.names[0] in definition.schema.names
            assert table.definition == definition


async def test_a_drop_whose_caller_gives_up_is_finished(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await put(table, {"ann": 1})
        async with table.buckets[1].mutex:
            assert await cancelled_after(20, tables.drop(TABLE))
        again = await new_table(tables)
        assert again is not table
        assert (await again.reads.count(None))[0] == 0
        with pytest.raises(TableNotFound):
            await table.reads.count(None)
