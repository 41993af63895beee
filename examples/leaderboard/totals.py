"""Two tables that add up the flights, by route and by carrier and day; and the jobs that fill their columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv import agg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.sync import Client

ROUTE: Final = "demo.route"
CARRIER_DAY: Final = "demo.carrier_day"
PROGRESS: Final = "demo.progress"

KEYS: Final[Mapping[str, list[str]]] = {ROUTE: ["origin", "dest"], CARRIER_DAY: ["carrier", "day"]}
SHOWN_BY: Final[Mapping[str, list[str]]] = {
    ROUTE: ["flights", "mean_delay"],
    CARRIER_DAY: ["mean_arrival_delay"],
}
CHANGE_TYPE: Final = "_change_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of the jobs. The columns that it fills are its own: no other job has one of them.

    Attributes:
        name: Its name, which is also the owner of its locks.
        columns: By column of the totals, the column of the flights that is added up in it.
    """

    name: str
    columns: Mapping[str, str]


JOBS: Final[Mapping[str, Job]] = {
    job.name: job
    for job in (
        Job(
            name="departures",
            columns={
                "flights": "dep_delay",
                "delay": "dep_delay",
                "mean_delay": "dep_delay",
                "worst_delay": "dep_delay",
                "last_departure": "time_hour",
            },
        ),
        Job(
            name="arrivals",
            columns={
                "arrivals": "arr_delay",
                "arrival_delay": "arr_delay",
                "mean_arrival_delay": "arr_delay",
                "worst_arrival_delay": "arr_delay",
            },
        ),
    )
}
_TYPES: Final = {
    "flights": (pa.int64(), agg.count()),
    "delay": (pa.int64(), agg.sum()),
    "mean_delay": (pa.float64(), agg.avg()),
    # What was the greatest stays, also when that flight is taken back.
    "worst_delay": (pa.int64(), agg.max(ignore_retract=True)),
    "last_departure": (pa.string(), agg.max(ignore_retract=True)),
    "arrivals": (pa.int64(), agg.count()),
    "arrival_delay": (pa.int64(), agg.sum()),
    "mean_arrival_delay": (pa.float64(), agg.avg()),
    "worst_arrival_delay": (pa.int64(), agg.max(ignore_retract=True)),
}


def create_totals(client: Client) -> None:
    """Makes the tables of the jobs where they are not there: the totals, and how far each job has come."""
    there = {table.name for table in client.tables()}
    for name, key in KEYS.items():
        if name not in there:
            client.create_table(
                name,
                pa.schema(
                    [*((column, pa.string()) for column in key), *((c, type_) for c, (type_, _) in _TYPES.items())]
                ),
                primary_key=key,
                indexes=SHOWN_BY[name],
                merge_engine="aggregate",
                aggregates={column: function for column, (_, function) in _TYPES.items()},
            )
    if PROGRESS not in there:
        schema = pa.schema(
            [("job", pa.string()), ("behind", pa.binary()), ("flights", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
        )
        client.create_table(PROGRESS, schema, primary_key=["job"], buckets=1)


def net_flights(changes: pa.Table) -> int:
    """How many flights there are more for some changes; those of a table from its beginning add up to its rows."""
    before = pc.is_in(changes[CHANGE_TYPE], pa.array(["-U", "-D"]))
    return int(changes.num_rows - 2 * (pc.sum(before).as_py() or 0))


def added_up(job: Job, table: str, changes: pa.Table) -> pa.Table:
    """What a job writes to one of the tables for some changes of the flights: a row for each, which the server merges.

    A flight that was deleted, or was another before, is taken back by its change type.
    """
    columns = {name: changes[name] for name in ("origin", "dest", "carrier", CHANGE_TYPE)}
    columns["day"] = pc.utf8_slice_codeunits(changes["time_hour"], 0, 10)
    columns |= {name: changes[source].cast(_TYPES[name][0]) for name, source in job.columns.items()}
    return pa.table({name: columns[name] for name in (*KEYS[table], *job.columns, CHANGE_TYPE)})
