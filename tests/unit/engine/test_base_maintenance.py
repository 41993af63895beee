"""Maintenance of columnar bases: built with the right rows despite concurrent writes, and at a bounded cost."""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import pyarrow as pa
import pytest
import pytest_asyncio

from scankv.model.errors import DiskFull, ScanCancelled, SnapshotLost
from scankv.model.tables.evolution import ColumnChanges
from scankv.v1 import scan_pb2
from streaming_server.engine.bucket import base_slot
from streaming_server.engine.columnar import base_build, base_maintenance, base_replay
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.scan.columnar import delta as delta_module
from streaming_server.scan.columnar.delta import Delta
from streaming_server.scan.read_plan import ReadPath
from streaming_server.storage.changelog.offsets import make_offset
from tests.support.plans import plan_of
from tests.support.snapshots import tables_in
from tests.support.tables import SCORES, ipc_stream
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from streaming_server.engine.bucket.base_record import BaseRecord
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.execution.open_scan import OpenedScan

pytestmark = pytest.mark.asyncio

NAME = "game.scores"
SELDOM = {"base_maintenance_seconds": 3600.0, "base_cpu_share": 1.0, "base_max_write_amplification": 1e12}
PLAN = plan_of(read_path=ReadPath.COLUMNAR)
AUTO = replace(PLAN, read_path=ReadPath.AUTO)


async def scores_table(tables: Tables, rows: int = 100, name: str = NAME, **options: str) -> LiveTable:
    """Makes a table of one bucket without a base."""
    wanted = {"columnar_base": "eager", **options}
    await tables.create(name, SCORES, primary_key=["player"], bucket_key=(), buckets=1, options=wanted)
    table = tables.table(name)
    await put(table, range(rows))
    return table


async def put(table: LiveTable, scores: Iterable[int]) -> None:
    await table.writes.upsert(ipc_stream(SCORES, batch_of(scores)), 1)


def batch_of(scores: Iterable[int]) -> pa.RecordBatch:
    values = list(scores)
    return pa.record_batch([pa.array([f"player {value:07}" for value in values]), pa.array(values)], schema=SCORES)


@pytest_asyncio.fixture
async def tables(tmp_path: Path) -> AsyncIterator[Tables]:
    """Tables whose bases are built only when a test looks after them."""
    async with tables_in(tmp_path, **SELDOM) as tables:
        yield tables


@pytest_asyncio.fixture
async def table(tables: Tables) -> LiveTable:
    return await scores_table(tables)


@pytest_asyncio.fixture
async def based(tables: Tables, table: LiveTable) -> LiveTable:
    """A table with a base of all its rows."""
    await look(tables, table)
    return table


async def look(tables: Tables, table: LiveTable) -> None:
    """Runs the background maintenance of the table once."""
    await tables._bases.maintain_bucket(table.state, table.buckets[0])


async def opened(table: LiveTable) -> OpenedScan:
    return await table.reads.open_view(PLAN)


async def rows_of(table: LiveTable) -> list[dict[str, Any]]:
    source = (await opened(table)).source
    rows: list[dict[str, Any]] = []
    while (chunk := source.next_chunk(8192, 1 << 20)) is not None:
        rows += chunk.batch.to_pylist()
    source.close()
    return rows


async def test_a_base_has_rows_written_with_a_column_that_was_added_while_its_building_waited_for_the_bucket(
    tables: Tables, table: LiveTable
) -> None:
    live = table.buckets[0]
    async with live.mutex:
        looking = asyncio.create_task(look(tables, table))
        await asyncio.sleep(0)
        await tables.alter(NAME, columns=ColumnChanges(add=pa.schema([("level", pa.int64())])))
        level = batch_of([7]).append_column("level", pa.array([1]))
        (part,) = prepare(level, table.state.codec, keys_only=False)
        await live.run(apply_rows, live, await live.open(), part, table.writes.merger)
    await looking
    rows = await rows_of(table)
    assert rows[7] == {"player": "player 0000007", "score": 7, "level": 1}
    assert len(rows) == 100


