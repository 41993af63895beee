"""Whichever calls between workers are lost, late or repeated, and whichever log fails, a transaction stays whole."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import ScanKvError, TransactionConflict, Unavailable
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.direct_workers import direct_workers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


class FailingSyncs:
    """Makes the syncs of the transaction log of one worker fail, until `heal`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, worker: int) -> None:
        self.are_failing = False

        def write(path: Path, *arguments: Any, sync: bool) -> None:
            if sync and self.are_failing and path.parent.parent.name == str(worker):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            write_at(path, *arguments, sync=sync)

        monkeypatch.setattr(f"{TransactionLog.__module__}.write_at", write)


async def test_a_refused_commit_ends_although_another_one_cannot_be_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = FailingSyncs(monkeypatch, 0)
    async with direct_workers(tmp_path / "data", 3) as workers:
        refused = await workers.begin(finds_conflicts=True)
        await workers.stage(refused, 2, 0, 1, 2)
        await workers.put(2, 1)
        syncs.are_failing = True
        with pytest.raises(ScanKvError, match="not known yet"):
            await workers.commit(await workers.begin())
        with pytest.raises(TransactionConflict):
            await workers.commit(refused, 1, 2)
        # What worker 1 has prepared is undone, and the transaction is open.
        assert [await asyncio.wait_for(workers.scores(number), 10) for number in range(3)] == [set(), set(), {1}]
        await workers.tables[0].transactions.abort(refused)
        syncs.are_failing = False


async def test_a_share_is_applied_once_the_log_of_its_worker_can_be_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = FailingSyncs(monkeypatch, 1)
    async with direct_workers(tmp_path / "data", 2) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)

        async def fail_syncs(method: str, *_: object) -> None:
            syncs.are_failing = method == "conclude"

        workers.before = fail_syncs
        with pytest.raises(Unavailable, match="is committed, and has yet to be applied by worker 1"):
            await workers.commit(token, 1)
        workers.before = None
        syncs.are_failing = False
        for tables in reversed(workers.tables):
            await tables.transactions.retry()
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]
        await workers.commit(await workers.begin(), coordinator=1)
        assert not any(tables.transactions.stuck for tables in workers.tables)
