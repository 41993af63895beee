"""What a task stages while it takes rows: in order, bounded, and nothing lost of an error. Without a session."""

from __future__ import annotations

import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import SchemaMismatch, sync
from spark_bridge import writing
from spark_bridge.types import spark_schema
from spark_bridge.write_options import WriteOptions
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_bridge.writing import JobTransaction, WriteJob
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
# Of such rows, each is a request.
LARGE = "x" * 5_000_000


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


@pytest.fixture
def job(shared_server: ServerProcess, table: sync.Table) -> WriteJob:
    options = WriteOptions.parse({"url": shared_server.url, "path": table.name})
    return writing.planned_write(options, spark_schema(SCHEMA), replaces=False)


@pytest.fixture
def begun(job: WriteJob) -> Iterator[JobTransaction]:
    begun = writing.begin(job, uuid.uuid4().hex, "test")
    yield begun
    # Other tests look for transactions that are left over.
    writing.abort(job, begun)


def row(key: int | None, text: str) -> pa.RecordBatch:
    columns = [pa.array([key], pa.int64()), pa.array([text], pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def rows_staged(client: sync.Client, begun: JobTransaction) -> int:
    return next(each.rows for each in client.transactions() if each.token == begun.token)


@contextmanager
def standing_still(server: ServerProcess) -> Iterator[None]:
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


def test_rows_are_taken_while_one_request_is_under_way_and_not_two(
    shared_server: ServerProcess, client: sync.Client, table: sync.Table, job: WriteJob, begun: JobTransaction
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield row(0, LARGE)
        # What comes next sends the first, which is not answered before another one was asked for.
        with standing_still(shared_server):
            yield row(1, LARGE)
        for number in range(2, 6):
            assert rows_staged(client, begun) >= number - 2
            yield row(number, LARGE)

    staged = writing.stage(job, begun, 0, batches())
    assert staged.requests == 6
    writing.commit(job, begun, [staged])
    assert table.scan(["k"]).ordered().to_arrow().column(0).to_pylist() == list(range(6))


def test_of_rows_with_one_key_the_last_one_stays(table: sync.Table, job: WriteJob, begun: JobTransaction) -> None:
    staged = writing.stage(job, begun, 0, (row(1, f"{number}{LARGE}") for number in range(5)))
    assert staged.requests == 5
    writing.commit(job, begun, [staged])
    (found,) = table.scan().to_arrow().column("v").to_pylist()
    assert found[:2] == "4x"


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_request_that_is_refused_fails_the_task(
    client: sync.Client, table: sync.Table, job: WriteJob, begun: JobTransaction, wrong: int
) -> None:
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(number)
            yield row(None if number == wrong else number, LARGE)

    with pytest.raises(SchemaMismatch, match='column "k", row 0'):
        writing.stage(job, begun, 0, batches())
    assert taken == [0, 1, 2]
    assert rows_staged(client, begun) == wrong
    assert table.count() == 0


def test_rows_that_break_off_end_the_task_though_the_server_answers_nothing(
    shared_server: ServerProcess, job: WriteJob, begun: JobTransaction
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield row(0, LARGE)
        pause.enter_context(standing_still(shared_server))
        yield row(1, LARGE)
        raise RuntimeError("the rows broke off")

    patient = replace(job, config=replace(job.config, operation_timeout=600, attempt_timeout=600))
    with ThreadPoolExecutor(1) as pool, ExitStack() as pause:
        task = pool.submit(writing.stage, patient, begun, 0, batches())
        wait_until(task.done, "the end of the task", timeout=120)
    with pytest.raises(RuntimeError, match="the rows broke off"):
        task.result()
