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
from streaming_server.engine.transactions.committed_transactions import UNNAMED_SECONDS
from streaming_server.engine.transactions.open_transaction import OpenTransaction
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.transactions.staging import UPSERT
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.clocks import FakeClocks
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


@pytest.mark.parametrize("is_decided", [False, True])
async def test_a_late_request_to_prepare_undoes_no_later_attempt(tmp_path: Path, is_decided: bool) -> None:
    async with direct_workers(tmp_path / "data", 3) as workers:
        token = await workers.begin(finds_conflicts=True)
        await workers.stage(token, 2, 0, 1, part="first")
        await workers.stage(token, 2, 2, part="failed")
        await workers.put(2, 1)
        late: list[ShareRequest] = []
        may_go_on, has_come = asyncio.Event(), asyncio.Event()

        async def keep(method: str, worker: int, *arguments: Any) -> None:
            if (method, worker) == ("prepare", 1):
                late.append(*arguments)
            if len(late) > 1 and (method, worker) == (("conclude", 1) if is_decided else ("prepare", 2)):
                has_come.set()
                await may_go_on.wait()

        workers.before = keep
        with pytest.raises(TransactionConflict):
            await workers.commit(token, 1, 2)
        await workers.tables[2].transactions.abort(token)
        others = [1] if is_decided else [1, 2]
        commit = asyncio.create_task(workers.commit(token, *others, sizes=[("first", 2)]))
        await has_come.wait()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(workers.shares[1].prepare(late[0]), 10)
        may_go_on.set()
        if is_decided:
            await commit
        else:
            with pytest.raises(TransactionLost):
                await commit
        expected: set[int | None] = {2} if is_decided else set()
        assert [await workers.scores(number) for number in range(3)] == [expected, expected, {1}]


async def test_only_the_coordinator_remembers_the_id_of_a_commit(tmp_path: Path) -> None:
    """Otherwise another worker might name a commit that its coordinator has forgotten."""
    async with direct_workers(tmp_path / "data", 2) as workers:
        begun = await workers.begin_again("job:1")
        await workers.stage(begun[0].token, 2, 0, 1)
        committed = await workers.commit(begun[0].token, 1)
        assert set(committed.log_offsets) == set(workers.names)
        first, second = await workers.begin_again("job:1")
        assert first == committed
        assert isinstance(second, OpenTransaction)
        # The token is remembered everywhere, for calls that are repeated.
        assert await workers.commit(begun[0].token, 1) == committed
        await workers.tables[1].transactions.abort(second.token)
        with pytest.raises(TransactionCommitted):
            await workers.tables[1].transactions.begin(second.options, begun[0].token)


@pytest.mark.breadth
@pytest.mark.parametrize("fails", [False, True])
async def test_a_decision_that_a_crash_left_is_durable_before_another_worker_applies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Otherwise a failure of the power could undo it at the coordinator alone."""
    crashed = tmp_path / "crashed"
    syncs = SyncsOfLog(monkeypatch, 0)
    async with direct_workers(tmp_path / "data", 2) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)
        # The decision is written, and not synced.
        syncs.before = lambda: crashed.exists() or shutil.copytree(tmp_path / "data", crashed)
        await workers.commit(token, 1)
    done: list[str] = []

    async def note(method: str, *_: object) -> None:
        done.append(method)

    def sync() -> None:
        if fails and "fail" not in done:
            done.append("fail")
            fail()
        done.append("sync")

    syncs.before = sync
    async with direct_workers(crashed, 2, before=note) as workers:
        await await_until(partial(has_scores, workers, {2}), "the transaction is applied")
    assert done.index("sync") < done.index("conclude")
    assert ("fail" in done) == fails


async def has_scores(workers: DirectWorkers, expected: set[int | None]) -> bool:
    """Whether all players have these scores at all workers, and no bucket is blocked."""
    try:
        return all([await workers.scores(number) == expected for number in range(len(workers.tables))])
    except Unavailable:
        return False


@pytest.mark.breadth
async def test_a_share_does_not_expire_while_its_coordinator_commits(tmp_path: Path) -> None:
    async with direct_workers(tmp_path / "data", 3) as workers:
        token = await workers.begin(ttl=MIN_LEASE_SECONDS)
        await workers.stage(token, 2, 0, 1, 2)
        may_go_on, has_come = asyncio.Event(), asyncio.Event()

        async def wait(method: str, worker: int, *_: object) -> None:
            if (method, worker) == ("prepare", 1):
                has_come.set()
                await may_go_on.wait()

        workers.before = wait
        commit = asyncio.create_task(workers.commit(token, 1, 2))
        await has_come.wait()
        idle = await workers.begin(ttl=2 * MIN_LEASE_SECONDS)
        staged = workers.tables[2].transactions
        await await_until(partial(has_expired, staged, idle), "a later transaction has expired")
        may_go_on.set()
        assert (await commit).rows == 36


async def has_expired(transactions: Transactions, token: str) -> bool:
    return transactions.find(token) is None


_APPLY = "streaming_server.engine.transactions.roll_forward.apply_rows"


def fill_disk(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """Leaves no space for the rows of transactions in a table."""

    def full(live: LiveBucket, *arguments: Any) -> Any:
        if live.table == table:
            raise DiskFull("the disk is full")
        return apply_rows(live, *arguments)

    monkeypatch.setattr(_APPLY, full)


def hold_the_first_conclusion(workers: DirectWorkers) -> asyncio.Event:
    """Has the first conclusion of a share wait for the event that it returns."""
    notified: list[str] = []
    may_notify = asyncio.Event()

    async def hold(method: str, *_: object) -> None:
        if method == "conclude":
            notified.append(method)
            if len(notified) == 1:
                await may_notify.wait()

    workers.before = hold
    return may_notify


async def test_a_commit_that_is_applied_by_another_task_is_to_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_workers(tmp_path / "data", 2) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)
        fill_disk(monkeypatch, workers.names[0])
        may_notify = hold_the_first_conclusion(workers)
        commit = asyncio.create_task(workers.commit(token, 1))
        await await_until(partial(is_stuck, workers.tables[0].transactions), "the transaction is stuck")
        monkeypatch.undo()
        await workers.tables[0].transactions.retry()
        may_notify.set()
        with pytest.raises(Unavailable, match="is applied now"):
            await commit
        assert (await workers.commit(token, 1)).rows == 24
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]


async def test_a_commit_is_remembered_while_the_task_that_has_applied_it_applies_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a repeated commit would find it open, and lost at the other worker."""
    async with direct_workers(tmp_path / "data", 2) as workers:
        transactions, other = workers.tables[0].transactions, names_of_workers(2, "game", each=2)[0][1]
        await new_table(workers.tables[0], other)
        divided, alone = await workers.begin(), await workers.begin()
        await workers.stage(divided, 2, 0, 1)
        place = StagedRequestId(token=alone, part="main", sequence=0)
        await transactions.staging.stage(place, workers.tables[0].table(other), UPSERT, rows_of(2), kind=MERGE)
        is_full, may_apply, is_applying = True, threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def apply(live: LiveBucket, *arguments: Any) -> Any:
            if is_full and live.table != workers.names[1]:
                raise DiskFull("the disk is full")
            if live.table == other:
                loop.call_soon_threadsafe(is_applying.set)
                may_apply.wait()
            return apply_rows(live, *arguments)

        monkeypatch.setattr(_APPLY, apply)
        may_notify = hold_the_first_conclusion(workers)
        commit = asyncio.create_task(workers.commit(divided, 1))
        await await_until(partial(is_stuck, transactions), "the transaction is stuck")
        with pytest.raises(DiskFull):
            await workers.commit(alone)
        is_full = False
        retry = asyncio.create_task(transactions.retry())
        await is_applying.wait()
        may_notify.set()
        try:
            with pytest.raises(Unavailable, match="is applied now"):
                await commit
            assert (await workers.commit(divided, 1)).rows == 24
            with pytest.raises(TransactionCommitted):
                await transactions.abort(divided)
        finally:
            may_apply.set()
            await retry
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]


