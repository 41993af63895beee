"""The results of examples/spark_delays equal pandas' over live flights, whatever is killed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from aio_client.sync import connect
from examples.spark_delays.check import check_report, check_totals
from examples.spark_delays.departures import FLIGHTS, Departures, create_flights
from examples.spark_delays.report import AIRPORTS, write_airports, write_report
from examples.spark_delays.totals import start_totals
from scankv.demo.flights import find_flights
from tests.spark import java
from tests.spark.checkpoints import forget_last_commit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.server_process import ServerProcess

LAST_DAY, END = "2013-01-31", "2013-02-01"
FLIGHTS_IN_JANUARY = 26_353


@contextmanager
def totals(spark: SparkSession, url: str, checkpoint: Path) -> Iterator[StreamingQuery]:
    query = start_totals(spark, url, str(checkpoint))
    try:
        yield query
    finally:
        query.stop()


@pytest.mark.soak
def test_report_and_totals_equal_pandas_while_flights_depart_and_server_and_query_are_killed(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    airports = find_flights().with_name("airports.csv")
    with connect(server.url) as client:
        create_flights(client, LAST_DAY)
        departures = Departures(client, LAST_DAY, END)
        write_airports(spark, server.url, airports)
        assert client.table(AIRPORTS).count() == 1458

        with totals(spark, server.url, tmp_path) as query:
            query.processAllAvailable()
            check_totals(client)
            for _ in range(3):
                assert departures.next_hour()
            with client.table(FLIGHTS).snapshot(ttl=600) as snapshot:
                # The report is from before these changes, and the query may have read any part of them.
                for _ in range(3):
                    assert departures.next_hour()
                server.kill()
                server.restart()
                write_report(spark, server.url, snapshot=snapshot.id)
                check_report(client, snapshot, airports)
        # The last micro-batch is in the table, but the query died before it recorded that.
        forget_last_commit(tmp_path)
        with totals(spark, server.url, tmp_path) as query:
            while departures.next_hour():
                pass
            query.processAllAvailable()
            check_totals(client)
        write_report(spark, server.url)
        with client.table(FLIGHTS).snapshot() as snapshot:
            assert check_report(client, snapshot, airports)["flights"].sum() == FLIGHTS_IN_JANUARY


@pytest.mark.soak
def test_one_command_runs_the_example_and_kills_server_and_job() -> None:
    done = java.run("examples.spark_delays", "--start", "2013-01-30", "--hours-per-second", "1")
    assert done.returncode == 0, done.stderr[-5000:]
    assert "killing the streaming job" in done.stdout
    assert f"totals of {FLIGHTS_IN_JANUARY:,} flights, equal to pandas'" in done.stdout
