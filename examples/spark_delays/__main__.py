"""`python -m examples.spark_delays`: Spark computes a report and totals of live flights, compared with pandas."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from examples.spark_delays.check import check_report, check_totals
from examples.spark_delays.departures import FLIGHTS, create_flights
from examples.spark_delays.report import write_airports, write_report
from scankv import ScanKvError, TableNotFound, Unavailable
from scankv.demo.flights import find_flights
from scankv.sync import connect
from scankv.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from scankv.sync import Client

ROOT: Final = Path(__file__).parents[2]
CAUGHT_UP_WITHIN: Final = 300.0  # seconds
SPARK: Final = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONWARNINGS": "ignore::FutureWarning",  # PySpark emits them for pandas 3
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_SUBMIT_ARGS": "--master local[2] --driver-memory 1g --conf spark.log.level=ERROR "
    "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false --conf spark.sql.shuffle.partitions=2 "
    "pyspark-shell",
}


def main() -> int:
    """Runs until all flights have departed and are in the report and the totals. Returns the exit code."""
    options = _parse_options()
    os.environ.update(SPARK)
    warnings.simplefilter("ignore", FutureWarning)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            # Before any client is opened, since it forks the process.
            spark = SparkSession.builder.getOrCreate()
            stack.callback(spark.stop)
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scankv-spark-")))
            server = stack.enter_context(ServerProcess(directory / "data"))
            client = stack.enter_context(connect(server.url))
            print(f"server  {server.url}\nloading the flights before {options.start} ...", flush=True)
            create_flights(client, options.start)
            _run(spark, server, client, directory / "checkpoint", options)
    except (ScanKvError, AssertionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.spark_delays", description=__doc__)
    parser.add_argument("--start", default="2013-01-25", help="first day of the replay (default: %(default)s)")
    parser.add_argument(
        "--end", default="2013-02-01", help="day after the last day of the replay (default: %(default)s)"
    )
    parser.add_argument(
        "--hours-per-second", type=float, default=2.0, help="speed of the replay (default: %(default)s)"
    )
    return parser.parse_args()


def _run(
    spark: SparkSession, server: ServerProcess, client: Client, checkpoint: Path, options: argparse.Namespace
) -> None:
    airports = find_flights().with_name("airports.csv")
    live = ["departures", server.url, options.start, options.end, str(options.hours_per_second)]
    with ExitStack() as stack:
        write_airports(spark, server.url, airports)
        totals = stack.enter_context(_run_module("totals", server.url, str(checkpoint)))
        _show("totals", _wait_for_totals(client, totals), "departure_delay")
        writer = stack.enter_context(_run_module(*live))
        reports = 0
        while writer.poll() is None or reports < 4:
            with client.table(FLIGHTS).snapshot() as snapshot:
                write_report(spark, server.url, snapshot=snapshot.id)
                _show("report", check_report(client, snapshot, airports), "mean_departure_delay")
            reports += 1
            if reports == 2:
                print("killing the server, and starting it again", flush=True)
                server.kill()
                server.restart()
            if reports == 3:
                print("killing the streaming job, and starting it again", flush=True)
                os.killpg(totals.pid, signal.SIGKILL)
                totals = stack.enter_context(_run_module("totals", server.url, str(checkpoint)))
        if writer.returncode:
            raise Unavailable("the writer has failed; see its output above")
        _show("totals", _wait_for_totals(client, totals), "departure_delay")


def _show(what: str, routes: pd.DataFrame, by: str) -> None:
    flights, first = routes["flights"].sum(), routes.nlargest(3, by)
    print(f"\n{what} of {flights:,} flights, equal to pandas'; the greatest {by}:\n{first.to_string(index=False)}\n")


def _wait_for_totals(client: Client, totals: subprocess.Popen[bytes]) -> pd.DataFrame:
    """Waits until all flights are in the totals, and returns the totals."""
    deadline = time.monotonic() + CAUGHT_UP_WITHIN
    while totals.poll() is None:
        try:
            return check_totals(client)
        except (AssertionError, TableNotFound):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    raise Unavailable("the streaming job has ended; see its output above")


@contextmanager
def _run_module(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a module of this example in its own process. Kills the process and its children after the block."""
    command = [sys.executable, "-m", f"examples.spark_delays.{arguments[0]}", *arguments[1:]]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
