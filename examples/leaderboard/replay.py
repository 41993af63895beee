"""Two live tables: the flights that have departed, and a row for each route, which the replay keeps up to date."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from aio_client import TableNotFound
from scankv.demo.flights import KEY, SCHEMA, find_flights, read_flights

if TYPE_CHECKING:
    from aio_client.sync import Client

FLIGHTS: Final = "demo.flights"
ROUTES: Final = "demo.routes"
ROUTE: Final = ["origin", "dest"]
ROUTES_SCHEMA: Final = pa.schema(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        ("flights", pa.int64()),
        ("mean_delay", pa.float64()),
        ("last_departure", pa.string()),
    ]
)
SHOWN_BY: Final = ["flights", "mean_delay", "last_departure"]
TOTALS: Final = {"dep_delay": ["count", "sum"], "time_hour": ["max"]}


class Replay:
    """Lets the flights of 2013 depart in the order of their scheduled hour.

    May be stopped at any time: the next one goes on with the last hour that the server has.
    """

    def __init__(self, client: Client, start: str) -> None:
        """Makes the tables where they are not there, and has everything before `start` depart at once.

        Args:
            client: Of the server.
            start: A day such as `2013-07-01`; without meaning where flights are there already.
        """
        try:
            self._flights, self._routes = client.table(FLIGHTS), client.table(ROUTES)
        except TableNotFound:
            self._flights = client.create_table(FLIGHTS, SCHEMA, primary_key=KEY, indexes=["dep_delay"])
            self._routes = client.create_table(ROUTES, ROUTES_SCHEMA, primary_key=ROUTE, indexes=SHOWN_BY)
        departures = _departures()
        last = self._flights.aggregate({"time_hour": "max"})["time_hour_max"][0].as_py()
        if last is None:
            self._flights.upsert(departures.filter(pc.field("time_hour") < start))
        start = last or start
        self._waiting = departures.filter(pc.field("time_hour") >= start)
        self._hours = deque(pc.value_counts(self._waiting["time_hour"]).field("counts").to_pylist())
        self._totals = self._flights.aggregate(TOTALS, f"time_hour < '{start}'", group_by=ROUTE)
        if last is None:
            self._routes.upsert(_routes(self._totals))
        else:  # that hour may have been interrupted
            self.next_hour()

    def next_hour(self) -> bool:
        """Has the flights of the next hour depart; returns whether there were any left in the year."""
        if not self._hours:
            return False
        hour = self._waiting.slice(0, self._hours.popleft())
        self._waiting = self._waiting.slice(hour.num_rows)
        self._flights.upsert(hour)
        self._totals = _added(self._totals, hour)
        self._routes.upsert(_routes(self._totals))  # a row that is the same is no change
        return True


def _departures() -> pa.Table:
    """All flights that were not cancelled, in the order of their scheduled hour."""
    flights = pa.Table.from_batches(read_flights(find_flights()))
    return flights.filter(pc.field("dep_delay").is_valid()).sort_by("time_hour")


def _added(totals: pa.Table, flights: pa.Table) -> pa.Table:
    """The totals with those of more flights."""
    more = flights.group_by(ROUTE).aggregate([(column, name) for column, names in TOTALS.items() for name in names])
    both = pa.concat_tables([totals, more.select(totals.column_names).cast(totals.schema)])
    functions = {"dep_delay_count": "sum", "dep_delay_sum": "sum", "time_hour_max": "max"}
    added = both.group_by(ROUTE).aggregate(list(functions.items()))
    return added.rename_columns([*ROUTE, *functions]).cast(totals.schema)


def _routes(totals: pa.Table) -> pa.Table:
    flights = totals["dep_delay_count"]
    mean_delay = pc.divide(totals["dep_delay_sum"].cast(pa.float64()), flights)
    columns = [totals["origin"], totals["dest"], flights, mean_delay, totals["time_hour_max"]]
    return pa.table(columns, names=ROUTES_SCHEMA.names)
