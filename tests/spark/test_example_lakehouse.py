"""All readers of examples/lakehouse find the table at the instant that they report, while flights depart."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aio_client.sync import connect
from examples.lakehouse.check import check, routes_at
from examples.lakehouse.readers import ReaderAnswer
from examples.spark_delays.departures import FLIGHTS, Departures, create_flights
from tests.spark import java

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess

ROUND = re.compile(r"\n(Spark .*)\n(DuckDB .*)\n(Polars .*)\n")
LINE = re.compile(r"(?:[1-9]\d* Delta files and fresh rows|(?:Iceberg snapshot|Delta version) \d+) +as of .* equal to")


def check_example(*arguments: str, rounds: int) -> None:
    """Runs the example, and checks that all readers have read the lake in each round."""
    done = java.run("examples.lakehouse", *arguments)
    assert done.returncode == 0, done.stderr[-5000:]
    found = ROUND.findall(done.stdout)
    assert len(found) >= rounds
    assert all(LINE.search(line) for lines in found for line in lines), done.stdout
    assert all("26,353 flights" in line for line in found[-1])


@pytest.mark.soak
def test_one_command_runs_the_example_over_a_directory(tmp_path: Path) -> None:
    check_example("--lake", str(tmp_path), "--start", "2013-01-31", "--hours-per-second", "6", rounds=3)


@pytest.mark.soak
def test_one_command_runs_the_example_over_s3() -> None:
    check_example(rounds=4)


@pytest.mark.breadth
def test_an_answer_of_another_instant_is_found(server: ServerProcess) -> None:
    with connect(server.url) as client:
        create_flights(client, "2013-01-31")
        departures, table = Departures(client, "2013-01-31", "2013-02-01"), client.table(FLIGHTS)
        offsets = table.log_offsets()
        before = routes_at(client, offsets)
        assert sum(route[2] for route in before) == table.count()
        for _ in range(3):
            assert departures.next_hour()
        check(client, ReaderAnswer("old", "table", "then", offsets, before))
        with pytest.raises(AssertionError, match="old differs from the table as of now"):
            check(client, ReaderAnswer("old", "table", "now", table.log_offsets(), before))
        wanted = (
            table.scan()
            .to_pandas(dtype_backend="numpy")
            .groupby(["origin", "dest"])["dep_delay"]
            .agg(["size", "sum", "max"])
        )
        found = list(wanted.reset_index().itertuples(index=False, name=None))
        check(client, ReaderAnswer("live", "table", "now", table.log_offsets(), found))
