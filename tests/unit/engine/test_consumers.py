"""Consumers in the engine: what they keep of the changelog, how long they live, and their limits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.changes.log_positions import StartFrom
from scankv.model.errors import (
    ConsumerNotFound,
    DataLoss,
    InvalidRequest,
    PositionExpired,
    ScanKvError,
    TooManyConsumers,
)
from streaming_server.storage.changelog.offsets import count_of
from tests.support.plans import log_plan_of
from tests.support.snapshots import TABLE, new_table, put, tables_in
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.changes.log_plan import LogPlan, OpenedLog

pytestmark = pytest.mark.asyncio


def plan(consumer_id: str = "c", **others: Any) -> LogPlan:
    return log_plan_of(consumer_id=consumer_id, **others)


@asynccontextmanager
async def streaming(tables: Tables, asked: LogPlan | None = None) -> AsyncIterator[OpenedLog]:
    """Opens a stream of a consumer, which ends when it is fenced."""
    ended: list[ScanKvError] = []
    async with tables.consumers.stream(tables.table(TABLE).changes, asked or plan(), "scan", ended.append) as opened:
        yield opened


async def read_and_commit(tables: Tables, asked: LogPlan | None = None) -> None:
    """Reads all available changes, and commits them."""
    asked = asked or plan()
    async with streaming(tables, asked) as opened:
        while getattr(opened.source.next_chunk(8192, 1 << 20), "batch", None) is not None:
            pass
        await tables.consumers.commit(
            tables.table(TABLE).state, asked.consumer_id, opened.consumer_fence, opened.token(None)
        )


async def fill(table: LiveTable, value: int) -> None:
    await put(table, {f"player {i}": value for i in range(30)})


async def trimmed(table: LiveTable) -> int:
    """Trims changes that are not held; returns how many were removed."""
    for live in table.buckets:
        async with live.mutex:
            bucket = await live.open()
            await live.run(bucket.trim_log, bucket.state.log_offset, table.definition)
    return sum(live.state.log_first for live in table.buckets if live.state is not None)


async def changes(table: LiveTable) -> int:
    return sum(count_of(offset) for offset in (await table.reads.count(None))[1].values())


async def test_a_consumer_keeps_what_it_has_not_committed_from_its_first_moment(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await fill(table, 1)
        async with streaming(tables, plan(start=StartFrom.FULL)):
            await fill(table, 2)
        before = await changes(table)
        assert await trimmed(table) == 30
        await read_and_commit(tables, plan(start=StartFrom.FULL))
        assert await trimmed(table) == before


@pytest.mark.parametrize("start", [StartFrom.EARLIEST, StartFrom.LATEST, StartFrom.FULL])
async def test_what_a_consumer_keeps_is_kept_over_a_restart_before_it_is_back(tmp_path: Path, start: StartFrom) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await fill(table, 1)
        async with streaming(tables, plan(start=start)) as opened:
            kept = sum(count_of(offset) for offset in opened.source.offsets.values())
        await fill(table, 2)
    async with tables_in(tmp_path) as tables:
        assert await trimmed(tables.table(TABLE)) == kept
        async with streaming(tables):
            pass
        await tables.consumers.delete(tables.table(TABLE).state, "c")
        assert await trimmed(tables.table(TABLE)) == await changes(tables.table(TABLE))


@pytest.mark.breadth
async def test_a_consumer_of_which_nothing_is_heard_expires_and_keeps_nothing(tmp_path: Path) -> None:
    async with tables_in(tmp_path, consumer_ttl_seconds=1) as tables:
        table = await new_table(tables)
        await fill(table, 1)
        async with streaming(tables):
            pass
        async with streaming(tables, plan("busy")):

            async def only_one() -> bool:
                return [info.consumer_id for info in await tables.consumers.list_consumers(table.state)] == ["busy"]

            await await_until(only_one, "only the consumer with a stream")
        assert [file.name for file in (table.state.path / "consumers").iterdir()] == ["busy.json"]

        async def none() -> bool:
            return await tables.consumers.list_consumers(table.state) == []

        await await_until(none, "no consumer")
        assert await trimmed(table) == 30


async def test_a_commit_lets_a_consumer_live_on(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        async with streaming(tables) as opened:
            fence, token = opened.consumer_fence, opened.token(None)
        (before,) = await tables.consumers.list_consumers(table.state)
        await tables.consumers.commit(table.state, "c", fence, token)
        (after,) = await tables.consumers.list_consumers(table.state)
        assert (before.committed_micros, after.committed_micros > 0) == (0, True)
        assert 0 <= 7 * 86_400 - after.remaining < 1


async def test_there_are_at_most_so_many_consumers(tmp_path: Path) -> None:
    async with tables_in(tmp_path, max_consumers=2) as tables:
        await new_table(tables)
        for consumer_id in ("a", "b", "a"):
            async with streaming(tables, plan(consumer_id)):
                pass
        with pytest.raises(TooManyConsumers, match="the limit is 2"):
            await read_and_commit(tables, plan("c"))
        await tables.consumers.delete(tables.table(TABLE).state, "a")
        await read_and_commit(tables, plan("c"))


async def test_a_stream_that_cannot_be_opened_makes_no_consumer(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        wrong = plan(buckets=(9,))
        results = await asyncio.gather(*(read_and_commit(tables, wrong) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [InvalidRequest] * 3
        assert await tables.consumers.list_consumers(table.state) == []
        mixed = await asyncio.gather(read_and_commit(tables, wrong), read_and_commit(tables), return_exceptions=True)
        assert [type(result) for result in mixed] == [InvalidRequest, type(None)]


async def test_a_damaged_consumer_is_told_and_not_begun_anew_until_it_is_deleted(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await read_and_commit(tables)
        file = table.state.path / "consumers" / "c.json"
        file.write_text(file.read_text().replace('"token": "', '"token": "A'))
    async with tables_in(tmp_path) as tables:
        table = tables.table(TABLE)
        (info,) = await tables.consumers.list_consumers(table.state)
        assert "checksum" in info.damage
        for attempt in (
            read_and_commit(tables),
            tables.consumers.commit(table.state, "c", 1, b""),
            tables.consumers.reset(table.state, "c", StartFrom.EARLIEST, clamp=False),
        ):
            with pytest.raises(DataLoss, match="delete the consumer"):
                await attempt
        await tables.consumers.delete(table.state, "c")
        await read_and_commit(tables)


async def test_a_consumer_whose_changes_are_gone_is_told_and_keeps_nothing_until_it_is_moved(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await fill(table, 1)
        async with streaming(tables):
            pass
        for live in table.buckets:  # as maintenance does with consumers that hold too much
            live.release_log("consumer:c")
        await trimmed(table)
        with pytest.raises(PositionExpired):
            await read_and_commit(tables)
    async with tables_in(tmp_path) as tables:
        table = tables.table(TABLE)
        await fill(table, 2)
        assert await trimmed(table) == await changes(table) > 30
        async with streaming(tables, plan(clamp=True, buckets=(0,))):
            pass  # In the other buckets, its position stays, because they have no changes.
        await fill(table, 3)
        await trimmed(table)
        states = [live.state for live in table.buckets]
        assert [state is not None and state.log_first == state.count for state in states] == [False, True, True]
        async with streaming(tables, plan(clamp=True)) as opened:
            assert [count_of(offset) for offset in opened.source.offsets.values()] == [
                state.log_first for state in states if state is not None
            ]


async def test_consumers_go_with_their_table(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        async with streaming(tables) as opened:
            fence, token = opened.consumer_fence, opened.token(None)
            await tables.drop(TABLE)
        with pytest.raises(ScanKvError):
            await tables.consumers.commit(table.state, "c", fence, token)
        table = await new_table(tables)
        assert await tables.consumers.list_consumers(table.state) == []
        with pytest.raises(ConsumerNotFound):
            await tables.consumers.delete(table.state, "c")
        await read_and_commit(tables)
    async with tables_in(tmp_path) as tables:
        assert [info.consumer_id for info in await tables.consumers.list_consumers(tables.table(TABLE).state)] == ["c"]


async def test_a_caller_who_gives_up_leaves_a_consumer_as_it_is_on_disk(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables)
        await read_and_commit(tables)
        for turns in range(12):
            opening = asyncio.create_task(read_and_commit(tables))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        (known,) = await tables.consumers.list_consumers(table.state)
        assert not known.live
        record = dict(tables.consumers._groups[TABLE].directory.read())["c"]
        assert record.fence == tables.consumers._groups[TABLE].consumers["c"].fence  # type: ignore[union-attr]
        await read_and_commit(tables)
