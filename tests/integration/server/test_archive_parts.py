"""What a process contributes to the segments of the archive, until it hears that this is stored."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from streaming_server.engine.backups.archive_part import StoredCapture
from streaming_server.engine.backups.segment_capture import SegmentCapture, join_captures
from tests.support.direct_workers import direct_workers
from tests.support.snapshots import TABLE, new_table, put, tables_in
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.asyncio
async def test_a_process_contributes_again_what_it_does_not_know_to_be_stored(tmp_path: Path) -> None:
    location = str(tmp_path / "backups")
    async with tables_in(tmp_path / "data", backup_location=location, archive_every_seconds=3600) as tables:
        part = tables.archive.part
        none = await part.capture(StoredCapture())
        assert (none.definitions, none.changes, none.files) == ({}, [], {})

        table = await new_table(tables)
        await put(table, {"ann": 1})
        created = await part.capture(StoredCapture(none.capture_id))
        assert created.definitions is None
        assert [change.definition for change in created.changes] == [table.definition]
        again = await part.capture(StoredCapture(none.capture_id))
        assert (again.changes, again.files) == (created.changes, created.files)
        stored = await part.capture(StoredCapture(again.capture_id))
        assert (stored.changes, stored.files, stored.definitions) == ([], {}, None)

        unknown = await part.capture(StoredCapture("of another process"))
        assert unknown.definitions == {table.definition.incarnation: table.definition}
        assert (unknown.changes, unknown.files) == ([], created.files)

        await tables.drop(TABLE)
        dropped = await part.capture(StoredCapture(unknown.capture_id))
        assert [change.definition for change in dropped.changes] == [None]
        # The bucket with a row has a log that the table's directory had.
        assert any(size for log in dropped.files.values() for _, size in log.files)
        assert all(log.path.is_dir() for log in dropped.files.values())
        assert SegmentCapture.from_json(json.loads(json.dumps(dropped.to_json()))) == dropped
        last = await part.capture(StoredCapture(dropped.capture_id))
        assert (last.changes, last.files) == ([], {})
        assert not any(log.path.exists() for log in dropped.files.values())


@pytest.mark.asyncio
async def test_a_segment_of_several_processes_is_of_the_earliest_instant(tmp_path: Path) -> None:
    location = str(tmp_path / "backups")
    async with tables_in(tmp_path / "data", backup_location=location, archive_every_seconds=3600) as tables:
        await put(await new_table(tables), {"ann": 1})
        early = await tables.archive.part.capture(StoredCapture())
        late = replace(early, micros=early.micros + 5, ended_micros=early.ended_micros + 5, files={})
    for parts in ([early, late], [late, early]):
        joined = join_captures(parts, ())
        assert (joined.micros, joined.ended_micros) == (early.micros, late.ended_micros)
        assert joined.files == early.files


@pytest.mark.asyncio
async def test_a_segment_waits_for_a_share_and_has_the_commit_that_its_coordinator_still_tells_others_of(
    tmp_path: Path,
) -> None:
    held, released = asyncio.Event(), asyncio.Event()

    async def hold(method: str, worker: int, *_: object) -> None:
        if (method, worker) == ("conclude", 2):
            held.set()
            await released.wait()

    async with direct_workers(tmp_path / "data", 3, before=hold) as workers:
        token = await workers.begin()
        await workers.stage(token, 1, 0, 1, 2)
        committing = asyncio.create_task(workers.commit(token, 1, 2))
        await held.wait()
        try:
            parts = [tables.archive.part for tables in workers.tables]
            captures = [asyncio.create_task(part.capture(StoredCapture())) for part in parts]
            await asyncio.wait(captures[:2])
            # In the meantime, tables are created, altered and dropped.
            await new_table(workers.tables[2], names_of_workers(3, "other")[2][0])
            assert not captures[2].done()
            assert not committing.done()
            joined = join_captures([*map(asyncio.Task.result, captures[:2])], ())
            assert [set(each.log_offsets) for each in joined.committed] == [set(workers.names[:2])]
        finally:
            released.set()
        joined = join_captures([await each for each in captures], ())
        committed = await committing
    assert joined.committed == [committed]
    assert committed.micros < joined.micros
    assert not joined.left_out
