"""Damage at one worker costs a divided transaction only what is damaged, and an operator can end what is left."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, sync
from scankv.model.errors import DataLoss, TransactionCommitted, TransactionLost, Unavailable
from scankv.model.limits import MAX_KEY_BYTES
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.writes.bucket_steps import apply_rows
from streaming_server.storage.transactions.staging import UPSERT
from tests.support.crashing_worker import crashing_workers
from tests.support.direct_workers import PLAYERS, DirectWorkers, direct_workers, lose
from tests.support.server_process import ServerProcess
from tests.support.snapshots import new_table
from tests.support.tables import SCORES, ipc_stream
from tests.support.waiting import await_until, wait_until
from tests.support.workers import has_ended, names_of_workers, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.bucket.live_bucket import LiveBucket


def reason_of(workers: DirectWorkers, number: int) -> str:
    """Returns why the one stuck transaction of a worker is stuck."""
    ((_, error),) = workers.tables[number].transactions.stuck
    return error.message


@pytest.mark.asyncio
async def test_a_divided_transaction_is_given_up_by_each_worker_the_coordinator_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_workers(tmp_path / "data", 3) as workers:
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1, 2)

        def damaged(live: LiveBucket, *arguments: Any) -> Any:
            if live.table in workers.names[:2]:
                raise DataLoss("the bucket is damaged", table=live.table, bucket=live.number)
            return apply_rows(live, *arguments)

        monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", damaged)
        with pytest.raises(DataLoss, match="scankv transactions give-up"):
            await workers.commit(token, 1, 2)
        first, second = (tables.transactions for tables in workers.tables[:2])
        with pytest.raises(TransactionCommitted, match="other worker processes have yet to apply it"):
            await first.give_up(token)
        _, lost = await second.give_up(token)
        assert {(each.table, each.applied) for each in lost} == {(workers.names[1], 0)}
        assert sum(each.rows or 0 for each in lost) == len(PLAYERS)
        committed, lost = await first.give_up(token)
        assert {(each.table, each.applied) for each in lost} == {(workers.names[0], 0)}
        assert committed.rows == 3 * len(PLAYERS)
        for tables in workers.tables[:2]:
            with pytest.raises(TransactionLost):
                await tables.transactions.give_up(token)
        assert [await workers.scores(number) for number in range(3)] == [set(), set(), {2}]
        assert await workers.commit(token, 1, 2) == committed


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.asyncio
async def test_a_share_in_doubt_can_be_given_up_when_its_coordinator_has_lost_the_log(
    tmp_path: Path, is_decided: bool
) -> None:
    crashed = tmp_path / "crashed"

    async def crash(method: str, worker: int, *_: object) -> None:
        if (method, worker) == (("conclude", 1) if is_decided else ("prepare", 2)):
            await _copy(tmp_path / "data", crashed)

    async with direct_workers(tmp_path / "data", 3, before=crash) as workers:
        await workers.commit(await workers.begin())
        token = await workers.begin()
        await workers.stage(token, 2, 0, 1, 2)
        await workers.commit(token, 1, 2)
    (log,) = (crashed / "workers" / "0" / "transactions").glob("log-*[0-9]")
    content = log.read_bytes()
    log.write_bytes(content[:10])
    async with direct_workers(crashed, 3, before=lose) as workers:
        with pytest.raises(TransactionCommitted, match="may still be applied: worker 0 of the server decides"):
            await workers.tables[1].transactions.give_up(token)
        workers.before = None
        await workers.tables[1].transactions.retry()
        assert "worker 0 of the server decides, and has lost that: the transaction log" in reason_of(workers, 1)
        with pytest.raises(DataLoss, match=f"scankv transactions give-up {token}"):
            await workers.scores(1)
        _, lost = await workers.tables[1].transactions.give_up(token)
        assert {(each.table, each.applied) for each in lost} == {(workers.names[1], 0)}
        assert sum(each.rows or 0 for each in lost) == len(PLAYERS)
        assert await workers.scores(1) == set()
        await workers.put(1, 3)
    log.write_bytes(content)
    # What was given up stays so, and the coordinator ends the transaction with what is left.
    async with direct_workers(crashed, 3) as workers:
        await await_until(partial(_ends, workers), "no transaction is stuck")
        left: set[int | None] = {2} if is_decided else set()
        assert [await workers.scores(number) for number in range(3)] == [left, {3}, left]


@pytest.mark.asyncio
async def test_no_index_is_added_to_a_table_with_a_share_in_doubt(tmp_path: Path) -> None:
    """The rows were checked before the share was prepared, and must fit when it turns out to be committed."""
    crashed, schema = tmp_path / "crashed", pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string())])
    name = names_of_workers(2, "game", each=2)[1][1]

    async def crash(method: str, *_: object) -> None:
        if method == "conclude":
            await _copy(tmp_path / "data", crashed)

    async with direct_workers(tmp_path / "data", 2, before=crash) as workers:
        table = await new_table(workers.tables[1], name, schema=schema)
        token = await workers.begin()
        await workers.stage(token, 2, 0)
        long = ipc_stream(schema, pa.record_batch([["k"], ["v" * (MAX_KEY_BYTES + 1)]], schema=schema))
        place = StagedRequestId(token=token, part="main", sequence=1)
        await workers.tables[1].transactions.staging.stage(place, table, UPSERT, long, kind=MERGE)
        await workers.commit(token, 1)
    async with direct_workers(crashed, 2, before=lose) as workers:
        with pytest.raises(Unavailable, match="worker 0 of the server decides"):
            await workers.tables[1].alter(name, add_indexes=[["v"]])
        await workers.tables[1].alter(name, set_options={"log_retention_seconds": "7200"})
        workers.before = None
        await await_until(partial(_ends, workers), "no transaction is stuck")
        key = pa.schema([schema.field("k")])
        keys = ipc_stream(key, pa.record_batch([["k"]], schema=key))
        (row,) = (await workers.tables[1].table(name).reads.lookup(keys, None))[0].to_pylist()
        assert len(row["v"]) > MAX_KEY_BYTES
        await workers.tables[1].alter(name, add_indexes=[["v"]])


async def _copy(data: Path, to: Path) -> None:
    shutil.copytree(data, to)


async def _ends(workers: DirectWorkers) -> bool:
    for tables in workers.tables:
        await tables.transactions.retry()
    return not any(tables.transactions.stuck for tables in workers.tables)


@pytest.mark.breadth
@pytest.mark.timeout(240)  # several processes start again
def test_an_operator_sees_what_a_divided_transaction_has_lost_at_all_workers(tmp_path: Path) -> None:
    armed, data = tmp_path / "points", tmp_path / "data"
    names = [name for (name,) in names_of_workers(2)]
    settings = ("--workers", "2")
    with (
        ServerProcess(data, *settings, wrapper=crashing_workers(armed)) as server,
        sync.connect(server.url, operation_timeout=5) as client,
    ):
        tables = [client.create_table(name, SCORES, primary_key=["player"], buckets=1) for name in names]
        transaction = client.transaction(id="job:1")
        for table in tables:
            transaction.upsert(table, rows_of(10))
        armed.write_text("0 append 1 after-all")
        with pytest.raises(ConnectionFailed):
            transaction.commit()
        wait_until(partial(has_ended, server.process.pid), "the processes ended")
        assert server.process.wait() == -signal.SIGKILL
    for part in data.glob("workers/*/transactions/*/0.part"):
        part.write_bytes(part.read_bytes()[:100])
    with ServerProcess(data, *settings) as server, sync.connect(server.url) as client:
        (stuck,) = client.transactions()
        assert stuck.stuck
        assert sorted(stuck.tables) == sorted(names)
        lost = []
        while client.transactions():
            # The workers may not have reached each other since they were started.
            with suppress(TransactionCommitted):
                lost += client.give_up_transaction(stuck.token)
        assert sorted((each.table, each.applied) for each in lost) == [(name, 0) for name in sorted(names)]
        assert [client.table(name).count() for name in names] == [0, 0]
