"""The page of charts, and the charts on the page of a table. Each shows only what its reader may read."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from http_gateway.charts import drawing
from http_gateway.charts.figures import charts_of, number_text
from http_gateway.charts.source import OLD_SERVER
from http_gateway.console.console_page import show
from scankv.model.errors import ProtocolViolation, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from http_gateway.charts.counted import Point
    from http_gateway.charts.drawing import Chart
    from http_gateway.charts.history import History
    from http_gateway.charts.source import Source
    from http_gateway.console.sessions import Session
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

_SIZE: Final = {
    "width": drawing.WIDTH,
    "height": drawing.HEIGHT,
    "left": drawing.LEFT,
    "right": drawing.RIGHT,
    "bottom": drawing.BOTTOM,
}

_ANSWER_SECONDS: Final = 5.0
_NO_TABLE: Final = (".",)  # the name of no table
_MOST_BUSY: Final = 20
_LEAST_ROWS: Final = 1e-3  # sums of single precision are not exact


@dataclass(frozen=True, slots=True)
class ShownCharts:
    """What the template of charts shows.

    Attributes:
        charts: The charts.
        note: What there is to know about them, or why there are none.
        problem: Why the newest sample is missing. Empty: it is there.
    """

    charts: Sequence[Chart] = ()
    note: str = ""
    problem: str = ""

    @property
    def size(self) -> Mapping[str, int]:
        """The places that the template needs, in units of the charts."""
        return _SIZE


_TOO_MANY: Final = ShownCharts(
    note="Too many other readers have charts open: try again in two minutes. With --charts-token-file, the gateway "
    "samples once for all readers."
)


async def show_charts(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the charts of the server if the caller may read every table, and the busiest tables."""
    session: Session = request.state.session
    history = gateway.sampler.history_for(session.base)
    try:
        readable, reads_all = await _readable_tables(gateway, [] if history is None else history.names)
    except ProtocolViolation:
        return show(request, "charts.html", values, charts=ShownCharts(problem=OLD_SERVER), busiest=[])
    source = _source(gateway, request)
    if source is None:
        return show(request, "charts.html", values, charts=_TOO_MANY, busiest=[])
    if reads_all:
        charts = _shown(gateway, source, source.history.of_server(), "the server")
    else:
        charts = ShownCharts(
            note="The charts of the server need a token that may read every table. The page of each table has its own."
        )
    busiest = _busiest(source.history, readable, gateway.sampler.now())
    return show(request, "charts.html", values, charts=charts, busiest=busiest)


def table_charts(gateway: Gateway, request: Request, table: str) -> ShownCharts:
    """Returns the charts of a table, which the caller has just read the definition of. Calls nothing.

    Raises:
        Unauthenticated: The session has ended in the meantime.
    """
    source = _source(gateway, request)
    if source is None:
        return _TOO_MANY
    source.history.keep(table)
    return _shown(gateway, source, source.history.of_table(table), table)


def _source(gateway: Gateway, request: Request) -> Source | None:
    """Returns what is sampled for a page. None: too many readers have charts open.

    Raises:
        Unauthenticated: The session has ended while the page was made, so its token must not be used any more.
    """
    session: Session = request.state.session

    def is_live() -> bool:
        return session.keys is None or gateway.sessions.is_live(session.keys, time.time())

    if not is_live():
        raise Unauthenticated("the session has ended: log in again")
    return gateway.sampler.open_page(session.base, session.token, is_live)


async def _readable_tables(gateway: Gateway, names: Sequence[str]) -> tuple[list[str], bool]:
    """Returns which tables exist and may be read by the caller now, and whether it may read every table.

    The server says that, because samples may have been taken with other rights.

    Raises:
        ProtocolViolation: The server is older than the gateway, and counts nothing.
        ScanKvError: As `live_scans`.
    """
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = await gateway.client._activity(names=names or _NO_TABLE)
    except TimeoutError:
        raise Unavailable(f"the server has not answered within {_ANSWER_SECONDS:g} s: try again") from None
    # A table that a process leaves out does not exist any more, or may not be read.
    readable = set(names).intersection(*({each.table for each in process.tables} for process in answer.processes))
    reads_all = any(process.HasField("server") for process in answer.processes)
    return [name for name in names if name in readable], reads_all


def _shown(gateway: Gateway, source: Source, points: Sequence[tuple[float, Point]], what: str) -> ShownCharts:
    """Returns the charts of points, and what there is to know about them."""
    now = gateway.sampler.now()
    age = now - source.began_at
    how = (
        ""
        if gateway.sampler.samples_always
        else " The gateway samples only while a page with charts is open, because it has no token of its own."
    )
    if all(math.isnan(point.rows_written) for _, point in points):
        waiting = "The first values come after two samples: reload the page in 10 s." if age < 15 else ""
        if not waiting and not source.problem:
            why = "it was not used since the server started, or may not be sampled"
            if source.history.is_full:
                why = "too many tables are used, and this one gets its charts in 10 s: reload the page"
            waiting = f"Nothing is known of {what}: {why}."
        return ShownCharts(note=f"Sampling began {age:,.0f} s ago. {waiting}{how}".strip(), problem=source.problem)
    note = f"Sampling began {age:,.0f} s ago.{how}" if age < 900 else how.strip()
    return ShownCharts(charts_of(points, now), note, source.problem)


def _busiest(history: History, readable: Iterable[str], now: float) -> list[dict[str, Any]]:
    """Returns the tables with the most rows written and read, of those that the caller may read."""
    found = []
    for name in islice((name for name in readable if history.rows_of(name) > _LEAST_ROWS), _MOST_BUSY):
        rates = history.rates_of(name, now)
        written, read = ("unknown", "unknown") if rates is None else (number_text(each) for each in rates)
        found.append({"name": name, "written": written, "read": read})
    return found
