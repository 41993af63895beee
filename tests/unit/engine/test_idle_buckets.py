"""Idle buckets are closed and opened again without loss, and no bucket in use is closed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss, TableNotFound, Unavailable, WriterFenced
from streaming_server.config import ServerConfig
from streaming_server.engine.bucket import commit_barrier, locking
from streaming_server.engine.table import live_table
from streaming_server.engine.tables.idle_buckets import IdleBuckets
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.writes.writing import WritePreconditions
from streaming_server.storage.bucket.writer_states import WriteIdentity
from streaming_server.storage.changelog.offsets import epoch_of
from tests.support.plans import plan_of
from tests.support.snapshots import TABLE, new_table, pinned_rows, put, tables_in
from tests.support.tables import SCORES, ipc_stream, scores
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable

pytestmark = pytest.mark.asyncio

ROWS: dict[str, int | None] = {f"player {i}": i for i in range(200)}
SCAN = plan_of()


async def rest_all(tables: Tables) -> None:
    """Closes all buckets that may be closed now."""
    idle = IdleBuckets(tables._states, most=1000, few=1000, idle_seconds=0.0)
    await idle.look(time.monotonic() + 1)


def open_count(table: LiveTable) -> int:
    return sum(live.is_open for live in table.buckets)


async def rows_of(table: LiveTable) -> dict[str, int | None]:
    opened = await table.reads.open_view(SCAN)
    found: dict[str, int | None] = {}
    try:
        while (chunk := opened.source.next_chunk(8192, 1 << 20)) is not None:
            found |= dict(zip(*(column.to_pylist() for column in chunk.batch.columns), strict=True))
    finally:
        opened.source.close()
    return found


def request(sequence: int, values: dict[str, int | None], epoch: int = 0) -> tuple[bytes, int, WritePreconditions]:
    identity = WriteIdentity(writer="job", epoch=epoch, sequence=sequence)
    return ipc_stream(SCORES, scores(list(values), list(values.values()))), 0, WritePreconditions(identity=identity)


async def test_what_was_written_is_there_after_closing_and_opening(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=6)
        await put(table, ROWS)
        states = [live.state for live in table.buckets]
        view = table.reads.view_in_memory(None)
        await rest_all(tables)
        assert open_count(table) == 0
        at_rest = table.reads.view_in_memory(None)
        assert at_rest is not None
        assert view is not None
        assert at_rest.log_offsets == view.log_offsets
        assert await rows_of(table) == ROWS
        for live, state in zip(table.buckets, states, strict=True):
            assert live.state is not None
            assert state is not None
            assert live.state.log_offset == state.log_offset, "an orderly closing begins no epoch"
            assert epoch_of(live.state.log_offset) == 0
        await rest_all(tables)
        await put(table, {"player 1": -1})
        assert open_count(table) == 1, "only what is touched is opened"
        assert await rows_of(table) == {**ROWS, "player 1": -1}
    async with tables_in(tmp_path) as tables:
        assert await rows_of(tables.table(TABLE)) == {**ROWS, "player 1": -1}


async def test_a_request_is_applied_once_however_often_buckets_are_closed_in_between(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=4)
        _, first = await table.writes.upsert(*request(1, ROWS))
        await rest_all(tables)
        _, again = await table.writes.upsert(*request(1, ROWS))
        assert again == first
        epoch, _ = await table.writes.open_writer("job")
        await rest_all(tables)
        with pytest.raises(WriterFenced):
            await table.writes.upsert(*request(2, ROWS))
        await table.writes.upsert(*request(3, {"player 0": 5}, epoch))
        assert (await rows_of(table))["player 0"] == 5


async def test_nothing_that_is_in_use_is_closed(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=2)
        await put(table, ROWS)
        opened = await table.reads.open_view(SCAN)
        await rest_all(tables)
        assert open_count(table) == 2, "a scan holds cursors"
        opened.source.close()
        stop = table.state.on_change(lambda: None)
        await rest_all(tables)
        assert open_count(table) == 2, "a listener waits for changes"
        stop()
        table.buckets[0].retain_log("a stream", 0)
        async with table.buckets[1].mutex:
            await rest_all(tables)
        assert open_count(table) == 2, "one holds changes, the other is held"
        table.buckets[0].release_log("a stream")
        table.buckets[1].damage = "something"
        await rest_all(tables)
        assert [live.is_open for live in table.buckets] == [False, True], "what is damaged may still be read"
        table.buckets[1].damage = None


async def test_a_bucket_whose_sync_failed_is_not_closed_and_is_opened_again_to_be_written(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=1)
        await put(table, ROWS)
        live = table.buckets[0]
        assert live._commit is not None

        def fail(_: int) -> None:
            raise OSError("the disk is gone")

        live._commit._sync = fail
        with pytest.raises(OSError, match="gone"):
            await put(table, {"player 1": 7})
        await rest_all(tables)
        assert live.is_open
        await put(table, {"player 2": 8})
        assert {**ROWS, "player 1": 7, "player 2": 8} == await rows_of(table)


async def test_who_listens_to_a_bucket_at_rest_hears_of_the_next_write(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=2)
        await put(table, ROWS)
        await rest_all(tables)
        heard = asyncio.Event()
        stop = table.state.on_change(heard.set)
        await put(table, {"player 1": 7})
        await asyncio.wait_for(heard.wait(), 60)
        stop()


@pytest.mark.parametrize(("has_files", "later"), [(True, 70), (False, 0)])
async def test_beyond_the_bound_those_unused_for_longest_are_closed(
    tmp_path: Path, has_files: bool, later: float
) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=8)
        await put(table, ROWS)
        recent = [live for live in table.buckets if live.number in (2, 5)]
        for live in recent:
            async with live.mutex:
                await live.open()
        bounds = (2, 5) if has_files else (5, 2)
        idle = IdleBuckets(tables._states, most=bounds[0], few=bounds[1], idle_seconds=1e9, has_files=lambda: has_files)
        await idle.look(time.monotonic() + later)
        assert [live for live in table.buckets if live.is_open] == recent


async def test_what_was_used_within_the_last_minute_stays_open_while_there_are_files(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=8)
        await put(table, ROWS)
        await IdleBuckets(tables._states, most=2, few=2, idle_seconds=1e9).look(time.monotonic() + 50)
        assert open_count(table) == 8


async def test_a_stop_closes_other_tables_while_one_is_still_in_use(tmp_path: Path) -> None:
    tables = Tables(ServerConfig(data=tmp_path), max_hold_seconds=60)
    tables.start()
    first, second = [await new_table(tables, name) for name in ("stop.a", "stop.b")]
    for table in (first, second):
        await put(table, ROWS)
    async with first.buckets[0].mutex:
        closing = asyncio.create_task(tables.close())

        async def is_closed() -> bool:
            return open_count(second) == 0

        await await_until(is_closed, "the second table closed")
        assert open_count(first) > 0
    await closing


@pytest.mark.breadth
async def test_a_call_that_would_open_buckets_for_too_long_is_refused_and_gets_further_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=20)
        await put(table, ROWS)
        await rest_all(tables)
        monkeypatch.setattr(locking, "OPENING_SECONDS", 0.0)
        monkeypatch.setattr(commit_barrier, "_OPENED_TOGETHER", 8)
        for opened in (8, 16):
            with pytest.raises(Unavailable, match=f"^{opened} of 20 buckets of .* are open so far") as refused:
                await rows_of(table)
            assert refused.value.retry_after
            assert open_count(table) == opened
        assert await rows_of(table) == ROWS


async def test_statistics_that_would_open_buckets_for_too_long_are_refused_and_get_further_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=3)
        monkeypatch.setattr(live_table, "OPENING_SECONDS", 0.0)
        for opened in (1, 2):
            with pytest.raises(Unavailable, match=f"^{opened} of 3 buckets of .* are open so far") as refused:
                await table.statistics()
            assert refused.value.retry_after
        figures, _ = await table.statistics()
        assert [each.state is not None for each in figures] == [True] * 3


@pytest.mark.timeout(180)  # opens and closes buckets continuously
@pytest.mark.soak
async def test_pins_work_on_buckets_at_rest_and_while_they_are_closed_all_the_time(tmp_path: Path) -> None:
    async with tables_in(tmp_path) as tables:
        table = await new_table(tables, buckets=3)
        await put(table, ROWS)
        await rest_all(tables)
        done = False

        async def keep_closing() -> None:
            while not done:
                await rest_all(tables)
                await asyncio.sleep(0)

        closing = asyncio.create_task(keep_closing())
        expected = dict(ROWS)
        for number in range(12):
            changed: dict[str, int | None] = {f"player {number}": -number, f"new {number}": number}
            await put(table, changed)
            expected |= changed
            snapshot = await tables.snapshots.pin(table.pinning)
            found = await pinned_rows(tables.snapshots, snapshot.snapshot_id)
            assert dict(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
            assert await rows_of(table) == expected
            await tables.snapshots.release(snapshot.snapshot_id)
        done = True
        await closing


async def test_the_server_closes_idle_buckets_by_itself(tmp_path: Path) -> None:
    async with tables_in(tmp_path, bucket_idle_seconds=0.05) as tables:
        table = await new_table(tables, buckets=4)
        await put(table, ROWS)

        async def all_closed() -> bool:
            return not open_count(table)

        await await_until(all_closed, "every bucket to be closed")
        assert await rows_of(table) == ROWS


async def test_files_that_a_drop_has_removed_are_no_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with tables_in(tmp_path) as tables:
        live = (await new_table(tables)).buckets[0]
        await tables.drop(TABLE)
        assert isinstance(live.record_error(DataLoss("a file is missing")), TableNotFound)
        assert live.damage is None
    assert "DATA_LOSS" not in caplog.text
