"""A problem with one committed transaction affects only its buckets; all other buckets and every start work."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import (
    DataLoss,
    DiskFull,
    InternalError,
    ScanKvError,
    TransactionCommitted,
    TransactionLost,
    Unavailable,
)
from scankv.model.tables.evolution import ColumnChanges
from streaming_server.config import ServerConfig
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.transactions.decisions import CommittedTransaction
from streaming_server.storage.transactions.staging import UPSERT, list_tokens
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.snapshots import new_table
from tests.support.tables import SCORES, ipc_stream, scores
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from streaming_server.engine.table.live_table import LiveTable

pytestmark = pytest.mark.asyncio

ONE, TWO, OTHER = "game.one", "game.two", "game.other"
PLAYERS = [f"p{number}" for number in range(12)]


@asynccontextmanager
async def started(data: Path) -> AsyncIterator[Tables]:
    """Opens the tables as a server does when it starts."""
    tables = Tables(ServerConfig(data=data, block_cache_bytes=1 << 20, storage_threads=2))
    try:
        await tables.recover()
        tables.start()
        yield tables
    finally:
        await tables.close()


async def commit(tables: Tables, value: int, *names: str, id_: str = "") -> CommittedTransaction:
    """Commits a transaction that sets the scores of all players in some tables."""
    begun = await tables.transactions.begin(
        TransactionOptions(id=id_, attempt=os.urandom(8).hex(), finds_conflicts=False, ttl=60)
    )
    assert isinstance(begun, OpenTransaction)
    for number, name in enumerate(names):
        data = ipc_stream(SCORES, scores(PLAYERS, [value] * len(PLAYERS)))
        place = StagedRequestId(token=begun.token, part="main", sequence=number)
        await tables.transactions.staging.stage(place, tables.table(name), UPSERT, data, kind=MERGE)
    return await tables.transactions.commit(begun.token, id_, ())


async def scores_of(table: LiveTable, bucket: int | None = None) -> set[int | None]:
    """Returns the distinct scores of a table, or of the players in one of its buckets."""
    keys = scores(PLAYERS, [0] * len(PLAYERS)).select(["player"])
    _, buckets = table.state.codec.keys.encode(keys)
    chosen = keys.filter([bucket in (None, each) for each in buckets.tolist()])
    batch, _, _ = await table.reads.lookup(ipc_stream(keys.schema, chosen), None)
    return set(batch["score"].to_pylist())


def crash(data: Path, copy: Path) -> Path:
    """Copies the state of the disk as if the process was killed now.

    Threads of the server may still write: then a copy has files of different moments, and another one is taken.
    """

    def state() -> list[tuple[Path, int, int]]:
        return [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(data.rglob("*"))]

    while True:
        try:
            before = state()
            shutil.copytree(data, copy)
            if state() == before:
                return copy
        except (FileNotFoundError, shutil.Error):  # A file was removed while the copy was taken.
            pass
        shutil.rmtree(copy, ignore_errors=True)


def failing(
    error: Callable[[], Exception], *, when: Callable[..., bool], then: Callable[..., Any]
) -> Callable[..., Any]:
    """Makes a function fail if a condition on its arguments holds."""

    def call(*args: Any, **options: Any) -> Any:
        if when(*args, **options):
            raise error()
        return then(*args, **options)

    return call


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_commit_that_cannot_be_recorded_as_done_is_recorded_before_the_next_and_no_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = TransactionLog.append
    fails = failing(no_space, when=lambda _, record, **__: "done" in record, then=append)
    async with started(tmp_path / "data") as tables:
        await new_table(tables, ONE)
        monkeypatch.setattr(TransactionLog, "append", fails)
        await commit(tables, 1, ONE)
        # The decision would fit on the disk, but the bucket would forget that the first transaction is applied.
        with pytest.raises(OSError, match="No space left"):
            await commit(tables, 2, ONE)
        assert await scores_of(tables.table(ONE)) == {1}
        first = crash(tmp_path / "data", tmp_path / "first")
        monkeypatch.undo()
        await commit(tables, 3, ONE)
        second = crash(tmp_path / "data", tmp_path / "second")
    for copy, value in ((first, 1), (second, 3)):
        async with started(copy) as tables:
            assert await scores_of(tables.table(ONE)) == {value}
            await commit(tables, 4, ONE)
            assert await scores_of(tables.table(ONE)) == {4}


@pytest.mark.breadth
async def test_a_damaged_bucket_blocks_a_transaction_only_for_itself_over_many_starts_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "data") as tables:
        await new_table(tables, ONE)
        await new_table(tables, TWO)
        await commit(tables, 1, ONE, TWO)
        module = "streaming_server.engine.transactions.roll_forward.apply_rows"
        monkeypatch.setattr(module, failing(no_space, when=lambda *_: True, then=lambda *_: None))
        with pytest.raises(ScanKvError, match="is committed, but could not be written"):
            await commit(tables, 2, ONE, TWO, id_="job:1")
        monkeypatch.undo()
        data = crash(tmp_path / "data", tmp_path / "crashed")
    damage = data / "tables" / "game" / "one" / "buckets" / "0001" / "CURRENT"
    content = damage.read_bytes()
    damage.write_bytes(b"nonsense")
    for start in range(3):
        async with started(data) as tables:
            one, two = tables.table(ONE), tables.table(TWO)
            with pytest.raises(DataLoss, match=r"bucket 1 of game.one"):
                await scores_of(one, 1)
            with pytest.raises(DataLoss, match=r"is committed, but could not be written to bucket 1 of game\.one"):
                await tables.transactions.begin(
                    TransactionOptions(id="job:1", attempt="again", finds_conflicts=False, ttl=60)
                )
            if start == 0:
                assert await scores_of(one, 0) == await scores_of(one, 2) == await scores_of(two) == {2}
                # More transactions than the bucket remembers.
                for value in range(3, 30):
                    await commit(tables, value, TWO)
            assert await scores_of(two) == {29}
    damage.write_bytes(content)
    async with started(data) as tables:
        assert await scores_of(tables.table(ONE)) == {2}
        assert await scores_of(tables.table(TWO)) == {29}
        repeated = await tables.transactions.begin(
            TransactionOptions(id="job:1", attempt="again", finds_conflicts=False, ttl=60)
        )
        assert isinstance(repeated, CommittedTransaction)
        assert sorted(repeated.log_offsets) == [ONE, TWO]
        assert sorted(repeated.log_offsets[ONE]) == [0, 1, 2]


@pytest.mark.breadth
async def test_damaged_staged_rows_of_a_decided_transaction_block_only_its_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "data") as tables:
        for name in (ONE, TWO, OTHER):
            await new_table(tables, name)
            await commit(tables, 1, name)
        # One bucket has the complete transaction, the other none of it.
        whole = tables.table(ONE).buckets[0]
        monkeypatch.setattr(
            "streaming_server.engine.transactions.roll_forward.apply_rows",
            failing(no_space, when=lambda live, *_: live is not whole, then=apply_rows),
        )
        with pytest.raises(ScanKvError, match="is committed"):
            await commit(tables, 2, ONE, TWO)
        monkeypatch.undo()
        with pytest.raises(Unavailable, match="lacks rows of a committed transaction"):
            await scores_of(tables.table(TWO))
        assert await scores_of(tables.table(ONE), 0) == {2}
        data = crash(tmp_path / "data", tmp_path / "crashed")
    (part,) = data.glob("transactions/*/0.part")
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2])
    for _ in range(2):
        async with started(data) as tables:
            assert await scores_of(tables.table(ONE), 0) == {2}
            for name, bucket in ((ONE, 1), (ONE, 2), (TWO, None)):
                with pytest.raises(DataLoss, match=r"staged requests .* are damaged.*drop the table"):
                    await scores_of(tables.table(name), bucket)
            await commit(tables, 5, OTHER)
            assert await scores_of(tables.table(OTHER)) == {5}
    shutil.copytree(data, tmp_path / "dropped")
    part.write_bytes(content)
    async with started(data) as tables:
        assert await scores_of(tables.table(ONE)) == await scores_of(tables.table(TWO)) == {2}
        assert not list(data.glob("transactions/*/0.part"))
    async with started(tmp_path / "dropped") as tables:
        await tables.drop(TWO)
        await tables.drop(ONE)
        assert not list((tmp_path / "dropped").glob("transactions/*/")), "no bucket lacks it any more"
        await new_table(tables, ONE)
        await commit(tables, 7, ONE)
    async with started(tmp_path / "dropped") as tables:
        assert await scores_of(tables.table(ONE)) == {7}


async def test_a_transaction_that_finds_the_disk_full_is_applied_once_there_is_space_and_shows_no_half_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = failing(
        lambda: DiskFull("the disk is full"),
        when=lambda live, *_: (live.table, live.number) == (ONE, 1),
        then=apply_rows,
    )
    async with started(tmp_path / "data") as tables:
        for name in (ONE, TWO):
            await new_table(tables, name)
            await commit(tables, 1, name)
        monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", full)
        with pytest.raises(DiskFull, match=r"is committed, but could not be written to bucket 1 of game\.one"):
            await commit(tables, 2, ONE, TWO, id_="job:7")
        data = crash(tmp_path / "data", tmp_path / "crashed")
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"bucket 1 of game.one lacks .* the disk is full") as refused:
                await scores_of(tables.table(ONE))
            assert refused.value.retry_after is not None
            assert await scores_of(tables.table(TWO)) == {2}
            await tables.transactions.retry()
        monkeypatch.undo()
        await tables.transactions.retry()
        assert await scores_of(tables.table(ONE)) == {2}
        assert not list((tmp_path / "data").glob("transactions/*/"))
        assert not tables.transactions.open
    monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", full)
    async with started(data) as tables:
        with pytest.raises(Unavailable):
            await scores_of(tables.table(ONE))
        monkeypatch.undo()
        await tables.transactions.retry()
        assert await scores_of(tables.table(ONE)) == {2}
        again = await tables.transactions.begin(
            TransactionOptions(id="job:7", attempt="x", finds_conflicts=False, ttl=60)
        )
        assert isinstance(again, CommittedTransaction)


async def test_a_damaged_transaction_log_blocks_only_buckets_that_may_lack_a_commit(tmp_path: Path) -> None:
    async with started(tmp_path / "data") as tables:
        for name in (ONE, OTHER):
            await new_table(tables, name)
            await commit(tables, 1, name)
        begun = await tables.transactions.begin(TransactionOptions(id="", attempt="x", finds_conflicts=False, ttl=60))
        assert isinstance(begun, OpenTransaction)
        data = ipc_stream(SCORES, scores(PLAYERS, [2] * len(PLAYERS)))
        place = StagedRequestId(token=begun.token, part="main", sequence=0)
        await tables.transactions.staging.stage(place, tables.table(ONE), UPSERT, data, kind=MERGE)
        # The staged rows of the commits are removed in the background. Until then, their buckets might lack rows, too.
        staged = tmp_path / "data" / "transactions"
        await await_until(partial(_has_only, staged, begun.token), "the staged rows of the commits are removed")
        copy = crash(tmp_path / "data", tmp_path / "crashed")
    (log,) = [path for path in (copy / "transactions").glob("log-*") if not path.suffix]
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])
    for _ in range(2):
        async with started(copy) as tables:
            assert await scores_of(tables.table(OTHER)) == {1}
            await tables.table(OTHER).writes.upsert(ipc_stream(SCORES, scores(["p1"], [1])), 0)
            with pytest.raises(DataLoss, match=r"may lack rows of a committed transaction"):
                await scores_of(tables.table(ONE))
            with pytest.raises(DataLoss, match=r"transaction log .* is damaged"):
                await commit(tables, 3, OTHER)
    log.write_bytes(content)
    async with started(copy) as tables:
        assert await scores_of(tables.table(ONE)) == {1}
        assert [each.token for each in tables.transactions.open] == [begun.token]


async def _has_only(staged: Path, token: str) -> bool:
    return list_tokens(staged) == [token]


async def stuck_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., bool], *, expected: bool = True
) -> Path:
    """Creates what a crash leaves of two tables when transaction `job:2` is not applied where a condition holds."""
    async with started(tmp_path / "data") as tables:
        for name in (ONE, TWO):
            await new_table(tables, name)
            await commit(tables, 1, name)
        module = "streaming_server.engine.transactions.roll_forward.apply_rows"
        monkeypatch.setattr(module, failing(no_space, when=fails, then=apply_rows))
        with pytest.raises(ScanKvError, match="is committed") if expected else nullcontext():
            await commit(tables, 2, ONE, TWO, id_="job:2")
        monkeypatch.undo()
        if not expected:
            # The next start applies the transaction again, until its staged rows are removed.
            await await_until(partial(_nothing_is_staged, tmp_path / "data"), "nothing of the transaction is left")
        return crash(tmp_path / "data", tmp_path / "crashed")


async def _nothing_is_staged(data: Path) -> bool:
    return not list_tokens(data / "transactions")


async def test_a_transaction_whose_rows_are_lost_can_be_given_up_which_unblocks_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = iter(range(100))
    monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.step_rows", lambda *_: 1)

    def fails(live: Any, *_: Any) -> bool:
        # One bucket has the complete transaction, one only its first key, the others nothing.
        return live.table == TWO or live.number == 2 or (live.number == 1 and next(steps) > 0)

    data = await stuck_in(tmp_path, monkeypatch, fails)
    (part,) = data.glob("transactions/*/0.part")
    part.write_bytes(part.read_bytes()[:100])
    token = part.parent.name
    async with started(data) as tables:
        assert [decision.token for decision, _ in tables.transactions.stuck] == [token]
        with pytest.raises(DataLoss, match=rf"scankv transactions give-up {token}"):
            await scores_of(tables.table(TWO))
        with pytest.raises(TransactionCommitted):
            await tables.transactions.abort(token)
        with pytest.raises(TransactionLost):
            await tables.transactions.give_up("nonsense")
        committed, lost = await tables.transactions.give_up(token)
        assert [(each.table, each.bucket) for each in lost] == [(ONE, 1), (ONE, 2), *((TWO, each) for each in range(3))]
        assert [each.applied for each in lost] == [1, 0, 0, 0, 0]
        assert {each.rows for each in lost} == {None}
        assert all("damaged" in each.reason for each in lost)
        assert f"the transaction {token} (id 'job:2') is given up" in caplog.text
        assert sorted(committed.log_offsets) == [ONE]
        assert not tables.transactions.stuck
        assert not list(data.glob("transactions/*/"))
        assert await scores_of(tables.table(ONE), 0) == {2}
        assert await scores_of(tables.table(ONE), 1) == {1, 2}
        assert await scores_of(tables.table(ONE), 2) == {1}
        assert await scores_of(tables.table(TWO)) == {1}
        again = await tables.transactions.begin(
            TransactionOptions(id="job:2", attempt="x", finds_conflicts=False, ttl=60)
        )
        assert isinstance(again, CommittedTransaction)
        await commit(tables, 3, ONE, TWO)
        with pytest.raises(TransactionLost):
            await tables.transactions.give_up(token)
    async with started(data) as tables:
        assert await scores_of(tables.table(ONE)) == await scores_of(tables.table(TWO)) == {3}


async def test_giving_up_applies_what_it_can_and_counts_the_lost_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await stuck_in(tmp_path, monkeypatch, lambda *_: True)
    (data / "tables" / "game" / "one" / "buckets" / "0001" / "CURRENT").write_bytes(b"nonsense")
    (data / "tables" / "game" / "two" / "table.json").write_bytes(b"nonsense")
    async with started(data) as tables:
        ((decision, _),) = tables.transactions.stuck
        _, lost = await tables.transactions.give_up(decision.token)
        assert [(each.table, each.bucket) for each in lost] == [(ONE, 1), *((TWO, each) for each in range(3))]
        _, buckets = tables.table(ONE).state.codec.keys.encode(scores(PLAYERS, [0] * len(PLAYERS)).select(["player"]))
        assert lost[0].rows == buckets.tolist().count(1)
        assert "table.json" in lost[1].reason
        assert await scores_of(tables.table(ONE), 0) == await scores_of(tables.table(ONE), 2) == {2}
        with pytest.raises(DataLoss, match=r"bucket 1 of game\.one is damaged"):
            await scores_of(tables.table(ONE), 1)


async def test_a_transaction_that_can_still_be_applied_cannot_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await stuck_in(tmp_path, monkeypatch, lambda *_: True)
    full = failing(lambda: DiskFull("the disk is full"), when=lambda *_: True, then=apply_rows)
    monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", full)
    async with started(data) as tables:
        ((decision, _),) = tables.transactions.stuck
        with pytest.raises(TransactionCommitted, match="may still be applied: the disk is full"):
            await tables.transactions.give_up(decision.token)
        with pytest.raises(Unavailable):
            await scores_of(tables.table(TWO))
        monkeypatch.undo()
        # Everything can be applied now.
        assert (await tables.transactions.give_up(decision.token))[1] == []
        assert await scores_of(tables.table(ONE)) == await scores_of(tables.table(TWO)) == {2}


async def test_a_commit_that_fails_unexpectedly_names_the_way_out_which_works_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "streaming_server.engine.transactions"
    async with started(tmp_path / "data") as tables:
        table = await new_table(tables, ONE)
        await commit(tables, 1, ONE)
        broken = failing(
            lambda: ValueError("an error of code"), when=lambda live, *_: live.number == 1, then=apply_rows
        )
        monkeypatch.setattr(f"{module}.roll_forward.apply_rows", broken)
        with pytest.raises(
            InternalError, match=r"the transaction is committed, but .* transactions give-up"
        ) as refused:
            await commit(tables, 2, ONE, id_="job:2")
        ((decision, _),) = tables.transactions.stuck
        assert f"scankv transactions give-up {decision.token}" in str(refused.value)
        for bucket, score in ((0, 2), (2, 2)):
            assert await scores_of(table, bucket) == {score}
        with pytest.raises(InternalError, match=rf"bucket 1 of .* scankv transactions give-up {decision.token}"):
            await scores_of(table, 1)
        # What cannot be written may not even be read.
        monkeypatch.setattr(f"{module}.give_up.read_staged_rows", failing(ValueError, when=lambda *_: True, then=len))
        _, (lost,) = await tables.transactions.give_up(decision.token)
        assert (lost.table, lost.bucket, lost.rows, lost.applied) == (ONE, 1, None, 0)
        monkeypatch.undo()
        assert not tables.transactions.stuck
        assert await scores_of(table, 1) == {1}
        await table.writes.upsert(ipc_stream(SCORES, scores(PLAYERS[:6], [7] * 6)), 0)
        await commit(tables, 8, ONE)
        assert await scores_of(table) == {8}
    async with started(tmp_path / "data") as tables:
        assert await scores_of(tables.table(ONE)) == {8}


async def test_the_schema_of_a_table_stays_until_a_stuck_transaction_is_applied_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ColumnChanges(add=pa.schema([("more", pa.string())]))
    async with started(tmp_path / "data") as tables:
        await new_table(tables, ONE)
        await new_table(tables, OTHER)
        full = failing(lambda: DiskFull("the disk is full"), when=lambda *_: True, then=apply_rows)
        monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", full)
        with pytest.raises(DiskFull):
            await commit(tables, 2, ONE)
        # A row that was checked may have no form in another schema.
        with pytest.raises(DiskFull, match="is committed, but could not be written"):
            await tables.alter(ONE, columns=more)
        await tables.alter(ONE, set_options={"log_retention_seconds": "60"})
        await tables.alter(OTHER, columns=more)
        monkeypatch.undo()
        ((decision, _),) = tables.transactions.stuck
        assert (await tables.transactions.give_up(decision.token))[1] == []
        await tables.alter(ONE, columns=more)
        assert await scores_of(tables.table(ONE)) == {2}


async def test_a_commit_that_fails_unexpectedly_is_applied_once_the_cause_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "data") as tables:
        await new_table(tables, ONE)
        await commit(tables, 1, ONE)
        broken = failing(
            lambda: ValueError("an error of code"), when=lambda live, *_: live.number == 1, then=apply_rows
        )
        monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", broken)
        with pytest.raises(InternalError):
            await commit(tables, 2, ONE)
    monkeypatch.undo()
    async with started(tmp_path / "data") as tables:
        assert await scores_of(tables.table(ONE)) == {2}
        assert not tables.transactions.stuck


async def test_giving_up_changes_nothing_unless_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = await stuck_in(tmp_path, monkeypatch, lambda *_: True)
    (part,) = data.glob("transactions/*/0.part")
    content = part.read_bytes()
    part.write_bytes(content[:100])
    append = TransactionLog.append
    async with started(data) as tables:
        ((decision, _),) = tables.transactions.stuck
        fails = failing(no_space, when=lambda _, record, **__: "done" in record, then=append)
        monkeypatch.setattr(TransactionLog, "append", fails)
        with pytest.raises(OSError, match="No space left"):
            await tables.transactions.give_up(decision.token)
        monkeypatch.undo()
        with pytest.raises(DataLoss):
            await scores_of(tables.table(TWO))
    crashed = shutil.copytree(data, tmp_path / "again")
    async with started(data) as tables:
        await tables.transactions.give_up(decision.token)
        assert await scores_of(tables.table(TWO)) == {1}
    crashed.joinpath(*part.parts[-3:]).write_bytes(content)
    async with started(crashed) as tables:
        assert await scores_of(tables.table(ONE)) == await scores_of(tables.table(TWO)) == {2}


@pytest.mark.parametrize("fails_again", [False, True])
async def test_transactions_continue_without_a_restart_after_a_failed_sync_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_again: bool
) -> None:
    module = "streaming_server.storage.transactions.transaction_log"
    full = failing(lambda: DiskFull("the disk is full"), when=lambda *_, sync, **__: sync, then=write_at)
    async with started(tmp_path / "data") as tables:
        for name in (ONE, OTHER):
            await new_table(tables, name)
            await commit(tables, 1, name)
        # From then on, only the next decision needs a sync.
        await await_until(partial(_nothing_is_staged, tmp_path / "data"), "the ends of the commits are recorded")
        begun = await tables.transactions.begin(
            TransactionOptions(id="job:2", attempt="a", finds_conflicts=False, ttl=60)
        )
        assert isinstance(begun, OpenTransaction)
        data = ipc_stream(SCORES, scores(PLAYERS, [2] * len(PLAYERS)))
        place = StagedRequestId(token=begun.token, part="main", sequence=0)
        await tables.transactions.staging.stage(place, tables.table(ONE), UPSERT, data, kind=MERGE)
        monkeypatch.setattr(f"{module}.write_at", full)
        with pytest.raises(DiskFull, match="is not known yet"):
            await tables.transactions.commit(begun.token, "job:2", ())
        # The transaction may not committed. Its bucket is not readable, and no other transaction is decided.
        with pytest.raises(Unavailable, match=r"bucket . of game\.one: .* is not known yet"):
            await scores_of(tables.table(ONE))
        with pytest.raises(DiskFull):
            await commit(tables, 3, OTHER)
        with pytest.raises(DiskFull):
            await tables.transactions.retry()
        with pytest.raises(TransactionCommitted):
            await tables.transactions.abort(begun.token)
        monkeypatch.undo()
        if fails_again:
            # The new log has its final name, or not.
            monkeypatch.setattr(f"{module}.sync_directory", failing(no_space, when=lambda *_: True, then=print))
            with pytest.raises(OSError, match="No space left"):
                await tables.transactions.retry()
            with pytest.raises(Unavailable):
                await scores_of(tables.table(ONE))
            monkeypatch.undo()
        await tables.transactions.retry()
        assert await scores_of(tables.table(ONE)) == await scores_of(tables.table(OTHER)) == {1}
        await commit(tables, 4, OTHER)
        await tables.transactions.commit(begun.token, "job:2", ())
        assert await scores_of(tables.table(ONE)) == {2}
        assert len([path for path in (tmp_path / "data" / "transactions").glob("log-*") if not path.suffix]) == 1
    async with started(tmp_path / "data") as tables:
        assert await scores_of(tables.table(ONE)) == {2}
        assert await scores_of(tables.table(OTHER)) == {4}
        again = await tables.transactions.begin(
            TransactionOptions(id="job:2", attempt="x", finds_conflicts=False, ttl=60)
        )
        assert isinstance(again, CommittedTransaction)
