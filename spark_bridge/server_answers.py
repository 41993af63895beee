"""Answers that the server computes of a table, for Spark: no row travels that is not in the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_bridge.casting import arrow_schema, cast_rows
from spark_bridge.predicates import spark_predicate
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def count(url: str | None, table: str, where: str | None = None) -> int:
    """The number of rows of the table as of now, exact. See `scankv.Table.count`.

    Args:
        url: The server; None: `$SCANKV_URL`, else `localhost:7070`.
        table: `database.table`.
        where: Which rows to count. Default: all, which reads none.
    """
    from aio_client import sync

    with sync.connect(url) as client:
        found = client.table(table)
        return found.count(spark_predicate(found, where))


def top_n(
    spark: SparkSession,
    url: str | None,
    table: str,
    n: int,
    by: str,
    where: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    descending: bool = True,
) -> DataFrame:
    """The first `n` rows in the order of a column, best first, as of now. See `scankv.Table.top_n`."""
    from aio_client import sync

    with sync.connect(url) as client:
        found = client.table(table)
        best = found.top_n(n, by, spark_predicate(found, where), columns=columns, descending=descending)
        return _dataframe(spark, best)


def aggregate(
    spark: SparkSession,
    url: str | None,
    table: str,
    functions: Mapping[str, str | Iterable[str]],
    where: str | None = None,
    *,
    group_by: Sequence[str] = (),
) -> DataFrame:
    """Functions of columns over all rows, or for groups of rows, as of now. See `scankv.Table.aggregate`."""
    from aio_client import sync

    with sync.connect(url) as client:
        found = client.table(table)
        return _dataframe(spark, found.aggregate(functions, spark_predicate(found, where), group_by=group_by))


def tables(spark: SparkSession, url: str | None) -> DataFrame:
    """The tables of a server, by name: `name`, `columns` as text, `primary_key`, `buckets` and `options`."""
    import pyarrow as pa

    from aio_client import sync
    from scankv.model.types.types import format_schema

    with sync.connect(url) as client:
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
    return _dataframe(spark, pa.Table.from_pylist([dict(zip(names.names, row, strict=True)) for row in rows], names))


def _dataframe(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A small table as a DataFrame with the types that the data source would give it."""
    import pyarrow as pa

    schema = spark_schema(rows.schema)
    target = arrow_schema(schema)
    batches = [cast_rows(batch, target) for batch in rows.to_batches()]
    return spark.createDataFrame(pa.Table.from_batches(batches, target), schema)
