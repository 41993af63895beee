"""A query whose table was restored to an earlier instant does not skip the micro-batches that the table lacks."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict

import spark_bridge
from aio_client import TableRecreated, UsageError, agg, sync
from spark_bridge.types import spark_schema
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import find_backup, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from tests.spark.checkpoints import forget_batches, forget_last_commit
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

TABLE = "test.sums"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64())])


class FileQuery:
    """A query that adds numbers from files to a table of sums. Each file is a micro-batch, and the next power of 10."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark, self._path = spark, path
        self.checkpoint = path / "checkpoint"
        (path / "source").mkdir()

    def add_files(self, *numbers: int) -> None:
        for number in numbers:
            file = self._path / "source" / f"{number}.json"
            # A micro-batch without rows if the number is negative.
            file.write_text(json.dumps({"k": 1, "n": 10**number}) if number >= 0 else "")
            os.utime(file, (abs(number) + 1, abs(number) + 1))

    def run(self, url: str, **options: Any) -> None:
        """Runs the query from its checkpoint until it has written all files."""
        rows = self._spark.readStream.schema("k long, n long").option("maxFilesPerTrigger", 1)
        writing = rows.json(str(self._path / "source")).writeStream.format("scankv").options(url=url, **options)
        query = writing.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start(TABLE)
        assert query.awaitTermination(500)


@contextmanager
def serving(path: Path, data: str) -> Iterator[tuple[str, sync.Client]]:
    with ServerProcess(path / data, "--backup-location", str(path / "backups")) as server:
        with sync.connect(server.url) as client:
            yield server.url, client


def create(client: sync.Client, name: str = TABLE) -> sync.Table:
    """Creates a table of sums, which shows a row that is written twice."""
    return client.create_table(
        name, SCHEMA, primary_key=["k"], buckets=2, merge_engine="aggregate", aggregators={"n": agg.sum()}
    )


def total(client: sync.Client) -> int:
    row = client.table(TABLE).get(1)
    return 0 if row is None else row["n"]


def restore(path: Path, data: str) -> None:
    """Restores the newest backup to a new directory."""
    store = BackupStore(str(path / "backups"))
    restore_all(store, plan_backup(read_manifest(store, find_backup(store, "latest"))), path / data)


@pytest.mark.breadth
def test_a_query_fails_after_a_restore_until_the_restored_table_is_accepted(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = FileQuery(spark, tmp_path)
    with serving(tmp_path, "data") as (url, client):
        create(client)
        query.add_files(0, 1)
        query.run(url)
        client.create_backup()
        query.add_files(2, 3)
        query.run(url)
        assert total(client) == 1_111
    restore(tmp_path, "restored")
    query.add_files(4)
    with serving(tmp_path, "restored") as (url, client):
        for _ in range(2):
            with pytest.raises(StreamingQueryException) as caught:
                query.run(url)
            assert f"table {TABLE} lacks micro-batches 2 to 3 of this query" in str(caught.value)
        assert total(client) == 11
        accepted = re.search(r'option\("accept_incarnation", "(\w+)"\)', str(caught.value))
        assert accepted is not None
        with pytest.raises(StreamingQueryException, match="accept_incarnation"):
            query.run(url, accept_incarnation="another")
        query.run(url, accept_incarnation=accepted[1])
        query.add_files(5)
        query.run(url)
        assert total(client) == 110_011
        assert client.transactions() == []


@pytest.mark.breadth
def test_a_query_writes_missing_micro_batches_again_after_they_are_removed_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = FileQuery(spark, tmp_path)
    with serving(tmp_path, "data") as (url, client):
        create(client)
        query.add_files(0, 1)
        query.run(url)
        client.create_backup()
        query.add_files(2, 3)
        query.run(url)
    restore(tmp_path, "restored")
    with serving(tmp_path, "restored") as (url, client):
        forget_batches(query.checkpoint, 2)
        query.add_files(4)
        query.run(url)
        assert total(client) == 11_111


@pytest.mark.breadth
def test_a_query_continues_after_a_restore_that_has_all_of_its_micro_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = FileQuery(spark, tmp_path)
    with serving(tmp_path, "data") as (url, client):
        create(client)
        # The last micro-batches before the backup are empty.
        query.add_files(0, 1, -2, -3)
        query.run(url)
        client.create_backup()
    restore(tmp_path, "restored")
    with serving(tmp_path, "restored") as (url, client):
        forget_last_commit(query.checkpoint)
        query.run(url)
        query.add_files(4)
        query.run(url)
        for _ in range(2):
            assert total(client) == 10_011
            forget_last_commit(query.checkpoint)
            query.run(url)


@pytest.mark.breadth
def test_a_query_fails_after_its_table_is_dropped_and_created_again(spark: SparkSession, tmp_path: Path) -> None:
    query = FileQuery(spark, tmp_path)
    with serving(tmp_path, "data") as (url, client):
        create(client)
        query.add_files(0, -1)
        query.run(url)
        client.drop_table(TABLE)
        create(client)
        query.add_files(2)
        with pytest.raises(StreamingQueryException, match=f"table {TABLE} lacks micro-batches 0 to 1 of this"):
            query.run(url)
        assert total(client) == 0


def test_a_write_that_follows_another_one_fails_if_the_table_lacks_the_rows_of_that_one(
    shared_server: ServerProcess, client: sync.Client, name: str
) -> None:
    def write(batch: int, **more: str) -> None:
        """Writes as a program does in `foreachBatch`, in tasks that have no rows."""
        ids = {"transaction_id": f"{name}:{batch}"} | ({"transaction_follows": f"{name}:{batch - 1}"} if batch else {})
        options = CaseInsensitiveDict({"url": shared_server.url, "table": name, **ids, **more})
        spark_bridge.ScanKvDataSource(options).writer(spark_schema(SCHEMA), overwrite=False).commit([])

    create(client, name)
    for batch in (0, 1, 1, 2):
        write(batch)
    client.drop_table(name)
    create(client, name)
    with pytest.raises(TableRecreated, match=f'lacks the rows of the transaction "{name}:2"') as caught:
        write(3)
    write(3, accept_incarnation=caught.value.details["incarnation"])
    write(4)
    without_id = CaseInsensitiveDict({"url": shared_server.url, "table": name, "transaction_follows": "x"})
    with pytest.raises(UsageError, match="option transaction_follows requires transaction_id"):
        spark_bridge.ScanKvDataSource(without_id).writer(spark_schema(SCHEMA), overwrite=False)
    with pytest.raises(UsageError, match="option accept_incarnation requires transaction_follows"):
        write(0, accept_incarnation="x")
    assert client.transactions() == []
