"""How columnar bases are kept: built of the right rows whatever happens meanwhile, and at whose cost."""

from __future__ import annotations

import asyncio
import gc
import shutil
from typing import TYPE_CHECKING, Any
from weakref import ref

import pyarrow as pa
import pytest

from streaming_server.engine import base_replay, base_upkeep, live_bucket
from streaming_server.engine.bucket_steps import apply_rows
from streaming_server.engine.prepare import prepare
from streaming_server.scan.base_view import Via
from streaming_server.scan.opening import ReadPlan
from streaming_server.scan.overlay import Overlay
from streaming_server.storage.offsets import make_offset
from table_model.errors import ScanCancelled
from table_model.key_range import KeyRange
from tests.support.snapshots import tables_in
from tests.support.tables import SCORES, ipc_stream
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from streaming_server.engine.live_table import LiveTable
    from streaming_server.engine.tables import Tables
    from streaming_server.scan.opening import OpenedScan

pytestmark = pytest.mark.asyncio

NAME = "game.scores"
SELDOM = {"base_upkeep_seconds": 3600.0, "base_cpu_share": 1.0}
PLAN = ReadPlan(
    buckets=None,
    columns=None,
    where=None,
    where_message=b"",
    key_range=KeyRange(),
    reverse=False,
    limit=None,
    resume_token=b"",
    via=Via.BASE,
)


async def scores_table(tables: Tables, rows: int = 100, **options: str) -> LiveTable:
    """A table of one bucket that has no base yet."""
    wanted = {"columnar_base": "eager", **options}
    await tables.create(NAME, SCORES, primary_key=["player"], bucket_key=(), buckets=1, options=wanted)
    table = tables.table(NAME)
    await put(table, range(rows))
    return table


async def put(table: LiveTable, scores: Iterable[int]) -> None:
    await table.upsert(ipc_stream(SCORES, batch_of(scores)), 1)


def batch_of(scores: Iterable[int]) -> pa.RecordBatch:
    values = list(scores)
    return pa.record_batch([pa.array([f"player {value:07}" for value in values]), pa.array(values)], schema=SCORES)


async def look(tables: Tables, table: LiveTable) -> None:
    """What is done for the table in the background, once."""
    await tables._bases.look_after(table, table.buckets[0])


async def opened(table: LiveTable) -> OpenedScan:
    return await table.open_view(PLAN)


async def rows_of(table: LiveTable) -> list[dict[str, Any]]:
    source = (await opened(table)).source
    rows: list[dict[str, Any]] = []
    while (chunk := source.next_chunk(8192, 1 << 20)) is not None:
        rows += chunk.batch.to_pylist()
    source.close()
    return rows


async def test_a_base_has_rows_written_with_a_column_that_was_added_while_its_building_waited_for_the_bucket(
    tmp_path: Path,
) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        live = table.buckets[0]
        async with live.mutex:
            looking = asyncio.create_task(look(tables, table))
            await asyncio.sleep(0)
            await tables.alter(NAME, add_columns=pa.schema([("level", pa.int64())]))
            level = batch_of([7]).append_column("level", pa.array([1]))
            (part,) = prepare(level, table.keys, table.codec, keys_only=False)
            await live.run(apply_rows, live, await live.opened(), part, table.codec, [], table.engines)
        await looking
        rows = await rows_of(table)
        assert rows[7] == {"player": "player 0000007", "score": 7, "level": 1}
        assert len(rows) == 100


