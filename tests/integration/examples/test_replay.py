"""A restarted replay continues where the last one stopped, and lets every flight depart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from aio_client.sync import connect
from examples.leaderboard import replay as replay_module
from examples.leaderboard.replay import FLIGHTS, Replay

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.support.server_process import ServerProcess


@pytest.mark.breadth
def test_a_replay_that_is_started_anew_goes_on_in_the_hour_in_which_the_last_one_stopped(
    server: ServerProcess, first_days: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "_departures", lambda: first_days)
    with connect(server.url) as client:
        replay = Replay(client, "2013-01-02")
        flights = client.table(FLIGHTS)
        before = flights.count()
        assert before == first_days.filter(pc.field("time_hour") < "2013-01-02").num_rows
        for _ in range(5):
            assert replay.next_hour()
        stopped = flights.count()
        assert stopped > before
        rest = first_days.slice(stopped)
        flights.upsert(rest.slice(0, 3))  # a part of the next hour
        assert rest["time_hour"][0] == rest["time_hour"][3]

        replay = Replay(client, "2013-01-02")
        while replay.next_hour():
            pass
        assert flights.count() == first_days.num_rows
