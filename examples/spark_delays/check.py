"""Compares the results of Spark with pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from examples.spark_delays.departures import FLIGHTS
from examples.spark_delays.report import REPORT
from examples.spark_delays.totals import TOTALS

if TYPE_CHECKING:
    from pathlib import Path

    from scankv.sync import Client, Snapshot

ROUTE: Final = ["origin", "dest"]


def check_report(client: Client, snapshot: Snapshot, airports: Path) -> pd.DataFrame:
    """Compares the report with the flights of a snapshot, and returns it. Raises AssertionError if they differ."""
    found = client.table(REPORT).scan().ordered().to_pandas(dtype_backend="numpy")
    flights = client.table(FLIGHTS).scan().as_of(snapshot).to_pandas(dtype_backend="numpy")
    wanted = flights.groupby(ROUTE).agg(
        flights=("dep_delay", "count"),
        mean_departure_delay=("dep_delay", "mean"),
        worst_departure_delay=("dep_delay", "max"),
        mean_arrival_delay=("arr_delay", "mean"),
    )
    names = pd.read_csv(airports).set_index("faa")["name"].rename("airport")
    _check_equal(found.set_index(ROUTE), wanted.join(names, on="dest"))
    return found


def check_totals(client: Client) -> pd.DataFrame:
    """Compares the totals with the current flights, and returns them. Raises AssertionError if they differ."""
    found = client.table(TOTALS).scan().ordered().to_pandas(dtype_backend="numpy")
    flights = client.table(FLIGHTS).scan().to_pandas(dtype_backend="numpy")
    wanted = flights.groupby(ROUTE).agg(
        flights=("dep_delay", "count"),
        departure_delay=("dep_delay", "sum"),
        arrivals=("arr_delay", "count"),
        arrival_delay=("arr_delay", "sum"),
    )
    # A route whose flights were all cancelled has a row of zeros.
    _check_equal(found[found["flights"] > 0].set_index(ROUTE).fillna(0), wanted)
    return found


def _check_equal(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    wanted = wanted.sort_index()[list(found.columns)]
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, check_exact=True)
