"""The two tables of totals, by route and by carrier and day, and the jobs that fill their columns."""

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
    """A job. No other job fills its columns.

    Attributes:
        name: Its name, which is also the owner of its locks.
        columns: By column of the totals, the column of the flights that it aggregates.
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
    # The greatest value stays, even if its flight is retracted.
    "worst_delay": (pa.int64(), agg.max(ignore_retract=True)),
    "last_departure": (pa.string(), agg.max(ignore_retract=True)),
    "arrivals": (pa.int64(), agg.count()),
    "arrival_delay": (pa.int64(), agg.sum()),
    "mean_arrival_delay": (pa.float64(), agg.avg()),
    "worst_arrival_delay": (pa.int64(), agg.max(ignore_retract=True)),
}


def create_totals(client: Client) -> None:
    """Creates the tables of the jobs if they do not exist: the totals, and the position of each job."""
    there = {table.name for table in client.tables()}
    for name, key in KEYS.items():
        if name not in there:
            client.create_table(
                name,
                pa.schema(
                    [*((column, pa.string()) for column in key), *((c, type_) for c, (type_, _) in _TYPES.items())]
                ),
                primary_key=key,
                # Several buckets would only make each commit dearer: the tables have a few thousand rows at most.
                buckets=1,
                indexes=SHOWN_BY[name],
                merge_engine="aggregate",
                aggregators={column: function for column, (_, function) in _TYPES.items()},
            )
    if PROGRESS not in there:
        schema = pa.schema(
            [
                ("job", pa.string()),
                ("resume_token", pa.binary()),
                ("flights", pa.int64()),
                ("at", pa.timestamp("us", "UTC")),
            ]
        )
        client.create_table(PROGRESS, schema, primary_key=["job"], buckets=1)


def net_flights(changes: pa.Table) -> int:
    """Returns by how many rows some changes make the table larger or smaller."""
    before = pc.is_in(changes[CHANGE_TYPE], pa.array(["-U", "-D"]))
    return int(changes.num_rows - 2 * (pc.sum(before).as_py() or 0))


def make_total_rows(job: Job, table: str, changes: pa.Table) -> pa.Table:
    """Returns what a job writes to a table of totals: one row for each change, which the server merges.

    The change type makes the server retract the old row of an updated or deleted flight.
    """
    columns = {name: changes[name] for name in ("origin", "dest", "carrier", CHANGE_TYPE)}
    columns["day"] = pc.utf8_slice_codeunits(changes["time_hour"], 0, 10)
    columns |= {name: changes[source].cast(_TYPES[name][0]) for name, source in job.columns.items()}
    return pa.table({name: columns[name] for name in (*KEYS[table], *job.columns, CHANGE_TYPE)})
