"""The totals of the two jobs equal those of pandas, even if a job or the server is killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.compute as pc
import pytest

from aio_client.sync import connect
from examples.leaderboard import replay as replay_module
from examples.leaderboard.replay import FLIGHTS, Replay
from examples.leaderboard.totals import CARRIER_DAY, JOBS, KEYS, PROGRESS, ROUTE, create_totals
from scankv.demo.flights import KEY
from tests.support.forked import ForkedProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from aio_client.sync import Client
    from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[3]
TOTALS = {
    "flights": ("dep_delay", "count"),
    "delay": ("dep_delay", "sum"),
    "mean_delay": ("dep_delay", "mean"),
    "worst_delay": ("dep_delay", "max"),
    "last_departure": ("time_hour", "max"),
    "arrivals": ("arr_delay", "count"),
    "arrival_delay": ("arr_delay", "sum"),
    "mean_arrival_delay": ("arr_delay", "mean"),
    "worst_arrival_delay": ("arr_delay", "max"),
}


@contextmanager
def jobs(url: str) -> Iterator[list[ForkedProcess[bytes]]]:
    """Runs both jobs, which are killed at the end."""
    with ExitStack() as stack:
        running = []
        for name in JOBS:
            command = [sys.executable, "-m", "examples.leaderboard.job", name, url]
            job = stack.enter_context(ForkedProcess[bytes](command, cwd=ROOT, stderr=subprocess.PIPE))
            stack.callback(job.kill)
            running.append(job)
        yield running


def by_pandas(flights: pa.Table, key: list[str]) -> pd.DataFrame:
    rows = flights.to_pandas().assign(day=lambda each: each["time_hour"].str.slice(0, 10))
    totals = rows.groupby(key).agg(**TOTALS)
    # The sum of no values in pandas.
    return totals.assign(arrival_delay=totals["arrival_delay"].where(totals["arrivals"] > 0))


def assert_totals_are_exact(client: Client, flights: pa.Table) -> None:
    for name, key in KEYS.items():
        table = client.table(name)
        found = table.scan().ordered().to_pandas(dtype_backend="numpy").set_index(key)
        pd.testing.assert_frame_equal(found, by_pandas(flights, key), check_dtype=False, check_exact=True)


def caught_up(client: Client, flights: pa.Table) -> bool:
    """Returns whether the jobs have read as many flights as there are in both tables, or too many."""
    wanted = {"flights": len(flights), "arrivals": len(flights) - flights["arr_delay"].null_count}
    for name in (ROUTE, CARRIER_DAY):
        sums = client.table(name).aggregate(dict.fromkeys(wanted, "sum"))
        if any((sums[f"{column}_sum"][0].as_py() or 0) < count for column, count in wanted.items()):
            return False
    return True


@pytest.mark.breadth
def test_the_totals_are_exact_though_server_and_jobs_are_killed_in_the_middle(
    server: ServerProcess, first_days: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "_departures", lambda: first_days)
    with connect(server.url) as client:
        replay = Replay(client, "2013-01-02")
        create_totals(client)
        for _ in range(3):
            with jobs(server.url):
                begun = commits(client)
                for _ in range(4):
                    replay.next_hour()
                wait_until(lambda: commits(client) > begun, "the jobs at work")  # noqa: B023
                server.kill()
            server.restart()
        with jobs(server.url):
            while replay.next_hour():
                pass
            wait_until(lambda: caught_up(client, first_days), "all flights in the totals")
            assert_totals_are_exact(client, first_days)


@pytest.mark.breadth
def test_a_flight_that_changes_or_goes_is_taken_back_and_a_second_job_replaces_the_first(
    server: ServerProcess, first_days: pa.Table
) -> None:
    flights = first_days.filter((pc.field("time_hour") < "2013-01-02") & (pc.field("origin") == "JFK"))
    with connect(server.url) as client:
        create_totals(client)
        table = client.create_table(FLIGHTS, flights.schema, primary_key=KEY)
        table.upsert(flights)
        with jobs(server.url) as replaced:
            wait_until(lambda: caught_up(client, flights), "all flights in the totals")
            before = locks(client)
            with jobs(server.url):
                wait_until(lambda: len(locks(client) - before) == 4, "the second jobs in place of the first")
                sooner = flights.slice(0, 50)
                delay = sooner["dep_delay"]
                sooner = sooner.set_column(flights.schema.get_field_index("dep_delay"), "dep_delay", pc.add(delay, -1))
                table.upsert(sooner)
                table.delete(flights.slice(50, 20))
                assert len(table.scan().to_arrow()) == len(flights) - 20
                route = client.table(ROUTE)
                total = pc.sum(sooner["dep_delay"]).as_py() + pc.sum(flights["dep_delay"].slice(70)).as_py()
                counted = {"flights_sum": len(flights) - 20, "delay_sum": total}
                asked = {"flights": "sum", "delay": "sum"}
                wait_until(lambda: route.aggregate(asked).to_pylist() == [counted], "what is left in the totals")
            for job in replaced:
                _, errors = job.communicate(timeout=60)
                assert b"ColumnLocked" in errors or b"LockLost" in errors, errors


def locks(client: Client) -> set[str]:
    return {lock.id for lock in client.column_locks()}


def commits(client: Client) -> int:
    return client.stats().commits


@pytest.mark.soak
def test_a_job_commits_what_has_come_meanwhile_at_once(server: ServerProcess, first_days: pa.Table) -> None:
    with connect(server.url) as client:
        create_totals(client)
        table = client.create_table(FLIGHTS, first_days.schema, primary_key=KEY)
        with jobs(server.url):
            wait_until(lambda: len(locks(client)) == 4, "the jobs at work")
            before, writes = commits(client), 0
            for flight in range(0, 600, 2):
                table.upsert(first_days.slice(flight, 2))
                writes += 1
            wait_until(lambda: caught_up(client, first_days.slice(0, 600)), "all flights in the totals")
            # Separate writes would be at least two commits, because a write changes several buckets.
            assert commits(client) - before < writes
            progress = {row["job"]: row["flights"] for row in client.table(PROGRESS).scan().to_pylist()}
            assert progress == dict.fromkeys(JOBS, 600)
        assert_totals_are_exact(client, first_days.slice(0, 600))
