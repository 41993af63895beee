"""`bootstrap`: makes a new table from a DataFrame. Tasks stage rows in parallel, and one commit adds the table."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from spark_bridge.connect_options import ConnectOptions
from spark_bridge.write_options import TRANSACTION_TTL
from spark_bridge.writing import arrow_columns

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from aio_client import ClientConfig, Tls, TokenEnv, TokenFile
    from aio_client._admin.indexes import Indexes
    from aio_client._client.bootstrap import Duplicates
    from aio_client._client.table_definition import NewTableMessage
    from aio_client._write.merging import Names, WriteMode
    from scankv.model.tables.agg import Aggregator

T = TypeVar("T")

_STAGED: Final = "partition int, part string, requests bigint"


def bootstrap(
    df: DataFrame,
    url: str | None,
    table: str,
    *,
    primary_key: Sequence[str],
    mode: WriteMode = "merge",
    duplicates: Duplicates = "error",
    bucket_key: Sequence[str] = (),
    buckets: int | None = None,
    tablets: int = 1,
    indexes: Indexes = (),
    partition_by: Sequence[str] = (),
    version_column: str | None = None,
    sequence_column: Names | None = None,
    sequence_groups: Mapping[Names, Names] | None = None,
    aggregators: Mapping[str, Aggregator] | None = None,
    profile: str | None = None,
    token: os.PathLike[str] | TokenFile | TokenEnv | None = None,
    tls: bool | Tls | None = None,
    **options: str | bool | int | None,
) -> int:
    """Makes a new table with all rows of a DataFrame. See `scankv.Client.bootstrap`.

        scankv.spark.bootstrap(spark.read.parquet("s3a://lake/scores"), url, "game.scores", primary_key=["player"])

    Tasks send rows to the server in parallel. Then the table appears with all of them at one instant. Rows that failed
    or speculative attempts of a task have sent are left out. If the job fails, nothing is left.

    Args:
        df: The rows. Spark Connect works, too.
        url: The server, `host:port`. None: as for `scankv.connect` in this process. Executors must be able to reach
            it.
        table: `database.table`, which must not exist.
        primary_key: The key columns.
        mode: As for `scankv.Client.bootstrap`.
        duplicates: As for `scankv.Client.bootstrap`. With "merge", rows of one key are merged in the order of the
            DataFrame's partitions, and of the rows in them.
        bucket_key: As for `scankv.Client.create_table`, like all further arguments up to `aggregators`.
        buckets: The number of buckets.
        tablets: Into how many tablets to divide the buckets.
        indexes: The indexes.
        partition_by: The columns to partition by.
        version_column: For `merge_engine="versioned"`.
        sequence_column: For `merge_engine="last_row"`.
        sequence_groups: For `merge_engine="partial_update"`.
        aggregators: The functions that merge columns.
        profile: As for `scankv.connect`; read in this process.
        token: As for `scankv.connect`, but not as text. Each executor reads its own file or environment variable.
        tls: As for `scankv.connect`, with keys as paths. Each executor reads its own files.
        **options: Table options.

    Returns:
        The number of rows of the table.

    Raises:
        ScanKvError: As for `scankv.Client.bootstrap`. In a task, Spark's error contains its text.
    """
    from aio_client._client.table_definition import definition_message
    from aio_client._transport.tokens import token_source

    definition = definition_message(
        table,
        arrow_columns(df.schema),
        options,
        primary_key=primary_key,
        bucket_key=bucket_key,
        buckets=buckets,
        tablets=tablets,
        indexes=indexes,
        partition_by=partition_by,
        version_column=version_column,
        sequence_column=sequence_column,
        sequence_groups=sequence_groups,
        aggregators=aggregators,
    )
    with ConnectOptions(profile=profile, token=token_source(token), tls=tls).open_client(url) as client:
        config = client.config
    ticket = _run(_begin(config, definition, mode, duplicates))
    try:
        staged = df.mapInArrow(_task_function(config, ticket, mode), _STAGED).collect()
        parts = {row["part"]: row["requests"] for row in sorted(staged, key=lambda row: row["partition"])}
        return _run(_commit(config, ticket, parts))
    except BaseException:
        _run(_abort(config, ticket))
        raise


def _task_function(
    config: ClientConfig, ticket: bytes, mode: WriteMode
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function that a task runs: it stages its rows, and returns where."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from spark_bridge.errors import short_errors

        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        first = next(batches, None)
        if first is None:
            return

        def rows() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        part = f"{number}-{uuid.uuid4().hex}"
        reader = pa.RecordBatchReader.from_batches(first.schema, rows())
        with short_errors():
            requests = _run(_stage(config, ticket, part, reader, mode))
        if requests:
            columns = [pa.array([number], pa.int32()), pa.array([part]), pa.array([requests])]
            yield pa.RecordBatch.from_arrays(columns, names=["partition", "part", "requests"])

    return stage


async def _begin(config: ClientConfig, definition: NewTableMessage, mode: WriteMode, duplicates: Duplicates) -> bytes:
    from aio_client import Client
    from aio_client._client.bootstrap import OpenBootstrap

    async with Client(config) as client:
        begun = await OpenBootstrap.begin(client._transport, definition, mode, duplicates, TRANSACTION_TTL)
        return begun.ticket


async def _stage(config: ClientConfig, ticket: bytes, part: str, rows: pa.RecordBatchReader, mode: WriteMode) -> int:
    """Stages rows, and returns the number of requests."""
    from aio_client import Client
    from aio_client._client.bootstrap import OpenBootstrap

    async with Client(config) as client:
        opened = OpenBootstrap.join(client._transport, ticket)
        return len([size async for size in opened.part(part).stage(rows, mode)])


async def _commit(config: ClientConfig, ticket: bytes, parts: dict[str, int]) -> int:
    """Commits, and returns the number of rows of the table."""
    from aio_client import Client
    from aio_client._client.bootstrap import OpenBootstrap

    async with Client(config) as client:
        rows = 0
        async for answer in OpenBootstrap.join(client._transport, ticket).commit(parts):
            rows = answer.rows
        return rows


async def _abort(config: ClientConfig, ticket: bytes) -> None:
    from aio_client import Client
    from aio_client._client.bootstrap import OpenBootstrap

    async with Client(config) as client:
        await OpenBootstrap.join(client._transport, ticket).abort()


def _run(work: Coroutine[None, None, T]) -> T:
    """Runs a coroutine in a thread, since the caller may have an event loop, as in a notebook."""
    with ThreadPoolExecutor(1, "scankv-bootstrap") as thread:
        return thread.submit(asyncio.run, work).result()