async def test_no_base_takes_the_last_of_the_disk_from_the_writes(
    tables: Tables, table: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(base_build, "SPARED_BYTES", 1 << 62)
        with pytest.raises(DiskFull, match="the remaining space is reserved for writes"):
            await look(tables, table)
    assert list((table.state.path / "bases" / "0000").iterdir()) == []
    await look(tables, table)
    assert len(await rows_of(table)) == 100


async def test_what_was_written_since_the_base_is_sorted_beside_the_event_loop(based: LiveTable) -> None:
    for start in range(1000, 1500, 100):
        await put(based, range(start, start + 100))
    scan = await opened(based)
    delta = based.buckets[0].columnar.delta
    assert delta is not None
    assert delta.view()._pending is None, "the first chunk would sort it, and hold the loop for so long"
    scan.source.close()


async def test_a_base_is_given_up_when_the_changes_since_go_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_replay, "_LAST_CHANGES", 0)
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        await put(table, range(50, 150))
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = tables.table(NAME)
        await table.reads.count(None)
        live = table.buckets[0]
        async with live.maintenance:
            looking = asyncio.create_task(look(tables, table))

            async def waits() -> bool:
                return live.columnar.adoption.locked() and not live.mutex.locked() and bool(live.maintenance._waiters)

            await await_until(waits, "reading the changes")
            bucket = live.open_bucket
            assert bucket is not None
            async with live.mutex:
                await live.run(bucket.trim_log, bucket.state.log_offset, table.definition)
        await looking
        assert live.damage is None, "changes beyond their retention are no damage"
        assert len(await rows_of(table)) == 150


async def test_a_base_of_changes_that_a_crash_undid_is_not_taken_up(based: LiveTable) -> None:
    await put(based, range(200, 300))
    live = based.buckets[0]
    base, delta, bucket = live.columnar.base, live.columnar.delta, live.open_bucket
    assert base is not None
    assert delta is not None
    assert bucket is not None
    replay = base_replay.BaseReplay(based.state, live, base, delta)
    assert replay._is_there(bucket)
    replay._at = make_offset(1, 100)
    assert not replay._is_there(bucket), "the bucket has no such epoch"


class NotesNothing(Delta):
    """Fails to record changes, as if no memory were left."""

    def add(self, keys: pa.Array, values: pa.Array | None, offset: int) -> None:
        raise MemoryError("there is no memory left")


async def test_a_write_that_cannot_be_noted_is_acknowledged_and_ends_the_use_of_the_base(
    tables: Tables, based: LiveTable
) -> None:
    live = based.buckets[0]
    live.columnar.delta = NotesNothing(0)
    await put(based, [1000])
    assert live.columnar.view() is None
    await look(tables, based)
    assert len(await rows_of(based)) == 101


async def test_a_scan_that_was_ended_keeps_nothing_of_the_base(tables: Tables, based: LiveTable) -> None:
    live, scan = based.buckets[0], await opened(based)
    assert live.columnar.base is not None
    assert scan.source.next_chunk(10, 1 << 20) is not None
    base = ref(live.columnar.base)
    await put(based, range(1000, 1100))
    await look(tables, based)
    assert base() is not None, "the scan reads it"
    scan.source.abort(ScanCancelled("enough"))
    gc.collect()
    assert base() is None, "its files stay mapped, and on the disk"


async def test_scans_read_rocksdb_until_what_was_written_since_the_last_one_is_merged(
    tables: Tables, based: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_slot, "_FEW_ROWS", 20)
    await put(based, range(1000, 1020))
    assert (await based.reads.explain(AUTO)).read_path == scan_pb2.READ_PATH_COLUMNAR
    await put(based, range(1020, 1021))
    explanation = await based.reads.explain(AUTO)
    assert explanation.read_path == scan_pb2.READ_PATH_ROCKSDB
    assert "much was written since its delta was last merged" in explanation.read_path_reason
    assert based.buckets[0].columnar.view() is None
    assert len(await rows_of(based)) == 121, "a scan that demands a base waits for the merge"
    await put(based, range(2000, 2100))
    await ask(based)
    await tables._bases.merge_deltas()
    assert (await based.reads.explain(AUTO)).read_path == scan_pb2.READ_PATH_COLUMNAR
    assert len(await rows_of(based)) == 221


