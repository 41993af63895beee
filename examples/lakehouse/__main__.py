"""`python -m examples.lakehouse`: Spark, DuckDB and Polars read live flights from S3 at once, and agree."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from examples.lakehouse.check import check
from examples.lakehouse.lake import FORMATS, publish_once, publisher, run, serve_s3, use_catalog
from examples.lakehouse.readers import read_with_duckdb, read_with_polars, read_with_spark
from examples.spark_delays.departures import FLIGHTS, create_flights
from scankv import ScanKvError, Unavailable
from scankv.sync import connect
from scankv.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from examples.lakehouse.readers import ReaderAnswer
    from scankv.sync import Client

SPARK: Final = (
    "--master local[2] --driver-memory 1g --conf spark.log.level=ERROR --conf spark.ui.enabled=false "
    "--conf spark.ui.showConsoleProgress=false --conf spark.sql.shuffle.partitions=2"
)
# So that Spark reads S3: hadoop-aws for the Hadoop of PySpark 4.3, with four modules of the SDK instead of all 400.
SPARK_S3: Final = (
    "--packages org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3:2.35.4,"
    "software.amazon.awssdk:s3-transfer-manager:2.35.4,software.amazon.awssdk:sts:2.35.4 "
    "--exclude-packages software.amazon.awssdk:bundle --conf spark.hadoop.fs.s3a.path.style.access=true"
)


def main() -> int:
    """Runs until the flights have departed. Returns the exit code: 1 if a reader has found something wrong."""
    options = _parse_options()
    warnings.simplefilter("ignore", FutureWarning)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scankv-lakehouse-")))
            lake = options.lake or stack.enter_context(serve_s3())
            use_catalog(directory / "catalog.db")
            # Before any client is opened, since it forks the process.
            spark = _start_spark(SPARK if options.lake else f"{SPARK} {SPARK_S3}")
            stack.callback(spark.stop)
            server = stack.enter_context(ServerProcess(directory / "data"))
            client = stack.enter_context(connect(server.url))
            print(f"server  {server.url}\nlake    {lake}\nloading the flights before {options.start} ...", flush=True)
            create_flights(client, options.start)
            readers: list[Callable[[], ReaderAnswer]] = [
                partial(read_with_spark, spark, server.url, client, lake),
                read_with_duckdb,
                partial(read_with_polars, lake),
            ]
            _run(client, server.url, lake, readers, options)
    except (ScanKvError, AssertionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.lakehouse", description=__doc__)
    parser.add_argument("--start", default="2013-01-25", help="first day of the replay (default: %(default)s)")
    parser.add_argument("--end", default="2013-02-01", help="day after its last day (default: %(default)s)")
    parser.add_argument("--hours-per-second", default="5", help="speed of the replay (default: %(default)s)")
    parser.add_argument("--lake", help="publish to this empty directory (default: an S3 server on loopback)")
    return parser.parse_args()


def _start_spark(arguments: str) -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONWARNINGS"] = "ignore::FutureWarning"  # PySpark emits them for pandas 3
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments} pyspark-shell"
    return SparkSession.builder.getOrCreate()


def _run(
    client: Client, url: str, lake: str, readers: Sequence[Callable[[], ReaderAnswer]], options: argparse.Namespace
) -> None:
    """Reads while flights depart and publishers run, and at the end, when all readers must find the same flights."""
    publish_once(url, lake)
    _read_at_once(client, readers)
    with ExitStack() as stack:
        replay = ("examples.spark_delays.departures", url, options.start, options.end, options.hours_per_second)
        writer = stack.enter_context(run(*replay))
        for format_ in FORMATS:
            stack.enter_context(run(*publisher(url, lake, format_, "--every", "1")))
        while writer.poll() is None:
            _read_at_once(client, readers)
            with suppress(subprocess.TimeoutExpired):
                writer.wait(1)
        if writer.returncode:
            raise Unavailable("the writer has failed; see its output above")
    publish_once(url, lake)
    print("\nall flights have departed and are published")
    answers = _read_at_once(client, readers)
    if any(answer.routes != answers[0].routes for answer in answers):
        raise AssertionError("the readers differ although nothing was written any more")
    assert sum(route[2] for route in answers[0].routes) == client.table(FLIGHTS).count()


def _read_at_once(client: Client, readers: Sequence[Callable[[], ReaderAnswer]]) -> list[ReaderAnswer]:
    """Has all readers read at the same time, and checks each answer against the changelog."""
    print()
    with ThreadPoolExecutor(len(readers)) as threads:
        answers = list(threads.map(lambda read: read(), readers))
    for answer in answers:
        check(client, answer)
        flights, delay = (sum(route[column] for route in answer.routes) for column in (2, 3))
        print(
            f"{answer.reader:7} {answer.source:30} as of {answer.instant[11:23]}  {flights:6,} flights, "
            f"{delay:8,} minutes late, equal to the changelog",
            flush=True,
        )
    return answers


if __name__ == "__main__":
    sys.exit(main())
