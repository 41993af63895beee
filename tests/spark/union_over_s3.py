"""`python -m tests.spark.union_over_s3 URL TABLE URI`: a Spark program that prints what a union read returns.

Spark has the packages of Maven that read S3, unless `SPARK_REMOTE` names a Spark Connect server that lacks them.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import spark_bridge
from examples.lakehouse.__main__ import SPARK_S3
from scankv import UsageError
from tests.spark import java
from tests.spark.program import say


def main(url: str, table: str, uri: str) -> None:
    """Prints how many files Spark reads, and how many rows have each value; or why it cannot read them."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[2] {SPARK_S3} pyspark-shell"
    builder: SparkSession.Builder = SparkSession.builder
    spark = (builder if "SPARK_REMOTE" in os.environ else java.configured(builder)).getOrCreate()
    try:
        rows = spark_bridge.table(spark, url, table, lake=uri)
        say(len(rows.inputFiles()))
        say([tuple(row) for row in rows.groupBy("value").count().orderBy("value").collect()])
    except UsageError as error:
        say(error)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