async def test_a_retry_ends_although_the_commit_itself_has_finished_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with direct_workers(tmp_path / "data", 2) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)
        fill_disk(monkeypatch, workers.names[0])
        may_notify = [asyncio.Event(), asyncio.Event()]
        notified: list[asyncio.Event] = []

        async def hold(method: str, *_: object) -> None:
            if method == "conclude":
                notified.append(may_notify[len(notified)])
                await notified[-1].wait()

        async def notifies_again() -> bool:
            return len(notified) == 2

        workers.before = hold
        commit = asyncio.create_task(workers.commit(token, 1))
        await await_until(partial(is_stuck, workers.tables[0].transactions), "the transaction is stuck")
        monkeypatch.undo()
        retry = asyncio.create_task(workers.tables[0].transactions.retry())
        await await_until(notifies_again, "the retry notifies the other worker")
        may_notify[0].set()
        assert (await commit).rows == 24
        may_notify[1].set()
        await retry
        assert not workers.tables[0].transactions.stuck


async def test_attempts_to_tell_a_worker_do_not_lengthen_the_log(tmp_path: Path) -> None:
    async def lose_the_decision(method: str, *_: object) -> None:
        if method != "prepare":
            await lose()

    async with direct_workers(tmp_path / "data", 2, before=lose_the_decision) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)
        with pytest.raises(Unavailable, match="has yet to be applied by worker 1"):
            await workers.commit(token, 1)
        transactions = workers.tables[0].transactions
        await transactions.retry()
        log = next(path for path in (tmp_path / "data" / "workers" / "0" / "transactions").glob("log-*[0-9]"))
        before = log.stat().st_size
        for _ in range(10):
            await transactions.retry()
        assert log.stat().st_size == before
        workers.before = None
        for tables in workers.tables:
            await tables.transactions.retry()
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]
        assert not transactions.stuck


async def test_a_coordinator_ends_a_transaction_whose_share_was_applied_and_forgotten_long_ago(tmp_path: Path) -> None:
    clocks = FakeClocks()
    async with direct_workers(tmp_path / "data", 2, clocks=clocks) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1)

        async def lose_the_answer(method: str, worker: int, *arguments: Any) -> None:
            if method == "conclude":
                await workers.shares[worker].conclude(*arguments)
                await lose()

        workers.before = lose_the_answer
        with pytest.raises(Unavailable, match="has yet to be applied by worker 1"):
            await workers.commit(token, 1)
        clocks.pass_time(UNNAMED_SECONDS + 1)
    async with direct_workers(tmp_path / "data", 2, before=lose, clocks=clocks) as workers:
        assert workers.tables[1].transactions.find_committed(token) is None
        workers.before = None
        await workers.tables[0].transactions.retry()
        assert not workers.tables[0].transactions.stuck
        assert [await workers.scores(number) for number in range(2)] == [{2}, {2}]


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
