"""`python -m examples.spark_delays.departures URL START END HOURS_PER_SECOND`: writes a live table of flights.

Hour by hour, flights are announced as on time. An hour later, they depart with their real delays, or are cancelled.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.demo.flights import KEY, SCHEMA, find_flights, read_flights
from scankv.sync import connect

if TYPE_CHECKING:
    from scankv.sync import Client

FLIGHTS: Final = "demo.flights"
ANNOUNCED: Final = {"dep_time": None, "dep_delay": 0, "arr_time": None, "arr_delay": 0, "air_time": None}


def create_flights(client: Client, before: str) -> None:
    """Creates the table with the flights that departed before a day such as `2013-01-15`."""
    flights = client.create_table(FLIGHTS, SCHEMA, primary_key=KEY)
    flights.upsert(_flights().filter((pc.field("time_hour") < before) & pc.field("dep_time").is_valid()))


class Departures:
    """Writes the flights of some days in the order of their scheduled hour."""

    def __init__(self, client: Client, start: str, end: str) -> None:
        """Reads the flights from the day `start` to the day before `end`. Writes nothing."""
        self._table = client.table(FLIGHTS)
        flights = _flights().filter((pc.field("time_hour") >= start) & (pc.field("time_hour") < end))
        self._hours = deque(flights.filter(pc.field("time_hour") == hour) for hour in pc.unique(flights["time_hour"]))
        self._announced = SCHEMA.empty_table()

    def next_hour(self) -> bool:
        """Writes the departures of the announced flights, and announces the next hour. Returns False at the end."""
        departed = pc.is_valid(self._announced["dep_time"])
        self._table.upsert(self._announced.filter(departed))
        self._table.delete(self._announced.filter(pc.invert(departed)).select(KEY))
        self._announced = self._hours.popleft() if self._hours else SCHEMA.empty_table()
        self._table.upsert(_announcement(self._announced))
        return len(self._announced) > 0


def _flights() -> pa.Table:
    """Returns all flights of 2013 by their scheduled hour. Cancelled flights have no `dep_time`."""
    return pa.Table.from_batches(read_flights(find_flights())).sort_by("time_hour")


def _announcement(flights: pa.Table) -> pa.Table:
    for name, value in ANNOUNCED.items():
        values = pa.repeat(pa.scalar(value, pa.int64()), len(flights))
        flights = flights.set_column(flights.column_names.index(name), name, values)
    return flights


def main(url: str, start: str, end: str, hours_per_second: float) -> None:
    """Writes one hour after the other at a steady pace, until all flights have departed."""
    with connect(url) as client:
        departures = Departures(client, start, end)
        due = time.monotonic()
        while departures.next_hour():
            due += 1 / hours_per_second
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
