"""Queries that the server computes for Spark: counts, aggregates, top-N and the list of tables.

Only the result is sent to Spark, not the rows that it was computed from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bridge.casting import arrow_schema, cast_rows
from spark_bridge.predicates import spark_predicate
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from aio_client import Tls, TokenEnv, TokenFile


def count(
    url: str | None,
    table: str,
    where: str | None = None,
    *,
    profile: str | None = None,
    token: str | os.PathLike[str] | TokenFile | TokenEnv | Callable[[], str | Awaitable[str]] | None = None,
    tls: bool | Tls | None = None,
) -> int:
    """Returns the exact number of rows of the table as of now. See `scankv.Table.count`.

    Args:
        url: The server, `host:port`. None: as for `scankv.connect`.
        table: `database.table`.
        where: A predicate as text that selects the rows to count. Default: all rows; then the server reads none of
            them, unless the table does not keep its number of rows.
        profile: As for `scankv.connect`.
        token: As for `scankv.connect`.
        tls: As for `scankv.connect`.

    Returns:
        The number of rows.

    Raises:
        ScanKvError: An argument is wrong, or the server cannot be reached.
    """
    from aio_client import sync

    with sync.connect(url, profile=profile, token=token, tls=tls) as client:
        found = client.table(table)
        return found.count(spark_predicate(found, where))


def top_n(
    spark: SparkSession,
    url: str | None,
    table: str,
    limit: int,
    order_by: str,
    where: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    descending: bool = True,
    profile: str | None = None,
    token: str | os.PathLike[str] | TokenFile | TokenEnv | Callable[[], str | Awaitable[str]] | None = None,
    tls: bool | Tls | None = None,
) -> DataFrame:
    """Returns the first `limit` rows in the order of a column, as of now. See `scankv.Table.top_n`.

    Args:
        spark: The session.
        url: The server, `host:port`. None: as for `scankv.connect`.
        table: `database.table`.
        limit: The most rows to return.
        order_by: The column to order by.
        where: A predicate as text. Default: all rows.
        columns: The columns to return, in this order. Default: all.
        descending: Whether the greatest values come first.
        profile: As for `scankv.connect`.
        token: As for `scankv.connect`.
        tls: As for `scankv.connect`.

    Returns:
        A DataFrame of at most `limit` rows in this order, held in memory.

    Raises:
        ScanKvError: An argument is wrong, the server cannot be reached, or a column has no Spark type.
    """
    from aio_client import sync

    with sync.connect(url, profile=profile, token=token, tls=tls) as client:
        found = client.table(table)
        best = found.top_n(limit, order_by, spark_predicate(found, where), columns=columns, descending=descending)
        return local_dataframe(spark, best)


def aggregate(
    spark: SparkSession,
    url: str | None,
    table: str,
    functions: Mapping[str, str | Iterable[str]],
    where: str | None = None,
    *,
    group_by: Sequence[str] = (),
    profile: str | None = None,
    token: str | os.PathLike[str] | TokenFile | TokenEnv | Callable[[], str | Awaitable[str]] | None = None,
    tls: bool | Tls | None = None,
) -> DataFrame:
    """Returns aggregates over all rows, or over groups of rows, as of now. See `scankv.Table.aggregate`.

    Args:
        spark: The session.
        url: The server, `host:port`. None: as for `scankv.connect`.
        table: `database.table`.
        functions: The functions to compute for each column, such as `{"delay": ["sum", "max"]}`.
        where: A predicate as text. Default: all rows.
        group_by: The columns that define the groups. Default: one group of all rows.
        profile: As for `scankv.connect`.
        token: As for `scankv.connect`.
        tls: As for `scankv.connect`.

    Returns:
        A DataFrame with one row for each group, held in memory.

    Raises:
        ScanKvError: An argument is wrong, the server cannot be reached, or a column has no Spark type.
    """
    from aio_client import sync

    with sync.connect(url, profile=profile, token=token, tls=tls) as client:
        found = client.table(table)
        return local_dataframe(spark, found.aggregate(functions, spark_predicate(found, where), group_by=group_by))


def tables(
    spark: SparkSession,
    url: str | None,
    *,
    profile: str | None = None,
    token: str | os.PathLike[str] | TokenFile | TokenEnv | Callable[[], str | Awaitable[str]] | None = None,
    tls: bool | Tls | None = None,
) -> DataFrame:
    """Returns the tables of a server, sorted by name.

    Args:
        spark: The session.
        url: The server, `host:port`. None: as for `scankv.connect`.
        profile: As for `scankv.connect`.
        token: As for `scankv.connect`.
        tls: As for `scankv.connect`.

    Returns:
        A DataFrame with the columns `name`, `columns` (the schema as text), `primary_key` (an array of column names),
        `buckets` (their number) and `options` (a map of strings).

    Raises:
        ScanKvError: The server cannot be reached.
    """
    import pyarrow as pa

    from aio_client import sync
    from scankv.model.types.types import format_schema

    with sync.connect(url, profile=profile, token=token, tls=tls) as client:
        found = client.tables()
    names = pa.schema(
        [
            ("name", pa.string()),
            ("columns", pa.string()),
            ("primary_key", pa.list_(pa.string())),
            ("buckets", pa.int32()),
            ("options", pa.map_(pa.string(), pa.string())),
        ]
    )
    rows = [
        (each.name, format_schema(each.schema), each.primary_key, each.buckets, list(each.options.items()))
        for each in found
    ]
    return local_dataframe(
        spark, pa.Table.from_pylist([dict(zip(names.names, row, strict=True)) for row in rows], names)
    )


def local_dataframe(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns a small table as a DataFrame with the types that the data source would use."""
    import pyarrow as pa

    schema = spark_schema(rows.schema)
    target = arrow_schema(schema)
    # Spark does not take lists and maps in a table without any batch.
    batches = [cast_rows(batch, target) for batch in rows.to_batches()] or [pa.RecordBatch.from_pylist([], target)]
    return spark.createDataFrame(pa.Table.from_batches(batches, target), schema)
