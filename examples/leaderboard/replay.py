"""A live table: the flights that have departed."""

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
    """Lets the flights of 2013 depart in the order of their scheduled hour.

    May be stopped at any time: the next one goes on with the last hour that the server has.
    """

    def __init__(self, client: Client, start: str) -> None:
        """Makes the table where it is not there, and has everything before `start` depart at once.

        Args:
            client: Of the server.
            start: A day such as `2013-07-01`; without meaning where flights are there already.
        """
        try:
            self._flights = client.table(FLIGHTS)
        except TableNotFound:
            self._flights = client.create_table(FLIGHTS, SCHEMA, primary_key=KEY, indexes=["dep_delay", "time_hour"])
        departures = _departures()
        last = self._flights.aggregate({"time_hour": "max"})["time_hour_max"][0].as_py()
        if last is None:
            self._flights.upsert(departures.filter(pc.field("time_hour") < start))
        # That hour may have been interrupted; a flight that is the same is no change.
        self._waiting = departures.filter(pc.field("time_hour") >= (last or start))
        self._hours = deque(pc.value_counts(self._waiting["time_hour"]).field("counts").to_pylist())

    def next_hour(self) -> bool:
        """Has the flights of the next hour depart; returns whether there were any left in the year."""
        if not self._hours:
            return False
        hour = self._waiting.slice(0, self._hours.popleft())
        self._waiting = self._waiting.slice(hour.num_rows)
        self._flights.upsert(hour)
        return True


def _departures() -> pa.Table:
    """All flights that were not cancelled, in the order of their scheduled hour."""
    flights = pa.Table.from_batches(read_flights(find_flights()))
    return flights.filter(pc.field("dep_delay").is_valid()).sort_by("time_hour")