async def test_a_delta_that_nobody_scans_is_not_merged_while_it_takes_little_memory(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM, base_total_delta_bytes=1_000_000) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        delta = table.buckets[0].columnar.delta
        assert delta is not None
        for _ in range(2):
            for number in range(20):
                await put(table, range(1000 * number, 1000 * number + 300))
            await tables._bases.merge_deltas()
        assert delta.unmerged_rows == delta.rows == 20 * 300 - 100
        await put(table, range(100_000, 115_000))
        assert delta.nbytes > 500_000
        await tables._bases.merge_deltas()
        assert delta.unmerged_rows == 0


def record_of(table: LiveTable, bucket: int = 0) -> BaseRecord:
    return table.buckets[bucket].columnar.record


async def ask(table: LiveTable) -> None:
    """Begins a scan that would read a base if one existed."""
    (await table.reads.open_view(AUTO)).source.close()


async def test_a_base_is_built_anew_for_its_age_even_where_little_was_written(tmp_path: Path) -> None:
    settings = {**SELDOM, "base_max_write_amplification": 1.0}
    async with tables_in(tmp_path, **settings, base_max_age_seconds=3600.0) as tables:
        table = await scores_table(tables)
        live = table.buckets[0]
        await look(tables, table)
        assert live.columnar.base is not None
        first = live.columnar.base.info.name
        await put(table, range(40))
        await put(table, range(1000, 1040))
        await look(tables, table)
        assert live.columnar.base.info.name == first
        assert "base_max_write_amplification" in record_of(table).waits
        record_of(table).cut_millis -= 3_600_001
        await look(tables, table)
        assert live.columnar.base.info.name > first
        assert len(await rows_of(table)) == 140


async def test_the_bucket_with_most_in_memory_loses_its_base_first_and_only_as_many_as_must(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM, base_total_delta_bytes=300_000) as tables:
        for number in range(3):
            table = await scores_table(tables, name=f"game.t{number}")
            await look(tables, table)
            await put(table, range(1000 * number, 1000 * number + 1500 * (number + 1)))
        found = [tables.table(f"game.t{number}").buckets[0] for number in range(3)]
        sizes = [live.columnar.delta_bytes for live in found]
        assert sizes == sorted(sizes)
        assert sum(sizes) > 300_000 > sum(sizes[:2])
        await tables._bases.keep_to_limits()
        assert [not live.columnar.unusable_reason() for live in found] == [True, True, False]
        assert "base_total_delta_bytes" in found[2].columnar.record.unused_reason
        await tables._bases.keep_to_limits()
        assert [not live.columnar.unusable_reason() for live in found] == [True, True, False]
        rows = await rows_of(tables.table("game.t1"))
        assert len(rows) == 3000 + 100
        await look(tables, tables.table("game.t2"))
        assert len(await rows_of(tables.table("game.t2"))) == 4500 + 100


async def test_a_build_ends_when_its_delta_is_dropped_and_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path, **SELDOM, base_total_delta_bytes=4096) as tables:
        table = await scores_table(tables)
        rest = base_build.CpuShare.rest

        async def writes(self: base_build.CpuShare) -> None:
            await put(table, range(5000, 6000))
            await tables._bases.keep_to_limits()
            await rest(self)

        with monkeypatch.context() as patch:
            patch.setattr(base_build.CpuShare, "rest", writes)
            await look(tables, table)
        assert list((table.state.path / "bases" / "0000").iterdir()) == []
        assert "base_total_delta_bytes is 4,096" in record_of(table).unused_reason
        assert (record_of(table).builds, record_of(table).drops) == (0, 1)
        assert record_of(table).cpu_seconds > 0
        await look(tables, table)
        assert record_of(table).builds == 1
        assert record_of(table).unused_reason == ""
        assert len(await rows_of(table)) == 1100


