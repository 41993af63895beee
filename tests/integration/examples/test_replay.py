"""The rows of the routes are those that the flights add up to, however often the replay is started anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.compute as pc
import pytest

from aio_client.sync import connect
from examples.leaderboard import replay as replay_module
from examples.leaderboard.replay import FLIGHTS, ROUTES, Replay

if TYPE_CHECKING:
    import pyarrow as pa

    from aio_client.sync import Client
    from tests.support.server_process import ServerProcess

FIRST_DAYS = "2013-01-04"


@pytest.fixture(scope="module")
def departures() -> pa.Table:
    """The flights of three days."""
    return replay_module._departures().filter(pc.field("time_hour") < FIRST_DAYS)


@pytest.fixture(autouse=True)
def _a_short_year(departures: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "_departures", lambda: departures)


def assert_routes_are_of_the_flights(client: Client) -> int:
    """Compares with pandas; returns the number of flights."""
    flights = client.table(FLIGHTS).scan().to_pandas()
    expected = flights.groupby(["origin", "dest"]).agg(
        flights=("dep_delay", "count"), mean_delay=("dep_delay", "mean"), last_departure=("time_hour", "max")
    )
    found = client.table(ROUTES).scan().ordered().to_pandas().set_index(["origin", "dest"])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    return len(flights)


def test_a_replay_that_is_started_anew_goes_on_where_the_last_one_stopped(
    server: ServerProcess, departures: pa.Table
) -> None:
    with connect(server.url) as client:
        replay = Replay(client, "2013-01-02")
        before = assert_routes_are_of_the_flights(client)
        for _ in range(5):
            assert replay.next_hour()
        stopped = assert_routes_are_of_the_flights(client)
        assert stopped > before

        replay = Replay(client, "2013-01-02")
        assert assert_routes_are_of_the_flights(client) == stopped
        while replay.next_hour():
            pass
        assert assert_routes_are_of_the_flights(client) == departures.num_rows


def test_a_replay_stopped_between_flights_and_routes_counts_no_flight_twice(
    server: ServerProcess, departures: pa.Table
) -> None:
    with connect(server.url) as client:
        Replay(client, "2013-01-02")
        hour = departures.filter(pc.field("time_hour") >= "2013-01-02").slice(0, 7)
        client.table(FLIGHTS).upsert(hour)  # a part of an hour, of which the routes know nothing
        replay = Replay(client, "2013-01-02")
        while replay.next_hour():
            pass
        assert assert_routes_are_of_the_flights(client) == departures.num_rows
