"""The readers: three engines, one SQL query, and as of when each of them has answered it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import polars
from deltalake import DeltaTable

import scankv.spark
from examples.spark_delays.departures import FLIGHTS
from scankv import LogOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from scankv.sync import Client

Route: TypeAlias = "tuple[str, str, int, int, int]"
ROUTES: Final = """
    SELECT origin, dest, count(*) AS flights, CAST(sum(dep_delay) AS BIGINT) AS delay, max(dep_delay) AS longest
    FROM flights GROUP BY origin, dest ORDER BY origin, dest
"""


class ReaderAnswer(NamedTuple):
    """The answer of a reader, and the instant that it shows: as a time, and as a position in the changelog."""

    reader: str
    source: str
    instant: str
    log_offsets: LogOffsets
    routes: Sequence[Route]


def read_with_spark(spark: SparkSession, url: str, client: Client, lake: str) -> ReaderAnswer:
    """Reads the table as of now: Spark reads the Delta files, and the server sends only what has changed since."""
    with client.table(FLIGHTS).snapshot() as snapshot:
        flights = scankv.spark.table(spark, url, FLIGHTS, lake=f"{lake}/delta", snapshot=snapshot)
        source = f"{len(flights.inputFiles())} Delta files and fresh rows"
        flights.createOrReplaceTempView("flights")
        routes = [tuple(row) for row in spark.sql(ROUTES).collect()]
        return ReaderAnswer("Spark", source, snapshot.taken_at.isoformat(), snapshot.log_offsets, routes)


def read_with_duckdb() -> ReaderAnswer:
    """Reads the latest snapshot of the Iceberg table, which pyiceberg hands to DuckDB."""
    # Imported here: pyiceberg reads the environment on import.
    from pyiceberg.catalog import load_catalog

    with closing(load_catalog("lake")) as catalog:
        table = catalog.load_table(FLIGHTS)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        scan = table.scan(selected_fields=("origin", "dest", "dep_delay"), snapshot_id=snapshot.snapshot_id)
        with closing(scan.to_duckdb("flights")) as connection:
            routes = connection.sql(ROUTES).fetchall()
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    return _answer("DuckDB", f"Iceberg snapshot {snapshot.sequence_number}", properties, routes)


def read_with_polars(lake: str) -> ReaderAnswer:
    """Reads the latest version of the Delta table."""
    table = DeltaTable(f"{lake}/delta")
    routes = polars.SQLContext(flights=polars.scan_delta(table)).execute(ROUTES, eager=True).rows()
    return _answer("Polars", f"Delta version {table.version()}", table.metadata().configuration, routes)


def _answer(reader: str, source: str, properties: Mapping[str, str], routes: Sequence[Route]) -> ReaderAnswer:
    """Returns the answer over a version, whose properties say what it shows."""
    offsets = LogOffsets.from_json(properties["scankv.log_offsets"])
    return ReaderAnswer(reader, source, properties["scankv.view_time"], offsets, routes)