async def test_the_old_base_is_read_on_and_costs_no_more_when_a_new_one_cannot_be_written(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        await put(table, range(1000, 1100))
        bases = table.path / "bases" / "0000"
        shutil.rmtree(bases)
        bases.write_text("no directory can be made here")
        with pytest.raises(OSError, match="0000"):
            await look(tables, table)
        overlay = table.buckets[0].overlay
        assert overlay is not None
        assert overlay._fork is None, "what is written is kept twice"
        assert len(await rows_of(table)) == 200


async def test_no_base_takes_the_last_of_the_disk_from_the_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        with monkeypatch.context() as patch:
            patch.setattr(base_upkeep, "_SPARED_BYTES", 1 << 62)
            with pytest.raises(OSError, match="what is left of the disk is for writes"):
                await look(tables, table)
        assert list((table.path / "bases" / "0000").iterdir()) == []
        await look(tables, table)
        assert len(await rows_of(table)) == 100


async def test_what_was_written_since_the_base_is_sorted_beside_the_event_loop(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        for start in range(1000, 1500, 100):
            await put(table, range(start, start + 100))
        scan = await opened(table)
        overlay = table.buckets[0].overlay
        assert overlay is not None
        assert overlay.view()._pending is None, "the first chunk would sort it, and hold the loop for so long"
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
        await table.count(None)
        live = table.buckets[0]
        async with live.upkeep:
            looking = asyncio.create_task(look(tables, table))

            async def waits() -> bool:
                return live.base_looked_for and not live.mutex.locked() and bool(live.upkeep._waiters)

            await await_until(waits, "reading the changes")
            bucket = live.open_bucket
            assert bucket is not None
            async with live.mutex:
                await live.run(bucket.trim_log, bucket.state.log_offset)
        await looking
        assert live.damage is None, "changes beyond their retention are no damage"
        assert len(await rows_of(table)) == 150


async def test_a_base_of_changes_that_a_crash_undid_is_not_taken_up(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        await put(table, range(200, 300))
        live = table.buckets[0]
        base, overlay, bucket = live.base, live.overlay, live.open_bucket
        assert base is not None
        assert overlay is not None
        assert bucket is not None
        replay = base_replay.BaseReplay(table, live, base, overlay)
        assert replay._is_there(bucket)
        replay._at = make_offset(1, 100)
        assert not replay._is_there(bucket), "the bucket has no such epoch"


class NotesNothing(Overlay):
    """Fails as it would with no memory left."""

    def add(self, keys: pa.Array, values: pa.Array | None, offset: int) -> None:
        raise MemoryError("there is no memory left")


async def test_a_write_that_cannot_be_noted_is_acknowledged_and_ends_the_use_of_the_base(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        live = table.buckets[0]
        live.overlay = NotesNothing(0, 1 << 20)
        await put(table, [1000])
        assert live.base_view() is None
        await look(tables, table)
        assert len(await rows_of(table)) == 101


async def test_a_scan_that_was_ended_keeps_nothing_of_the_base(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        live, scan = table.buckets[0], await opened(table)
        assert live.base is not None
        assert scan.source.next_chunk(10, 1 << 20) is not None
        base = ref(live.base)
        await put(table, range(1000, 1100))
        await look(tables, table)
        assert base() is not None, "the scan reads it"
        scan.source.abort(ScanCancelled("enough"))
        gc.collect()
        assert base() is None, "its files stay mapped, and on the disk"


async def test_readers_that_keep_what_was_written_since_the_base_are_few_and_the_others_read_rocksdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_bucket, "MAX_VIEWS_BYTES", 64 << 10)
    async with tables_in(tmp_path, **SELDOM) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        await put(table, range(1000, 1200))
        live, scans = table.buckets[0], []
        for number in range(40):
            await put(table, [2000 + number])
            if live.base_view() is None:
                break
            scans.append(await opened(table))
            assert scans[-1].source.next_chunk(10, 1 << 20) is not None
        assert 3 < len(scans) < 40
        for scan in scans:
            scan.source.close()
        del scan, scans
        assert live.base_view() is not None


async def test_explain_names_no_base_where_too_much_was_written_since(tmp_path: Path) -> None:
    async with tables_in(tmp_path, **SELDOM, base_overlay_bytes=4096) as tables:
        table = await scores_table(tables)
        await look(tables, table)
        assert (await table.explain(PLAN)).via_reason == "asked for"
        await put(table, range(1000, 2000))
        assert (await table.explain(PLAN)).via_reason == "no bucket has a columnar base"
