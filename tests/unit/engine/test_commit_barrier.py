"""While a transaction is applied: who waits at the barrier, who sees the earlier state, and who is not affected."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import streaming_server.engine.transactions.roll_forward as roll_forward_module
from scankv.model.errors import Unavailable
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.engine.writes.lookups import lookup_rows as looked_up_in
from streaming_server.storage.transactions.staging import UPSERT
from tests.support.snapshots import new_table, tables_in
from tests.support.tables import SCORES, ipc_stream, scores
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.storage.transactions.decisions import CommittedTransaction

pytestmark = pytest.mark.asyncio

PLAYERS = [f"player {number}" for number in range(40)]
KEYS = ipc_stream(pa.schema([SCORES.field("player")]), scores(PLAYERS, [0] * 40).select([0]))


def rows(value: int, players: list[str] = PLAYERS) -> bytes:
    return ipc_stream(SCORES, scores(players, [value] * len(players)))


async def lookup_rows(table: LiveTable) -> list[int]:
    batch, _, _ = await table.reads.lookup(KEYS, None)
    return list(batch["score"].to_pylist())


class Held:
    """Holds the commit of a transaction before its write batches.

    Attributes:
        entered: Is set when it is before the one that is held.
        release: Lets it continue.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.entered, self.release = threading.Event(), threading.Event()
        self._left = after
        monkeypatch.setattr(roll_forward_module, "apply_rows", self._apply)

    def _apply(self, *args: object) -> None:
        self._left -= 1
        if self._left < 0:
            self.entered.set()
            assert self.release.wait(60)
        apply_rows(*args)  # type: ignore[arg-type]


@asynccontextmanager
async def committing(
    tables: Tables, *staged: tuple[LiveTable, bytes]
) -> AsyncIterator[asyncio.Task[CommittedTransaction]]:
    terms = TransactionOptions(id="", attempt="a", finds_conflicts=False, ttl=60)
    begun = await tables.transactions.begin(terms)
    assert isinstance(begun, OpenTransaction)
    for number, (table, data) in enumerate(staged):
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        await tables.transactions.staging.stage(place, table, UPSERT, data, kind=MERGE)
    task = asyncio.create_task(tables.transactions.commit(begun.token, "", ()))
    yield task
    await task


async def fail_to_apply(monkeypatch: pytest.MonkeyPatch, tables: Tables, table: LiveTable, data: bytes) -> None:
    """Commits a transaction of which only the first write batch can be applied."""
    calls = 0

    def fails(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("no space left on device")
        apply_rows(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(roll_forward_module, "apply_rows", fails)
    with suppress(Unavailable):
        async with committing(tables, (table, data)) as commit:
            with pytest.raises(Unavailable):
                await commit


async def test_nobody_sees_a_part_and_lookups_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table, other = await new_table(tables, buckets=2), await new_table(tables, "game.other", buckets=1)
        third = await new_table(tables, "game.third", buckets=1)
        for each in (table, other, third):
            await each.writes.upsert(rows(1), 0)
        before = (await table.reads.view_now(None)).log_offsets
        told: list[int] = []
        table.state.on_change(lambda: told.append(1))
        held = Held(monkeypatch, after=1)
        async with committing(tables, (table, rows(2)), (other, rows(2))) as commit:
            await asyncio.to_thread(held.entered.wait, 60)

            async def one_is_written() -> bool:
                return sum(live.mutex.locked() for live in table.buckets) == 1

            await await_until(one_is_written, "one bucket written, and the other held")
            states = [await live.open() for live in table.buckets]
            assert sum(bucket.state.count for bucket in states) > 40
            told.clear()
            waiting = {
                "count": asyncio.create_task(table.reads.count(None)),
                "pin": asyncio.create_task(table.pinning.offsets()),
                "write": asyncio.create_task(table.writes.upsert(rows(3, ["late"]), 0)),
                "other": asyncio.create_task(other.reads.count(None)),
                "alter": asyncio.create_task(tables.alter(table.definition.name, add_indexes=[["score"]])),
            }
            # Lookups in the bucket whose mutex the held batch has would wait for it.
            held_bucket = next(live for live in table.buckets if live.mutex.locked())
            free = next(live for live in table.buckets if not live.mutex.locked())
            found, offsets = await looked_up_in(table.buckets, {free.number: [b"nobody"]})
            assert (found, offsets) == ([None], {free.number: before[free.number]})
            assert await lookup_rows(third) == [1] * 40
            await third.writes.upsert(rows(5, ["somebody"]), 0)
            assert (await table.reads.view_now(None)).log_offsets == before
            for live in (held_bucket, free):
                assert live.durable_offset == before[live.number]
                assert not live.is_quiet_at(before[live.number])
            assert tables.transactions.stats.closed_commit_barriers == 1
            assert not any(task.done() for task in waiting.values())
            assert not told
            held.release.set()
            committed = await commit
        assert await lookup_rows(table) == await lookup_rows(other) == [2] * 40
        assert told, "who waits for changes is told when the gate opens"
        for task in waiting.values():
            await task
        assert committed.log_offsets["game.other"] == (await other.reads.view_now(None)).log_offsets
        assert (await table.reads.count(None))[0] == 41
        assert tables.transactions.stats.closed_commit_barriers == 0


async def test_a_lookup_over_several_buckets_is_of_one_side_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=4)
        await table.writes.upsert(rows(0), 0)
        done = False

        async def look() -> int:
            count = 0
            while not done:
                assert len(set(await lookup_rows(table))) == 1
                count += 1
            return count

        looking = asyncio.create_task(look())
        for value in range(1, 30):
            async with committing(tables, (table, rows(value))):
                pass
        done = True
        assert await looking > 0


async def test_a_commit_that_cannot_be_applied_keeps_everybody_out_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=2)
        await table.writes.upsert(rows(1), 0)
        await fail_to_apply(monkeypatch, tables, table, rows(2))
        for call in (table.reads.count(None), table.writes.upsert(rows(3), 0), lookup_rows(table)):
            with pytest.raises(Unavailable, match="lacks rows of a committed transaction"):
                await call
    monkeypatch.undo()
    async with tables_in(tmp_path / "data") as tables:
        await tables.recover()
        assert await lookup_rows(tables.table("game.scores")) == [2] * 40


async def test_a_drop_waits_for_the_commit_that_writes_to_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=2)
        held = Held(monkeypatch, after=0)
        async with committing(tables, (table, rows(2))):
            await asyncio.to_thread(held.entered.wait, 60)
            drop = asyncio.create_task(tables.drop(table.definition.name))

            async def is_waiting() -> bool:
                return bool(tables.transactions.uses._altering)

            await await_until(is_waiting, "the drop waiting")
            held.release.set()
        await drop
        assert len(tables) == 0
