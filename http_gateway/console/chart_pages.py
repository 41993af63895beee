"""The page of charts, and the charts on the page of a table. Each shows only what its reader may read."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from http_gateway.charts import drawing
from http_gateway.charts.figures import charts_of, number_text
from http_gateway.charts.history import SHOWN_SECONDS
from http_gateway.charts.source import OLD_SERVER
from http_gateway.console.console_page import REFRESH, show
from scankv.model.errors import ProtocolViolation, Unavailable

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

CHARTS_REFRESH: Final = replace(REFRESH, default="5")
"""The page has no form, so it refreshes unless its reader stops it."""

_SIZE: Final = {
    "width": drawing.WIDTH,
    "height": drawing.HEIGHT,
    "left": drawing.LEFT,
    "right": drawing.RIGHT,
    "bottom": drawing.BOTTOM,
}

_ANSWER_SECONDS: Final = 5.0
_MOST_BUSY: Final = 20


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


async def show_charts(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the charts of the server if the caller may read every table, and the busiest tables."""
    session: Session = request.state.session
    try:
        readable, reads_all = await _readable_tables(gateway)
    except ProtocolViolation:
        return show(request, "charts.html", values, charts=ShownCharts(problem=OLD_SERVER), busiest=[])
    source = gateway.sampler.open_page(session.base, session.token)
    if reads_all:
        charts = _shown(gateway, source, source.history.of_server(), "the server")
    else:
        charts = ShownCharts(
            note="The charts of the server need a token that may read every table. The page of each table has its own."
        )
    busiest = _busiest(source.history, readable, gateway.sampler.now())
    return show(request, "charts.html", values, charts=charts, busiest=busiest)


def table_charts(gateway: Gateway, request: Request, table: str) -> ShownCharts:
    """Returns the charts of a table, which the caller has just read the definition of. Calls nothing, never fails."""
    session: Session = request.state.session
    source = gateway.sampler.open_page(session.base, session.token)
    return _shown(gateway, source, source.history.of_table(table), table)


async def _readable_tables(gateway: Gateway) -> tuple[set[str], bool]:
    """Returns the tables that the caller may read now, of those shown as used, and whether it may read every table.

    The server says that, because samples may have been taken with other rights.

    Raises:
        ProtocolViolation: The server is older than the gateway, and counts nothing.
        ScanKvError: As `live_scans`.
    """
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = await gateway.client._activity(SHOWN_SECONDS)
    except TimeoutError:
        raise Unavailable(f"the server has not answered within {_ANSWER_SECONDS:g} s: try again") from None
    tables = {each.table for process in answer.processes for each in process.tables}
    return tables, any(process.HasField("server") for process in answer.processes)


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
            waiting = f"Nothing is known of {what}: it was not used since the server started, or may not be sampled."
        return ShownCharts(note=f"Sampling began {age:,.0f} s ago. {waiting}{how}".strip(), problem=source.problem)
    note = f"Sampling began {age:,.0f} s ago.{how}" if age < 900 else how.strip()
    return ShownCharts(charts_of(points, now), note, source.problem)


def _busiest(history: History, readable: Iterable[str], now: float) -> list[dict[str, Any]]:
    """Returns the tables with the most rows written and read, of those that the caller may read."""
    rows = {name: history.rows_of(name) for name in readable}
    names = sorted((name for name in rows if rows[name]), key=lambda name: (-rows[name], name))[:_MOST_BUSY]
    found = []
    for name in names:
        rates = history.rates_of(name, now)
        written, read = ("unknown", "unknown") if rates is None else (number_text(each) for each in rates)
        found.append({"name": name, "written": written, "read": read})
    return found
