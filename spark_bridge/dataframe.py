"""A table as a DataFrame through `mapInArrow`: faster than the data source, with all that is asked for pushed down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bridge.options import DEFAULT_MAX_PARTITIONS, DEFAULT_ROWS_PER_SPLIT, ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from aio_client import Snapshot, sync
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
) -> DataFrame:
    """A table for Spark queries: the server reads only what is asked for here.

    Each query that reads it sees the table as of one instant, over all partitions and retries, see
    `ScanKvDataSource`. Spark pushes nothing into it: a `select` or `filter` of it is done by Spark.

    Args:
        spark: The session, also of Spark Connect.
        url: The server; None: `$SCANKV_URL` in this process, else `localhost:7070`. Executors must reach it, too.
        table: `database.table`.
        columns: The columns to read, in this order. Default: all.
        where: A predicate as text, such as `"score > 100"`. Default: all rows.
        limit: The most rows; one task reads them.
        splits: How many tasks read the table, 1 to 1024. Default: as many as `rows_per_split` asks for.
        rows_per_split: About how many rows one task reads.
        max_partitions: The most tasks that `rows_per_split` leads to, 1 to 1024.
        snapshot: A pinned snapshot to read, or its id; it stays the caller's to keep. Default: each query takes one.
        snapshot_ttl: Seconds that such a snapshot lives without a task that reads it.

    Raises:
        ScanKvError: An argument is wrong, the server cannot be reached, or Spark cannot have a column.
    """
    from spark_bridge.planning import planned

    plan = planned(
        ReadOptions(
            url=url,
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
    # One row for each part, each in a partition of its own.
    parts = spark.range(0, len(plan.parts), 1, len(plan.parts))
    return parts.mapInArrow(_reading(plan.parts, plan.schema), plan.schema)


def _reading(
    parts: Sequence[Part], schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task runs: it reads the parts whose numbers it is given."""

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
