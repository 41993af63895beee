"""`scan_dataframe`: a table as a DataFrame through `mapInArrow`, which is faster than the data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bridge.connect_options import ConnectOptions
from spark_bridge.options import DEFAULT_MAX_PARTITIONS, DEFAULT_ROWS_PER_SPLIT, ReadOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from aio_client import Snapshot, Tls, TokenEnv, TokenFile, sync
    from spark_bridge.parts import Part


def scan_dataframe(
    spark: SparkSession,
    url: str | None,
    table: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    splits: int | None = None,
    rows_per_split: int = DEFAULT_ROWS_PER_SPLIT,
    max_partitions: int = DEFAULT_MAX_PARTITIONS,
    snapshot: Snapshot | sync.Snapshot | str | None = None,
    snapshot_ttl: float = 600.0,
    profile: str | None = None,
    token: os.PathLike[str] | TokenFile | TokenEnv | None = None,
    tls: bool | Tls | None = None,
) -> DataFrame:
    """Returns a table as a DataFrame; the server reads only the columns and rows that the arguments select.

    Each query on the DataFrame sees the table as of one instant, in all of its partitions and retries, as with
    `ScanKvDataSource`. Spark pushes nothing down: Spark itself evaluates a `select` or `filter` of the DataFrame. This
    call plans how tasks divide the table and reads no rows.

    Args:
        spark: The session. Spark Connect works, too.
        url: The server, `host:port`. None: as for `scankv.connect` in this process. Executors must be able to reach
            it.
        table: `database.table`.
        columns: The columns to read, in this order. Default: all.
        where: A predicate as text, such as `"score > 100"`. Default: all rows.
        limit: The most rows to read. With a limit, one task reads them.
        splits: How many tasks read the table, 1 to 1024. Default: one for about every `rows_per_split` rows, at most
            `max_partitions`.
        rows_per_split: About how many rows one task reads.
        max_partitions: The most tasks if `splits` is not set, 1 to 1024.
        snapshot: A pinned snapshot to read, or its id. The caller renews and releases the snapshot. Default: each query
            pins a snapshot of its own.
        snapshot_ttl: Seconds that a query's own snapshot lives while no task reads it.
        profile: As for `scankv.connect`; read in this process.
        token: As for `scankv.connect`, but not as text. Each executor reads its own file or environment variable.
        tls: As for `scankv.connect`, with keys as paths. Each executor reads its own files.

    Returns:
        A DataFrame with the selected columns. The order of its rows is not defined.

    Raises:
        ScanKvError: An argument is wrong, the server cannot be reached, or a column has no Spark type.
    """
    from aio_client._transport.tokens import token_source
    from spark_bridge.planning import plan_read

    plan = plan_read(
        ReadOptions(
            url=url,
            connect=ConnectOptions(profile=profile, token=token_source(token), tls=tls),
            table=table,
            columns=None if columns is None else tuple(columns),
            where=where,
            limit=limit,
            splits=splits,
            rows_per_split=rows_per_split,
            max_partitions=max_partitions,
            snapshot=snapshot if isinstance(snapshot, str | None) else snapshot.id,
            snapshot_ttl=snapshot_ttl,
        )
    )
    # `range` makes one row for each part, each row in its own partition.
    parts = spark.range(0, len(plan.parts), 1, len(plan.parts))
    return parts.mapInArrow(_task_function(plan.parts, plan.schema), plan.schema)


def _task_function(
    parts: Sequence[Part], schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function that a task runs: it reads the parts whose numbers Spark passes to it."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_bridge.casting import arrow_schema
        from spark_bridge.errors import short_errors
        from spark_bridge.part_rows import read_part

        target = arrow_schema(schema)
        with short_errors():
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from read_part(parts[number], target)

    return read
