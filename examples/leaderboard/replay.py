"""Replays the flights of 2013 into a live table."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv import TableNotFound
from scankv.demo.flights import KEY, SCHEMA, find_flights, read_flights

if TYPE_CHECKING:
    from scankv.sync import Client

FLIGHTS: Final = "demo.flights"


class Replay:
    """Writes the flights of 2013 in the order of their scheduled hour.

    May be stopped at any time: the next replay continues with the last hour in the table.
    """

    def __init__(self, client: Client, start: str) -> None:
        """Creates the table if it does not exist, and writes all flights before `start`.

        Args:
            client: A client of the server.
            start: A day such as `2013-07-01`. Ignored if the table has flights already.
        """
        try:
            self._flights = client.table(FLIGHTS)
        except TableNotFound:
            # One bucket, because an hour has some 60 flights, and a write costs something for every bucket.
            self._flights = client.create_table(
                FLIGHTS, SCHEMA, primary_key=KEY, buckets=1, indexes=["dep_delay", "time_hour"]
            )
        departures = _departures()
        last = self._flights.aggregate({"time_hour": "max"})["time_hour_max"][0].as_py()
        if last is None:
            self._flights.upsert(departures.filter(pc.field("time_hour") < start))
        # Repeats the last hour, which may be incomplete. Writing a flight again without a difference is not a change.
        self._waiting = departures.filter(pc.field("time_hour") >= (last or start))
        self._hours = deque(pc.value_counts(self._waiting["time_hour"]).field("counts").to_pylist())

    def next_hour(self) -> bool:
        """Writes the flights of the next hour. Returns False if none are left in the year."""
        if not self._hours:
            return False
        hour = self._waiting.slice(0, self._hours.popleft())
        self._waiting = self._waiting.slice(hour.num_rows)
        self._flights.upsert(hour)
        return True


def _departures() -> pa.Table:
    """Returns all flights that were not cancelled, in the order of their scheduled hour."""
    flights = pa.Table.from_batches(read_flights(find_flights()))
    return flights.filter(pc.field("dep_delay").is_valid()).sort_by("time_hour")
