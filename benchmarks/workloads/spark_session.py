"""A local Spark session, and a process that runs Spark jobs beside a benchmark."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_bridge
from benchmarks import t4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """Runs Spark with two threads in this process, for the length of the block."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    builder: SparkSession.Builder = SparkSession.builder.master("local[2]")
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


class SparkJobs:
    """A Spark session that reads T4 as fast as it can."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._session = spark_session(directory)

    def __enter__(self) -> Self:
        self._spark = self._session.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._session.__exit__(None, None, None)

    def read(self, _: int, seconds: float) -> int:
        """Runs one job after another, each of which reads all columns of all rows. Returns the number of rows."""
        rows, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            loaded = spark_bridge.scan_dataframe(self._spark, self._url, t4.TABLE)
            (found,) = loaded.agg(F.sum("amount"), F.count("amount")).collect()
            rows += found[1]
        return rows
