"""The page: Streamlit runs this file for every browser tab, and the function `board` every second.

All tabs share six watches of the server's tables. The server notifies a watch when its rows may have changed, and
`latest()` returns the newest rows without waiting, so that neither many tabs nor a slow server delay the page. The jobs
compute the totals, which may be behind the flights. So the page shows its time and how far each job is behind.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import streamlit as st

from examples.leaderboard.replay import FLIGHTS
from examples.leaderboard.totals import CARRIER_DAY, JOBS, PROGRESS, ROUTE
from scankv import ScanKvError
from scankv.sync import connect

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from scankv import TopN
    from scankv.sync import TopNWatch

INTERVAL = 2.0  # seconds until a change is visible: at most half until the watch has it, and half until it is drawn
TOP = 10
ENOUGH = 50  # flights that make a mean meaningful
FAR_BEHIND = 1000  # flights, about a day
DEPARTURES = ["origin", "dest", "flights", "mean_delay"]  # the other job never changes these columns
SUMMARY = ["job", "flights", "at"]


class Shared:
    """What all tabs share: a connection, the watches, and the number of departed flights."""

    def __init__(self) -> None:
        client = connect(sys.argv[1], operation_timeout=10)
        routes, days, self._flights = client.table(ROUTE), client.table(CARRIER_DAY), client.table(FLIGHTS)
        means = f"flights >= {ENOUGH}"
        every = INTERVAL / 2
        self.watches: tuple[TopNWatch, ...] = (
            routes.watch_top_n(TOP, order_by="flights", columns=DEPARTURES, every=every),
            routes.watch_top_n(TOP, order_by="mean_delay", where=means, columns=DEPARTURES, every=every),
            self._flights.watch_top_n(5, order_by="dep_delay", every=every),
            days.watch_top_n(5, order_by="mean_arrival_delay", where=f"arrivals >= {ENOUGH}", every=every),
            self._flights.watch_top_n(1, order_by="time_hour", every=every),
            client.table(PROGRESS).watch_top_n(len(JOBS), order_by="at", columns=SUMMARY, every=every),
        )
        self._versions: tuple[bytes, ...] = ()
        self._departed = 0
        self._changed_at = datetime.now(UTC)

    def count_departed(self, answers: tuple[TopN, ...]) -> tuple[int, datetime]:
        """Returns the number of departed flights and the time of the last change; counts only after a change."""
        versions = tuple(answer.version for answer in answers)
        if versions != self._versions:
            self._departed, self._changed_at = self._flights.count(), datetime.now(UTC)
            self._versions = versions
        return self._departed, self._changed_at

    def current_error(self) -> ScanKvError | None:
        """Returns the current error of a watch, or None if the server answers."""
        return next((watch.current_error for watch in self.watches if watch.current_error is not None), None)


@st.cache_resource(show_spinner="Connecting to the server ...")
def shared() -> Shared:
    """Returns the object that all tabs share."""
    return Shared()


@st.fragment(run_every=INTERVAL / 2)
def board() -> None:
    """Draws the page; the browser updates what has changed."""
    try:
        answers = tuple(watch.latest() for watch in shared().watches)
        known = tuple(answer for answer in answers if answer is not None)
        if len(known) < len(answers):
            st.info("Waiting for the first answer ...")
            return
        departed, changed_at = shared().count_departed(known)
    except ScanKvError as error:
        shared.clear()  # the next run connects again
        st.error(f"The server does not answer; trying again. {error}")
        return
    busiest, delayed, latest, days, newest, progress = known
    if not len(newest.rows):
        st.info("No flight has departed yet.")
        return
    # The latest hour of both watches of the flights, so that no flight below is later.
    hours = newest.rows["time_hour"].to_pylist() + latest.rows["time_hour"].to_pylist()
    show_age(max(hours), departed, progress.rows, changed_at, shared().current_error())
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Busiest routes")
        show("busiest", busiest_routes(busiest), "rank", "flights", "mean delay")
        st.subheader("Longest delays of a flight")
        show("flights", delayed_flights(latest), "rank", "delay")
        st.subheader("Latest days of a carrier")
        show("days", delayed_days(days), "rank", "arrivals", "delay")
    with right:
        st.subheader("Longest mean delays of a route")
        delays = delayed_routes(delayed)
        alt = "Bar chart of mean delays by route; the table below has its numbers"
        st.bar_chart(delays, x="route", y="minutes", horizontal=True, sort="-minutes", height=400, alt=alt)
        show("delayed", delays.assign(minutes=delays["minutes"].map("{:.1f}".format)), "rank", "minutes")


def show_age(hour: str, departed: int, progress: pa.Table, changed_at: datetime, trouble: ScanKvError | None) -> None:
    """Shows the time of the rows, and how far each job is behind."""
    behind = lags(departed, progress)
    counted = ", ".join(f"{job} {lag:,} flights behind" if lag else f"{job} up to date" for job, lag in behind.items())
    st.caption(
        f"Departed until {hour[:13].replace('T', ' ')}:00 UTC: {departed:,} flights. Totals: {counted}. "
        f"Last change {changed_at:%H:%M:%S} UTC."
    )
    if max(behind.values()) >= FAR_BEHIND:
        st.warning(f"The totals are catching up: they lack up to {max(behind.values()):,} of {departed:,} flights.")
    if trouble is not None:
        st.warning(f"The server does not answer at the moment; this is as of {changed_at:%H:%M:%S} UTC. {trouble}")


def lags(departed: int, progress: pa.Table) -> dict[str, int]:
    """Returns how many of the departed flights each job has not counted yet."""
    counted = dict(zip(progress["job"].to_pylist(), progress["flights"].to_pylist(), strict=True))
    # A job may have counted flights that departed after `departed` was computed.
    return {job: max(0, departed - counted.get(job, 0)) for job in JOBS}


def show(name: str, rows: pd.DataFrame, *numbers: str) -> None:
    """Shows a table. Columns of numbers and their headings are right-aligned."""
    places = [rows.columns.get_loc(number) + 1 for number in numbers]
    cells = ", ".join(f".st-key-{name} {cell}:nth-child({place})" for place in places for cell in ("th", "td"))
    st.html(f"<style>{cells} {{ text-align: right !important; }}</style>")
    with st.container(key=name):
        st.table(rows, hide_index=True)


def busiest_routes(top: TopN) -> pd.DataFrame:
    """Returns the routes by rank, and how they moved with the last change of the ranking."""
    moved = {key: before - now for key, before, now in zip(keys(top.moved), *ranks(top.moved), strict=True)}
    entered = set(keys(top.entered)) if len(top.entered) < len(top.rows) else set()  # at first, all rows are new
    routes = ranked(top)
    routes["moved"] = ["new" if key in entered else movement(moved.get(key, 0)) for key in keys(top.rows)]
    routes["mean delay"] = routes["mean_delay"].map("{:.1f} min".format)
    routes["flights"] = routes["flights"].map("{:,}".format)
    return routes[["rank", "route", "flights", "mean delay", "moved"]]


def movement(ranks: int) -> str:
    """Returns the number of ranks gained as text that a screen reader can read."""
    return "" if ranks == 0 else f"▲ up {ranks}" if ranks > 0 else f"▼ down {-ranks}"


def delayed_routes(top: TopN) -> pd.DataFrame:
    """Returns the minutes of delay at departure, by route."""
    return ranked(top).rename(columns={"mean_delay": "minutes"})[["rank", "route", "minutes"]]


def delayed_flights(top: TopN) -> pd.DataFrame:
    """Returns the flights with the longest delays."""
    flights = ranked(top)
    flights["flight"] = flights["carrier"] + " " + flights["flight"].astype(str)
    flights["delay"] = (flights["dep_delay"] / 60).map("{:.1f} h".format)
    flights["day"] = flights["time_hour"].str.slice(0, 10)
    return flights[["rank", "flight", "route", "day", "delay"]]


def delayed_days(top: TopN) -> pd.DataFrame:
    """Returns the carriers' days with the longest mean delay at arrival."""
    days: pd.DataFrame = top.rows.to_pandas()
    days = days.assign(rank=range(1, len(days) + 1), delay=days["mean_arrival_delay"].map("{:.1f} min".format))
    return days[["rank", "carrier", "day", "arrivals", "delay"]]


def ranked(top: TopN) -> pd.DataFrame:
    """Returns the rows with their ranks and a readable route."""
    rows: pd.DataFrame = top.rows.to_pandas()
    return rows.assign(rank=range(1, len(rows) + 1), route=rows["origin"] + " → " + rows["dest"])


def keys(routes: pa.Table) -> list[tuple[str, str]]:
    """Returns the primary keys of some routes."""
    return list(zip(routes["origin"].to_pylist(), routes["dest"].to_pylist(), strict=True))


def ranks(moved: pa.Table) -> tuple[list[int], list[int]]:
    """Returns the previous and the current ranks."""
    return moved["rank_before"].to_pylist(), moved["rank"].to_pylist()


st.set_page_config(page_title="New York departures 2013", page_icon="✈", layout="wide")
st.title("Departures from New York, 2013")
board()