async def test_bases_give_as_much_space_to_writes_as_these_need_before_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with tables_in(tmp_path, **SELDOM, min_free_bytes=0) as tables:
        found = []
        for number in range(3):
            found.append(await scores_table(tables, rows=1000 * (number + 1), name=f"game.t{number}"))
            await look(tables, found[-1])
        await tables._bases.keep_to_limits()
        assert all(bases_of(table) for table in found)
        missing = record_of(found[2]).base_bytes + 1
        disk = shutil.disk_usage(tmp_path)._replace(free=base_build.SPARED_BYTES - missing)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
        tables._reserve._asked_at = None
        await tables._bases.keep_to_limits()
        assert [len(bases_of(table)) for table in found] == [1, 0, 0]
        assert caplog.text.count("is dropped: the disk is almost full, and writes need the space") == 2
        assert [record_of(table).drops for table in found] == [0, 1, 1]
        with suppress(DiskFull):  # where the bytes of its rows are not known yet
            await look(tables, found[1])
        assert bases_of(found[1]) == []
        monkeypatch.undo()
        tables._reserve._asked_at = None
        await look(tables, found[1])
        assert len(await rows_of(found[1])) == 2000


async def test_memory_is_bounded_while_a_bucket_is_held_and_others_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_maintenance, "_MUTEX_SECONDS", 0.01)
    monkeypatch.setattr(base_slot, "_FEW_ROWS", 20)
    async with tables_in(tmp_path, **SELDOM, base_total_delta_bytes=200_000) as tables:
        held, other = [await scores_table(tables, name=name) for name in ("game.held", "game.other")]
        for table in (held, other):
            await look(tables, table)
            await put(table, range(1000, 1100))
            await ask(table)
        async with held.buckets[0].mutex:
            await tables._bases.merge_deltas()
            assert unmerged(held) == 100
            assert unmerged(other) == 0
        await put(held, range(5000, 9000))
        async with held.buckets[0].mutex:
            await tables._bases.keep_to_limits()
        assert record_of(held).drops == 1
        assert record_of(other).drops == 0


async def test_a_base_that_is_due_waits_for_a_bucket_that_is_held(
    tables: Tables, based: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_maintenance, "_MUTEX_SECONDS", 0.01)
    await put(based, range(1000, 1100))
    async with based.buckets[0].mutex:
        looking = asyncio.create_task(look(tables, based))
        done, _ = await asyncio.wait([looking], timeout=0.1)
        assert not done
    await looking
    assert record_of(based).builds == 2


async def test_a_write_for_which_its_delta_has_no_room_is_acknowledged_and_counted(
    tables: Tables, based: LiveTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delta_module, "_MOST_BYTES", 1000)
    await put(based, range(1000, 1200))
    assert record_of(based).drops == 1
    assert "its delta has grown too large" in record_of(based).unused_reason
    assert "at most 1,000 fit" in caplog.text
    monkeypatch.undo()
    await look(tables, based)
    assert len(await rows_of(based)) == 300


def unmerged(table: LiveTable) -> int:
    delta = table.buckets[0].columnar.delta
    assert delta is not None
    return delta.unmerged_rows


async def test_what_is_written_during_a_build_is_merged_for_the_old_base_and_for_the_new_one(
    tables: Tables, based: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_slot, "_FEW_ROWS", 20)
    delta = based.buckets[0].columnar.delta
    assert delta is not None
    fork = delta.fork(delta.end)
    await put(based, range(1000, 1100))
    await ask(based)
    assert (delta.unmerged_rows, fork.unmerged_rows) == (100, 100)
    await tables._bases.merge_deltas()
    assert (delta.unmerged_rows, fork.unmerged_rows) == (0, 0)


