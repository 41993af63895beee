"""Whatever processes of a server with several workers are killed or paused, one order explains what all clients saw."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from random import Random, randrange
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from aio_client import connect
from aio_client.testing import FaultProxy
from tests.model.history import noted
from tests.model.linearizability import problem_of
from tests.model.operations import OperationRecorder
from tests.model.recording_client import KEYS, SCHEMA, RecordingClient, values_of
from tests.model.worker_faults import WorkerFaults
from tests.support.divided_tables import TABLETS
from tests.support.server_process import ServerProcess
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import Client

_log = logging.getLogger(__name__)

WORKERS: Final = 2
ELSEWHERE: Final = "127.0.0.2"
"""The address of the server. A client of a proxy on another address has only the port that all workers share."""
SETTINGS: Final = ("--workers", str(WORKERS), "--host", ELSEWHERE, "--set", "worker_timeout_seconds=3600")
"""The supervisor does not kill what the test has paused, however slow the machine is."""
PATIENT: Final = 300.0
IMPATIENT: Final = 0.5
ATTEMPT: Final = 2.0
"""How long a call waits for a paused worker, which may have its connection, until another connection is tried."""


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("runs", "faults"), [(1, 2), pytest.param(40, 14, marks=pytest.mark.soak)], ids=["short", "long"]
)
async def test_one_order_explains_what_clients_saw_during_faults_of_workers(
    tmp_path: Path, runs: int, faults: int
) -> None:
    for number in range(runs):
        seed = int(os.environ.get("SCANKV_SEED") or randrange(2**32))
        with (
            noted(f"SCANKV_SEED={seed}"),
            ServerProcess(tmp_path / f"data{number}", *SETTINGS) as server,
        ):
            recorder = await record_history(server, Random(seed), faults)
            assert (problem := problem_of(recorder.operations)) is None, problem
            assert server.stop() == 0
            assert "incident" not in server.log
            assert "DATA_LOSS" not in server.log


async def record_history(server: ServerProcess, random: Random, faults: int) -> OperationRecorder:
    """Runs clients during faults, and returns what they did and saw, with a scan of each table after everything.

    Each worker has two tables and four clients. The first makes only calls that need no other worker. One has a short
    timeout, so it does not know what became of some calls. Another has only the port that all workers share, so workers
    pass its calls on. Every client makes one call at a time.
    """
    recorder, until = OperationRecorder(), asyncio.Event()
    names = names_of_workers(WORKERS, each=2)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(server.url))
        first = await stack.enter_async_context(connect(server.url, operation_timeout=PATIENT))
        for name in (name for owned in names for name in owned):
            await first.create_table(name, SCHEMA, primary_key=["k"], buckets=3)
        clients: list[RecordingClient] = []
        for url, timeout in [(server.url, PATIENT)] * 2 + [(server.url, IMPATIENT), (proxy.address, PATIENT)]:
            for owned in names:
                opener = connect(url, operation_timeout=timeout, attempt_timeout=ATTEMPT)
                client = await stack.enter_async_context(opener)
                clients.append(await recording_client(f"client {len(clients)}", client, owned, recorder, random))
        for each in clients[:WORKERS]:
            each.is_plain = True
        # Every worker has tablets of every table, and then only a client without patience makes progress without one.
        for each in clients[2 * WORKERS : 3 * WORKERS] if TABLETS > 1 else ():
            each.is_plain = True
        made = WorkerFaults(server, names, recorder, random)
        async with asyncio.TaskGroup() as group:
            for each in clients:
                group.create_task(each.run(until))
            await made.run(faults)
            until.set()
        for owned in names:
            await (await recording_client("last", first, owned, recorder, random)).scan_all()
    _log.info("%d operations, %s", len(recorder.operations), dict(made.made))
    for each in clients:
        _log.info("%s: %s", each.name, dict(each.failures))
    return recorder


async def recording_client(
    name: str, client: Client, tables: list[str], recorder: OperationRecorder, random: Random
) -> RecordingClient:
    opened = [await client.table(table) for table in tables]
    return RecordingClient(name, client, opened, recorder, Random(random.random()))


@pytest.mark.asyncio
@pytest.mark.parametrize("together", [False, True], ids=["rows", "transactions"])
async def test_a_scan_of_two_instants_of_a_real_table_is_refused(shared_server: ServerProcess, together: bool) -> None:
    """The first bucket is read before a row of each bucket is written, the others are read afterwards."""
    recorder = OperationRecorder()
    async with connect(shared_server.url) as client:
        table = await client.create_table(f"torn.t{together:d}", SCHEMA, primary_key=["k"], buckets=3)
        one = await recording_client("one", client, [table.name], recorder, Random(1))
        writes = {one.key_in(table, bucket): 1 for bucket in range(3)}
        await one.write(table, writes)
        start = recorder.tick()
        first = await table.scan().with_buckets([0]).to_arrow()
        if together:
            await one.transact((), dict.fromkeys(writes, 2))
        else:
            for key in writes:
                await one.write(table, {key: 2})
        others = await table.scan().with_buckets([1, 2]).to_arrow()
        await one.scan_all()
        assert problem_of(recorder.operations) is None
        torn = values_of(table, pa.concat_tables([first, others]), range(KEYS))
        recorder.record("torn scan", start, recorder.tick(), torn)
    problem = problem_of(recorder.operations)
    assert problem is not None
    assert "torn scan" in problem


@pytest.mark.asyncio
async def test_a_stale_read_of_a_real_table_is_refused(shared_server: ServerProcess) -> None:
    recorder = OperationRecorder()
    async with connect(shared_server.url) as client:
        table = await client.create_table("stale.t", SCHEMA, primary_key=["k"], buckets=3)
        one = await recording_client("one", client, [table.name], recorder, Random(1))
        await one.write(table, {(table.name, 1): 1})
        async with table.snapshot() as snapshot:
            await one.write(table, {(table.name, 1): 2})
            await one.scan_all()
            assert problem_of(recorder.operations) is None
            start = recorder.tick()
            seen = values_of(table, await table.scan().as_of(snapshot).to_arrow(), range(KEYS))
            recorder.record("stale scan", start, recorder.tick(), seen)
    problem = problem_of(recorder.operations)
    assert problem is not None
    assert "stale scan" in problem
