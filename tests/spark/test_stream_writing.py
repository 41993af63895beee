"""`writeStream.format("scankv")` writes each micro-batch once, however often Spark repeats it, also into aggregates."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict

import spark_bridge
from aio_client import agg, sync
from spark_bridge.types import spark_schema
from tests.spark.checkpoints import forget_last_commit
from tests.spark.task import task_context

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64())])
FILES = 2


def adding_up(client: sync.Client, name: str) -> sync.Table:
    """Creates a table of sums, which shows a row that is written twice."""
    return client.create_table(
        name, SCHEMA, primary_key=["k"], buckets=2, merge_engine="aggregate", aggregators={"n": agg.sum()}
    )


def content(table: sync.Table) -> dict[int, int]:
    return {row["k"]: row["n"] for row in table.scan().to_arrow().to_pylist()}


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Callable[[], DataFrame]:
    """Creates a stream of two micro-batches with rows 0 to 3 each, and the number of the micro-batch plus 1."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        lines = [json.dumps({"k": k, "n": number + 1}) for k in range(4)]
        (source / f"{number}.json").write_text("\n".join(lines))
        # Spark reads the oldest file first.
        os.utime(source / f"{number}.json", (number + 1, number + 1))
    return lambda: spark.readStream.schema("k long, n long").option("maxFilesPerTrigger", 1).json(str(source))


@pytest.fixture
def run(tmp_path: Path) -> Callable[[DataStreamWriter], None]:
    """Runs a streaming query from the test's checkpoint until it has written all existing data."""

    def run(writing: DataStreamWriter) -> None:
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(500)

    return run


def test_each_micro_batch_counts_once_when_it_fails_or_is_repeated(
    numbers: Callable[[], DataFrame],
    run: Callable[[DataStreamWriter], None],
    shared_server: ServerProcess,
    client: sync.Client,
    name: str,
    tmp_path: Path,
) -> None:
    table = adding_up(client, name)
    failed = tmp_path / "failed"

    def failing_once(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if 2 in batch.column("n").to_pylist() and not failed.exists():
                failed.touch()
                raise RuntimeError("the task failed")

    def write() -> None:
        rows = numbers().mapInArrow(failing_once, "k long, n long")
        run(rows.writeStream.format("scankv").options(url=shared_server.url, table=name))

    with pytest.raises(StreamingQueryException, match="the task failed"):
        write()
    assert content(table) == dict.fromkeys(range(4), 1)
    for _ in range(2):
        write()
        assert content(table) == dict.fromkeys(range(4), 1 + 2)
        forget_last_commit(tmp_path / "checkpoint")
    assert client.transactions() == []


@pytest.mark.breadth
def test_complete_mode_replaces_the_table_with_each_micro_batch(
    numbers: Callable[[], DataFrame],
    run: Callable[[DataStreamWriter], None],
    shared_server: ServerProcess,
    client: sync.Client,
    name: str,
) -> None:
    totals = numbers().groupBy((F.col("n") + F.col("k")).alias("k")).agg(F.count("*").alias("n"))
    options = {"url": shared_server.url, "create": "true", "primary_key": "k"}
    writing = totals.writeStream.format("scankv").options(**options).option("path", name).outputMode("complete")
    run(writing)
    assert content(client.table(name)) == {1: 1, 2: 2, 3: 2, 4: 2, 5: 1}


@pytest.mark.breadth
def test_foreach_batch_with_an_id_counts_once(
    numbers: Callable[[], DataFrame],
    run: Callable[[DataStreamWriter], None],
    shared_server: ServerProcess,
    client: sync.Client,
    name: str,
    tmp_path: Path,
) -> None:
    table = adding_up(client, name)

    def write(rows: DataFrame, batch: int) -> None:
        options = {"url": shared_server.url, "transaction_id": f"{name}:{batch}"}
        rows.write.format("scankv").options(**options).mode("append").save(name)

    for _ in range(2):
        run(numbers().writeStream.foreachBatch(write).outputMode("update"))
        assert content(table) == dict.fromkeys(range(4), 1 + 2)
        forget_last_commit(tmp_path / "checkpoint")


def test_an_invalid_write_is_refused_before_any_task_starts(
    numbers: Callable[[], DataFrame],
    shared_server: ServerProcess,
    client: sync.Client,
    name: str,
    tmp_path: Path,
) -> None:
    adding_up(client, name)
    for change, options, message in [
        ({}, {"tabel": "x"}, 'there is no option "tabel"'),
        ({}, {"transaction_id": "x"}, "option transaction_id cannot be used with writeStream"),
        ({"n": F.lit("text")}, {}, 'column "n" cannot be cast to int64'),
    ]:
        rows = numbers().withColumns(change) if change else numbers()
        writing = rows.writeStream.format("scankv").options(url=shared_server.url, table=name, **options)
        query = writing.option("checkpointLocation", str(tmp_path / message[:9])).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(500)
        assert message in str(caught.value)
    assert client.transactions() == []


class QueryWriters:
    """Simulates how Spark uses the writers of a streaming query."""

    def __init__(self, url: str, table: str) -> None:
        self._options = CaseInsensitiveDict({"url": url, "table": table, "checkpointLocation": "/"})

    def staged(self, batch: int, rows: int) -> list[Any]:
        """Runs two tasks of a micro-batch, and returns their messages."""
        writer = pickle.loads(pickle.dumps(self._writer()))
        messages = []
        for partition in range(2):
            data = pa.RecordBatch.from_pylist([{"k": k, "n": 1} for k in range(partition, rows, 2)], SCHEMA)
            known = {"sql.streaming.queryId": "a-query", "streaming.sql.batchId": str(batch)}
            with task_context(partition, known):
                messages.append(pickle.loads(pickle.dumps(writer.write(iter([data])))))
        return messages

    def commit(self, batch: int, messages: list[Any]) -> None:
        self._writer().commit(messages, batch)

    def abort(self, batch: int, messages: list[Any]) -> None:
        self._writer().abort(messages, batch)

    def _writer(self) -> Any:
        return spark_bridge.ScanKvDataSource(self._options).streamWriter(spark_schema(SCHEMA), overwrite=False)


@pytest.mark.breadth
def test_the_server_remembers_committed_micro_batches_over_restarts(server: ServerProcess) -> None:
    with sync.connect(server.url) as client, ThreadPoolExecutor(1) as pool:
        table = adding_up(client, "test.restarted")
        query = QueryWriters(server.url, table.name)
        # This micro-batch is neither committed nor aborted with a message that names its transaction.
        query.staged(0, 10)
        query.abort(0, [None, None])
        server.kill()
        asked = pool.submit(query.staged, 0, 10)
        server.restart()
        messages = asked.result()
        server.kill()
        committed = pool.submit(query.commit, 0, messages)
        server.restart()
        committed.result()
        for again in (messages, query.staged(0, 10)):
            query.commit(0, again)
        assert content(table) == dict.fromkeys(range(10), 1)
        failed = query.staged(1, 10)
        query.abort(1, [failed[0], None])
        assert client.transactions() == []
        query.commit(1, query.staged(1, 10))
        assert content(table) == dict.fromkeys(range(10), 2)