async def test_a_row_that_is_updated_again_and_again_makes_no_base_due(tables: Tables) -> None:
    table = await scores_table(tables, rows=1000)
    await look(tables, table)
    players = [f"player {number:07}" for number in range(50)]
    for round_ in range(1, 6):
        rows = pa.record_batch([pa.array(players), pa.array([-round_] * 50)], schema=SCORES)
        await table.writes.upsert(ipc_stream(SCORES, rows), 1)
    assert unmerged(table) == 250
    await look(tables, table)
    assert record_of(table).builds == 1
    await put(table, range(2000, 2051))
    await look(tables, table)
    assert record_of(table).builds == 2


@pytest.mark.parametrize("is_paused", [True, False])
async def test_files_of_a_base_that_is_no_longer_read_go_even_if_no_other_base_is_due(
    tmp_path: Path, is_paused: bool
) -> None:
    async with tables_in(tmp_path, **SELDOM, base_min_rows=100) as tables:
        table = await scores_table(tables, columnar_base="auto")
        live = table.buckets[0]
        await ask(table)
        await tables._bases._look()
        assert live.columnar.base is not None
        await tables._bases._look()
        assert record_of(table).waits == "no scan has asked for a base since the last one was built"
        live.columnar.drop("it may lack a failed write")
        if is_paused:
            tables._bases._pause(live, "it was dropped a short time ago")
        await tables._bases._look()
        assert bases_of(table) == []
        assert record_of(table).builds == 1


async def test_building_keeps_to_its_share_of_a_core_over_all_tables_and_parts_of_a_build(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **{**SELDOM, "base_cpu_share": 0.2}) as tables:
        table = await scores_table(tables)
        began, spent = time.monotonic(), 0.0
        for number in range(5):
            await put(table, range(1000 * number, 1000 * number + 100))
            await look(tables, table)
            spent = record_of(table).cpu_seconds
        assert record_of(table).builds == 5
        assert time.monotonic() - began > 0.95 * spent / 0.2


def bases_of(table: LiveTable) -> list[Path]:
    directory = table.state.path / "bases" / "0000"
    return list(directory.iterdir()) if directory.is_dir() else []


async def test_a_first_scan_that_is_cancelled_leaves_the_base_to_the_next(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        await put(table, range(200, 210))
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = tables.table(NAME)
        live = table.buckets[0]
        async with live.mutex:
            await live.open()
            scan = asyncio.create_task(opened(table))

            async def waits() -> bool:
                return live.columnar.adoption.locked()

            await await_until(waits, "the scan looking for a base")
            scan.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scan
        assert not live.columnar.is_adopted
        assert len(await rows_of(table)) == 110


async def test_explain_names_no_base_while_scans_keep_too_many_of_its_states(
    based: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(based, range(1000, 1200))
    scan = await opened(based)
    monkeypatch.setattr(base_slot, "MAX_VIEWS_BYTES", 1000)
    assert (await based.reads.explain(AUTO)).read_path == scan_pb2.READ_PATH_COLUMNAR
    await put(based, [2000])
    assert based.buckets[0].columnar.view() is None
    assert (await based.reads.explain(AUTO)).read_path == scan_pb2.READ_PATH_ROCKSDB
    scan.source.close()


async def test_the_base_of_a_snapshot_whose_files_are_gone_is_not_taken_for_damaged(
    tables: Tables, based: LiveTable, caplog: pytest.LogCaptureFixture
) -> None:
    pinned = await tables.snapshots.pin(based.pinning)
    async with tables.snapshots.reading(pinned.snapshot_id, NAME) as reader:
        view = reader._view
        assert view.has_base(0)
        shutil.rmtree(view.directory.path)
        with pytest.raises(SnapshotLost):
            await reader.open_scan(PLAN)
        assert view.has_base(0)
    assert "no longer read" not in caplog.text
