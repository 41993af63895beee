"""Whichever calls between workers are lost, late or repeated, and whichever log fails, a transaction stays whole."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import (
    DiskFull,
    ScanKvError,
    TransactionCommitted,
    TransactionConflict,
    TransactionLost,
    Unavailable,
)
from scankv.model.limits import MIN_LEASE_SECONDS
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.transactions.open_transaction import OpenTransaction
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.transactions.staging import UPSERT
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.direct_workers import DirectWorkers, direct_workers, lose, rows_of
from tests.support.snapshots import new_table
from tests.support.waiting import await_until
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.engine.transactions.transactions import Transactions
    from streaming_server.engine.transactions.two_phase import ShareRequest

pytestmark = pytest.mark.asyncio


class SyncsOfLog:
    """The syncs of the transaction log of one worker.

    Attributes:
        before: Called before each of them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, worker: int) -> None:
        self.before: Callable[[], object] = work

        def write(path: Path, *arguments: Any, sync: bool) -> None:
            if sync and path.parent.parent.name == str(worker):
                self.before()
            write_at(path, *arguments, sync=sync)

        monkeypatch.setattr(f"{TransactionLog.__module__}.write_at", write)


def work() -> None:
    """Lets a sync work."""


def fail() -> None:
    """Fails a sync."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_refused_commit_ends_although_another_one_cannot_be_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = SyncsOfLog(monkeypatch, 0)
    async with direct_workers(tmp_path / "data", 3) as workers:
        refused = await workers.begin(finds_conflicts=True)
        await workers.stage(refused, 2, 0, 1, 2)
        await workers.put(2, 1)
        syncs.before = fail
        with pytest.raises(ScanKvError, match="not known yet"):
            await workers.commit(await workers.begin())
        with pytest.raises(TransactionConflict):
            await workers.commit(refused, 1, 2)
        # What worker 1 has prepared is undone, and the transaction is open.
        assert [await asyncio.wait_for(workers.scores(number), 10) for number in range(3)] == [set(), set(), {1}]
        await workers.tables[0].transactions.abort(refused)
        syncs.before = work


async def test_a_share_is_applied_once_the_log_of_its_worker_can_be_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = SyncsOfLog(monkeypatch, 1)
    async with direct_workers(tmp_path / "data", 2) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)

        async def fail_syncs(method: str, *_: object) -> None:
            syncs.before = fail if method == "conclude" else work

        workers.before = fail_syncs
        with pytest.raises(Unavailable, match="is committed, and has yet to be applied by worker 1"):
            await workers.commit(token, 1)
        workers.before = None
        syncs.before = work
        for tables in reversed(workers.tables):
            await tables.transactions.retry()
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]
        await workers.commit(await workers.begin(), coordinator=1)
        assert not any(tables.transactions.stuck for tables in workers.tables)


async def test_a_commit_is_refused_at_once_while_the_log_of_a_share_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = SyncsOfLog(monkeypatch, 1)
    async with direct_workers(tmp_path / "data", 2) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)
        syncs.before = fail
        for _ in range(2):
            with pytest.raises(ScanKvError, match="not known yet"):
                await asyncio.wait_for(workers.commit(token, 1), 10)
        syncs.before = work
        await workers.tables[1].transactions.retry()
        assert (await workers.commit(token, 1)).rows == 24
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]


async def test_a_share_of_an_undone_attempt_is_not_applied_when_another_attempt_is_decided(tmp_path: Path) -> None:
    async with direct_workers(tmp_path / "data", 3) as workers:
        token = await workers.begin(finds_conflicts=True)
        await workers.stage(token, 2, 0, part="first")
        await workers.stage(token, 2, 1, 2, part="failed")
        await workers.put(2, 1)
        may_ask = asyncio.Event()

        async def lose_the_undoing(method: str, *_: object) -> None:
            if method == "conclude":
                await lose()
            if method == "outcome":
                await may_ask.wait()

        workers.before = lose_the_undoing
        with pytest.raises(TransactionConflict):
            await workers.commit(token, 1, 2, sizes=[("first", 1), ("failed", 2)])
        await workers.commit(token, sizes=[("first", 1)])
        may_ask.set()
        assert [await workers.scores(number) for number in range(3)] == [{2}, set(), {1}]


async def is_stuck(transactions: Transactions) -> bool:
    return bool(transactions.stuck)


async def test_a_transaction_can_be_aborted_whose_share_was_in_doubt(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"

    async def crash(method: str, worker: int, *_: object) -> None:
        if (method, worker) == ("prepare", 2):
            await asyncio.to_thread(shutil.copytree, tmp_path / "data", crashed)

    async with direct_workers(tmp_path / "data", 3, before=crash) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1, 2)
        await workers.commit(token, 1, 2)
    async with direct_workers(crashed, 3, before=lose) as workers:
        assert [bool(tables.transactions.stuck) for tables in workers.tables] == [False, True, False]
        with pytest.raises(Unavailable, match="worker 0 of the server decides"):
            await workers.tables[1].transactions.abort(token)
        workers.before = None
        for tables in workers.tables:
            await tables.transactions.abort(token)
        assert await has_scores(workers, set())
        assert not any(tables.transactions.open for tables in workers.tables)
