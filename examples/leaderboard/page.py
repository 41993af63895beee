"""The page: Streamlit runs this file for every browser tab, and `board` in it every second.

All tabs share five watches of the server's tables. A watch is told by the server when its first rows may have changed,
and `latest()` gives what it knows without waiting, so that neither many tabs nor a slow server hold up the page.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import streamlit as st

from aio_client.sync import connect
from examples.leaderboard.replay import FLIGHTS
from examples.leaderboard.totals import CARRIER_DAY, ROUTE
from table_model.errors import ScanKvError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from aio_client import TopN
    from aio_client.sync import TopNWatch

INTERVAL = 2.0  # seconds within which a change is seen: half of them may pass until it is told, half until it is drawn
TOP = 10
ENOUGH = 50  # flights, for a mean to say something
DEPARTURES = ["origin", "dest", "flights", "mean_delay"]  # what the other job fills changes none of these


@st.cache_resource(show_spinner="Connecting to the server ...")
def watches() -> tuple[TopNWatch, ...]:
    """What the page shows, as the server keeps it up to date; opened once, for all tabs."""
    client = connect(sys.argv[1], operation_timeout=10)
    routes, days, flights = client.table(ROUTE), client.table(CARRIER_DAY), client.table(FLIGHTS)
    return (
        routes.watch_top_n(TOP, by="flights", columns=DEPARTURES, every=INTERVAL / 2),
        routes.watch_top_n(TOP, by="mean_delay", where=f"flights >= {ENOUGH}", columns=DEPARTURES, every=INTERVAL / 2),
        flights.watch_top_n(5, by="dep_delay", every=INTERVAL / 2),
        days.watch_top_n(5, by="mean_arrival_delay", where=f"arrivals >= {ENOUGH}", every=INTERVAL / 2),
        routes.watch_top_n(1, by="last_departure", every=INTERVAL / 2),
    )


@st.fragment(run_every=INTERVAL / 2)
def board() -> None:
    """Draws what has changed; the browser keeps the rest."""
    try:
        busiest, delayed, latest, days, clock = (watch.latest() for watch in watches())
    except ScanKvError as error:
        watches.clear()  # the next run connects again
        st.error(f"The server does not answer; trying again. {error}")
        return
    if busiest is None or delayed is None or latest is None or days is None or not (clock and len(clock.rows)):
        st.info("Waiting for the first answer ...")
        return
    hour = clock.rows["last_departure"][0].as_py()[:13].replace("T", " ")
    st.caption(f"Departed until {hour}:00 UTC")
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Busiest routes")
        st.table(busiest_routes(busiest), hide_index=True)
        st.subheader("Longest delays of a flight")
        st.table(delayed_flights(latest), hide_index=True)
        st.subheader("Latest days of a carrier")
        st.table(delayed_days(days), hide_index=True)
    with right:
        st.subheader("Longest mean delays of a route")
        delays = delayed_routes(delayed)
        alt = "Bar chart of mean delays by route; the table below has its numbers"
        st.bar_chart(delays, x="route", y="minutes", horizontal=True, sort="-minutes", height=400, alt=alt)
        st.table(delays.assign(minutes=delays["minutes"].map("{:.1f}".format)), hide_index=True)


def busiest_routes(top: TopN) -> pd.DataFrame:
    """The routes by rank, and how they have moved since the ranking changed last."""
    moved = {key: before - now for key, before, now in zip(keys(top.moved), *ranks(top.moved), strict=True)}
    entered = set(keys(top.entered)) if len(top.entered) < len(top.rows) else set()  # at first all have entered
    routes = ranked(top)
    routes["moved"] = ["new" if key in entered else movement(moved.get(key, 0)) for key in keys(top.rows)]
    routes["mean delay"] = routes["mean_delay"].map("{:.1f} min".format)
    routes["flights"] = routes["flights"].map("{:,}".format)
    return routes[["rank", "route", "flights", "mean delay", "moved"]]


def movement(ranks: int) -> str:
    """Ranks gained, in words that a screen reader says as well."""
    return "" if ranks == 0 else f"▲ up {ranks}" if ranks > 0 else f"▼ down {-ranks}"


def delayed_routes(top: TopN) -> pd.DataFrame:
    """Minutes of delay at departure, by route."""
    return ranked(top).rename(columns={"mean_delay": "minutes"})[["rank", "route", "minutes"]]


def delayed_flights(top: TopN) -> pd.DataFrame:
    """The flights that left latest."""
    flights = ranked(top)
    flights["flight"] = flights["carrier"] + " " + flights["flight"].astype(str)
    flights["delay"] = (flights["dep_delay"] / 60).map("{:.1f} h".format)
    flights["day"] = flights["time_hour"].str.slice(0, 10)
    return flights[["rank", "flight", "route", "day", "delay"]]


def delayed_days(top: TopN) -> pd.DataFrame:
    """The carriers' days with the longest mean delay at arrival; null where no flight has arrived."""
    days: pd.DataFrame = top.rows.to_pandas()
    days = days.assign(rank=range(1, len(days) + 1), delay=days["mean_arrival_delay"].map("{:.1f} min".format))
    return days[["rank", "carrier", "day", "arrivals", "delay"]]


def ranked(top: TopN) -> pd.DataFrame:
    """The rows with their ranks, and each route as people write it."""
    rows: pd.DataFrame = top.rows.to_pandas()
    return rows.assign(rank=range(1, len(rows) + 1), route=rows["origin"] + " → " + rows["dest"])


def keys(routes: pa.Table) -> list[tuple[str, str]]:
    """The primary keys of some rows."""
    return list(zip(routes["origin"].to_pylist(), routes["dest"].to_pylist(), strict=True))


def ranks(moved: pa.Table) -> tuple[list[int], list[int]]:
    """The ranks before and now."""
    return moved["rank_before"].to_pylist(), moved["rank"].to_pylist()


st.set_page_config(page_title="New York departures 2013", page_icon="✈", layout="wide")
st.title("Departures from New York, 2013")
board()
