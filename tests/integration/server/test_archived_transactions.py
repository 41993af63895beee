"""Transactions that are in flight when a segment of the archive is taken are restored completely, or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.errors import ScanKvError
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_instant
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.storage.backup.archive_segment import read_segment
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.transactions.staging import UPSERT
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.server_process import ServerProcess
from tests.support.snapshots import new_table, tables_in
from tests.support.tables import SCORES, ipc_stream, scores
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

ONE, TWO = "game.one", "game.two"
PLAYERS = [f"p{number}" for number in range(12)]


def restored(store: BackupStore, instant: int, data: Path) -> dict[str, tuple[set[int], bool]]:
    """Restores all tables as of an instant. Returns the scores in each, and whether it is as of that instant."""
    result = restore_all(store, plan_instant(store, instant), data)
    exact = {each.name: not each.why for each in result.tables}
    with ServerProcess(data) as server, sync.connect(server.url) as client:
        assert not client.transactions()
        for name in exact:
            assert all(bucket.is_consistent for bucket in client.check_table(name))
        tables = {name: client.table(name).scan().to_arrow() for name in exact}
    assert all(rows.num_rows == len(PLAYERS) for rows in tables.values())
    return {name: (set(rows["score"].to_pylist()), exact[name]) for name, rows in tables.items()}


def same_in_both(score: int) -> dict[str, tuple[set[int], bool]]:
    return {name: ({score}, True) for name in (ONE, TWO)}


def commit_times(store: BackupStore) -> list[int]:
    """Returns the commit times of the archived transactions, in microseconds since 1970 UTC."""
    return [each["micros"] for name in store.segments() for each in read_segment(store, name).committed]


@pytest.mark.breadth
def test_a_transaction_that_is_staged_when_a_segment_is_taken_is_restored_from_its_commit_on(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    rows = pa.table({"player": PLAYERS, "score": [1] * len(PLAYERS)}, schema=SCORES)
    later = rows.set_column(1, "score", pa.array([2] * len(PLAYERS), SCORES.field("score").type))
    with (
        ServerProcess(tmp_path / "data", "--backup-location", store.location, *ARCHIVING) as server,
        sync.connect(server.url) as client,
    ):
        tables = [client.create_table(name, SCORES, primary_key=["player"], buckets=3) for name in (ONE, TWO)]
        for table in tables:
            table.upsert(rows)
        client.create_backup()
        transaction = client.transaction()
        transaction.upsert(tables[0], later)
        staged_in_part = wait_archived(store)
        transaction.upsert(tables[1], later)
        # A write, so that a segment is stored while the transaction is staged.
        tables[0].upsert(rows)
        staged = wait_archived(store)
        transaction.commit()
        after = wait_archived(store)
    (committed,) = commit_times(store)
    assert staged < committed <= after
    for name, instant, score in (
        ("staged_in_part", staged_in_part, 1),
        ("staged", staged, 1),
        ("just_before", committed - 1, 1),
        ("at_its_commit", committed, 2),
        ("after", after, 2),
    ):
        assert restored(store, instant, tmp_path / name) == same_in_both(score), name


async def stage(tables: Tables, score: int) -> str:
    """Stages a transaction that sets the scores of all players in both tables; returns its token."""
    begun = await tables.transactions.begin(
        TransactionOptions(id="", attempt=os.urandom(8).hex(), finds_conflicts=False, ttl=600)
    )
    assert isinstance(begun, OpenTransaction)
    for number, name in enumerate((ONE, TWO)):
        data = ipc_stream(SCORES, scores(PLAYERS, [score] * len(PLAYERS)))
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        await tables.transactions.staging.stage(place, tables.table(name), UPSERT, data, kind=MERGE)
    return begun.token


@pytest.mark.asyncio
@pytest.mark.soak
async def test_a_transaction_that_is_decided_but_not_applied_is_restored_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table has all of it when a segment is taken, and the disk has no space for the other table."""
    store = BackupStore(str(tmp_path / "backups"))

    def apply_to_one(live: Any, *arguments: Any) -> Any:
        if live.table == TWO:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return apply_rows(live, *arguments)

    async with tables_in(tmp_path / "data", backup_location=store.location, archive_every_seconds=0.05) as tables:
        for name in (ONE, TWO):
            await new_table(tables, name)
        await tables.transactions.commit(await stage(tables, 1), "", ())
        tables.backups.create()
        await await_until(lambda: asyncio.to_thread(store.manifests), "the backup")
        token = await stage(tables, 2)
        before = await asyncio.to_thread(wait_archived, store)
        with monkeypatch.context() as patch:
            patch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", apply_to_one)
            with pytest.raises(ScanKvError, match="is committed, but could not be written"):
                await tables.transactions.commit(token, "", ())
            decided = await asyncio.to_thread(wait_archived, store)
            # One table lacks it in the archive, too: the restore takes that from the backup, and says so.
            found = await asyncio.to_thread(restored, store, decided, tmp_path / "stuck")
            assert found == {ONE: ({2}, True), TWO: ({1}, False)}
        await tables.transactions.retry()
        assert not tables.transactions.stuck
        after = await asyncio.to_thread(wait_archived, store)
    committed = commit_times(store)[-1]
    assert before < committed <= decided
    for name, instant, score in (
        ("before", before, 1),
        ("just_before", committed - 1, 1),
        ("at_its_commit", committed, 2),
        ("decided", decided, 2),
        ("after", after, 2),
    ):
        assert await asyncio.to_thread(restored, store, instant, tmp_path / name) == same_in_both(score), name
