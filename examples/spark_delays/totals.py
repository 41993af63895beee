"""`python -m examples.spark_delays.totals URL CHECKPOINT`: a streaming job that keeps the delays by route current.

spark-submit examples/spark_delays/totals.py localhost:7070 /path/of/its/checkpoint
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS: Final = "demo.flights"
TOTALS: Final = "demo.route_totals"


def start_totals(spark: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    """Starts the query, or continues it after the last committed micro-batch of the checkpoint."""
    source = spark.readStream.format("scankv").option("url", url)
    changes = source.options(row_kinds="true", columns="origin,dest,dep_delay,arr_delay").load(FLIGHTS)

    # One row for each change. The table counts and adds them, and retracts rows that were changed or deleted.
    added = changes.select(
        "_change_type",
        "origin",
        "dest",
        F.col("dep_delay").alias("flights"),
        F.col("dep_delay").alias("departure_delay"),
        F.col("arr_delay").alias("arrivals"),
        F.col("arr_delay").alias("arrival_delay"),
    )

    writing = added.writeStream.format("scankv").options(url=url, table=TOTALS, checkpointLocation=checkpoint)
    writing = writing.options(
        create="true",
        primary_key="origin,dest",
        merge_engine="aggregate",
        aggregators="flights=count, departure_delay=sum, arrivals=count, arrival_delay=sum",
    )
    return writing.trigger(processingTime="1 second").start()


if __name__ == "__main__":
    start_totals(SparkSession.builder.getOrCreate(), *sys.argv[1:]).awaitTermination()
