"""What a reader must find: the changelog of the flights, replayed up to the instant of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.spark_delays.departures import FLIGHTS
from scankv import LogOffsets, StartFrom, StopAt
from scankv.demo.flights import KEY

if TYPE_CHECKING:
    from examples.lakehouse.readers import ReaderAnswer, Route
    from scankv.sync import Client


def check(client: Client, answer: ReaderAnswer) -> None:
    """Raises AssertionError if an answer is not that of the table at the instant of the answer."""
    expected = routes_at(client, answer.log_offsets)
    if list(answer.routes) != expected:
        wrong = sorted(set(answer.routes) ^ set(expected))
        raise AssertionError(f"{answer.reader} differs from the table as of {answer.instant}: {wrong[:4]}")


def routes_at(client: Client, log_offsets: LogOffsets) -> list[Route]:
    """Returns the routes at a position in the changelog, from the last change of each flight before it."""
    stop = StopAt.offsets(log_offsets)
    changes = (
        client.table(FLIGHTS)
        .changes(StartFrom.EARLIEST, stop, columns=[*KEY, "dest", "dep_delay"])
        .to_pandas(dtype_backend="numpy")
    )
    last = changes.drop_duplicates(list(KEY), keep="last")
    flights = last[last["_change_type"] != "-D"]
    routes = flights.groupby(["origin", "dest"])["dep_delay"].agg(["size", "sum", "max"])
    return list(routes.reset_index().itertuples(index=False, name=None))
