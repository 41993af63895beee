"""Deletes key ranges without tracking of changes, and kills the process at each step on disk in turn.

Run as `python -m tests.support.dying_deletion DIRECTORY STRIDE`; see `dying_transaction`. Prints the number of deaths.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streaming_server.engine.bucket.range_deletion
from scankv.model.expressions import col
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.delete_all import ALL_ROWS
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.range_markers import MarkerReached
from tests.support.dying_transaction import DEATH, SCHEMA, import_what_arrow_needs, in_child, keys_of, opened, rows

if TYPE_CHECKING:
    from streaming_server.engine.tables.tables import Tables

PART, WHOLE = "test.part", "test.whole"
ID: Final = "job:1"
ROWS: Final = range(40)
KEPT: Final = {PART: {*range(10), *range(30, 40)}, WHOLE: set[int]()}
"""The keys that the deletion leaves: of one table a part, of the other none."""
UNTRACKED: Final = WriteKind(overwrite=True, tracks_changes=False)


async def make(data: Path) -> None:
    async with opened(data) as tables:
        for name in KEPT:
            await tables.create(
                name, SCHEMA, primary_key=["k"], bucket_key=[], buckets=2, options={}, indexes=[["v"]], merging=None
            )
            await tables.table(name).writes.upsert(rows(ROWS, 1), 0)


async def delete(tables: Tables) -> None:
    """Deletes the ranges in one transaction; does nothing if its id is committed."""
    transactions = tables.transactions
    options = TransactionOptions(id=ID, attempt=os.urandom(8).hex(), finds_conflicts=False, ttl=60)
    begun = await transactions.begin(options)
    if not isinstance(begun, OpenTransaction):
        return
    for number, (name, plan) in enumerate(
        ((PART, replace(ALL_ROWS, where=(col("k") >= 10) & (col("k") < 30))), (WHOLE, ALL_ROWS))
    ):
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        table = tables.table(name)
        found = await transactions.staging.stage_delete_all(place, table, UNTRACKED, (), 60, plan)
        assert found == len(ROWS) - len(KEPT[name])
    await transactions.commit(begun.token, ID, [("main", 2)])


async def delete_and_die(data: Path, steps: int) -> None:
    async with opened(data) as tables:
        DEATH.left = steps
        await delete(tables)
        data.with_suffix(".acknowledged").touch()
        await tables.transactions._tasks.join()


async def check(data: Path) -> None:
    """Checks that all or nothing is deleted, and that what is written after a repetition stays."""
    async with opened(data) as tables:
        found = {name: await keys_in(tables, name) for name in KEPT}
        assert found == KEPT or (
            found == {name: {*ROWS} for name in KEPT} and not data.with_suffix(".acknowledged").exists()
        ), found
        await delete(tables)
        assert {name: await keys_in(tables, name) for name in KEPT} == KEPT
        for name in KEPT:
            await tables.table(name).writes.upsert(rows(range(20, 25), 2), 0)
    async with opened(data) as tables:
        for name, kept in KEPT.items():
            assert await keys_in(tables, name) == kept | {*range(20, 25)}


async def keys_in(tables: Tables, name: str) -> set[int]:
    """Returns the keys of the rows, after checking that changelog, index and row count agree with them."""
    table = tables.table(name)
    replayed: set[int] = set()
    for live in table.buckets:
        bucket, own = await live.open(), set[int]()
        start, end = bucket.log.span.offset_of(0), bucket.state.log_offset
        while count_of(start) < count_of(end):
            try:
                records = bucket.log.read(start, end, table.definition, max_changes=1000, max_bytes=1 << 30)
            except MarkerReached as reached:
                keys, start = reached.record.marker.keys, reached.record.offset + 1
                own = {key for key in own if table.state.codec.key_codec.encode_one((key,)) not in keys}
                continue
            for record in records:
                own |= set(record.changes.rows.column("k").to_pylist())
                start = record.offset + len(record.changes)
        replayed |= own
        findings = await (await table.open_check(live.number)).run()
        assert not findings.problem, findings
        assert not any(index.problem for index in findings.indexes), findings
    batch, _, _ = await table.reads.lookup(keys_of(range(60)), None)
    found = set(batch.column("k").to_pylist())
    assert replayed == found
    return found


def main(directory: Path, stride: int) -> None:
    """Kills the deletion at every step that the stride meets."""
    import_what_arrow_needs()
    DEATH.install()
    for limit, value in (("_STEP_ROWS", 3), ("_INDEXED_ROWS", 4)):
        setattr(streaming_server.engine.bucket.range_deletion, limit, value)
    in_child(make, directory / "made")
    for deaths, steps in enumerate(range(0, 1000, stride)):
        data = directory / f"deletion-{steps}"
        shutil.copytree(directory / "made", data)
        ended = in_child(delete_and_die, data, steps)
        in_child(check, data)
        shutil.rmtree(data)
        if ended:
            print(deaths)  # noqa: T201
            return
    raise AssertionError("it never ends")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
