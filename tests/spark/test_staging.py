"""A task stages rows in order and with bounded memory, and reports all errors. Tested without a session."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import SchemaMismatch, sync
from spark_bridge import writing
from spark_bridge.types import spark_schema
from spark_bridge.write_options import WriteOptions
from tests.support.waiting import wait_until
from tests.support.workers import freeze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_bridge.writing import JobTransaction, WriteJob
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
# Each row of this size is a request.
LARGE = "x" * 5_000_000


@pytest.fixture
def table(client: sync.Client, name: str) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


@pytest.fixture
def job(shared_server: ServerProcess, table: sync.Table) -> WriteJob:
    options = WriteOptions.parse({"url": shared_server.url, "path": table.name})
    return writing.prepare_write(options, spark_schema(SCHEMA), replaces=False)


@pytest.fixture
def begun(job: WriteJob) -> Iterator[JobTransaction]:
    begun = writing.begin(job, uuid.uuid4().hex, "test")
    yield begun
    # Aborted, since other tests check that no transactions are left.
    writing.abort(job, begun)


def row(key: int | None, text: str) -> pa.RecordBatch:
    columns = [pa.array([key], pa.int64()), pa.array([text], pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def rows_staged(client: sync.Client, begun: JobTransaction) -> int:
    return next(each.rows for each in client.transactions() if each.token == begun.token)


def test_rows_are_taken_while_one_request_is_running_and_not_two(
    shared_server: ServerProcess, client: sync.Client, table: sync.Table, job: WriteJob, begun: JobTransaction
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield row(0, LARGE)
        # This batch makes the task send the first one, which is answered only after another batch was requested.
        with freeze(shared_server.process.pid):
            yield row(1, LARGE)
        for number in range(2, 6):
            assert rows_staged(client, begun) >= number - 2
            yield row(number, LARGE)

    staged = writing.stage(job, begun, 0, batches())
    assert staged.requests == 6
    writing.commit(job, begun, [staged])
    assert table.scan(["k"]).ordered().to_arrow().column(0).to_pylist() == list(range(6))


def test_the_last_row_of_a_key_wins(table: sync.Table, job: WriteJob, begun: JobTransaction) -> None:
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


def test_rows_that_fail_end_the_task_even_if_the_server_does_not_respond(
    shared_server: ServerProcess, job: WriteJob, begun: JobTransaction
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield row(0, LARGE)
        pause.enter_context(freeze(shared_server.process.pid))
        yield row(1, LARGE)
        raise RuntimeError("the rows failed")

    patient = replace(job, config=replace(job.config, operation_timeout=600, attempt_timeout=600))
    with ThreadPoolExecutor(1) as pool, ExitStack() as pause:
        task = pool.submit(writing.stage, patient, begun, 0, batches())
        wait_until(task.done, "the end of the task", timeout=120)
    with pytest.raises(RuntimeError, match="the rows failed"):
        task.result()
