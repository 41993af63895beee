"""`python -m examples.spark_delays.report URL`: a batch job that reports the delays by route as of one instant.

spark-submit examples/spark_delays/report.py localhost:7070
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pathlib import Path

FLIGHTS: Final = "demo.flights"
AIRPORTS: Final = "demo.airports"
REPORT: Final = "demo.route_report"


def write_airports(spark: SparkSession, url: str, path: Path) -> None:
    """Writes the table of airports from a CSV file."""
    columns = "faa string, name string, lat double, lon double, alt long, tz long, dst string, tzone string"
    airports = spark.read.schema(columns).csv(str(path), header=True, enforceSchema=False)
    writing = airports.write.format("scankv").options(url=url, create="true", primary_key="faa")
    writing.mode("overwrite").save(AIRPORTS)


def write_report(spark: SparkSession, url: str, **options: str) -> None:
    """Replaces the report by one of the current flights, or of the flights in the snapshot of option `snapshot`."""
    source = spark.read.format("scankv").option("url", url)
    flights = source.options(columns="origin,dest,dep_delay,arr_delay", **options).load(FLIGHTS)
    airports = spark.read.format("scankv").options(url=url, columns="faa,name").load(AIRPORTS)

    routes = flights.groupBy("origin", "dest").agg(
        F.count("dep_delay").alias("flights"),
        F.avg("dep_delay").alias("mean_departure_delay"),
        F.max("dep_delay").alias("worst_departure_delay"),
        F.avg("arr_delay").alias("mean_arrival_delay"),
    )
    # A left join, since some airports in the Caribbean are not in the file. `broadcast`, since Spark knows no sizes.
    named = routes.join(F.broadcast(airports), routes["dest"] == airports["faa"], "left")
    report = named.drop("faa").withColumnRenamed("name", "airport")

    writing = report.write.format("scankv").options(url=url, create="true", primary_key="origin,dest")
    writing.mode("overwrite").save(REPORT)


if __name__ == "__main__":
    write_report(SparkSession.builder.getOrCreate(), sys.argv[1])
