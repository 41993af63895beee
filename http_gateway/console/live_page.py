"""The live top-N: a page that one can leave open on a wall, and the events that its script reads."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import pyarrow.types as pat

from http_gateway.answers import NEEDS_TOKEN
from http_gateway.console.console_page import enter, show
from http_gateway.console.live_links import live_link, login_address, path_of
from http_gateway.console.rendering import LIVE_POLICY, cells_of
from http_gateway.console.sessions import has_ended_token
from http_gateway.event_streams import Watched, confirm, stream_events
from http_gateway.parameters import Names, Parameter, Seconds, Truth, WholeNumber, read_parameters
from http_gateway.problems import HttpRefusal, bad_request, problem_of
from scankv.model.errors import ScanKvError, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    import pyarrow as pa
    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client import TopNWatch
    from http_gateway.console.sessions import Session
    from http_gateway.event_streams import Event
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

_log = logging.getLogger(__name__)

LIVE_PARAMETERS: Final = (
    Parameter(name="order_by", meaning="The column that orders the rows.", required=True),
    Parameter(name="where", meaning="A predicate.", default=""),
    WholeNumber(name="limit", meaning="The most rows.", default=10, low=1, high=200),
    Truth(name="descending", meaning="Whether the greatest values come first.", default=True),
    Names(name="columns", meaning="The columns to show, with commas between them."),
    # The page says how old its rows are. An unchanged answer would not confirm rows that are asked for rarely.
    Seconds(name="every", meaning="The least seconds between two answers.", default=1.0, low=0.1, high=10.0),
)
EVENTS_PATH: Final = "/tables/{table}/top/events"


async def show_live(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the first rows of a table. The page contains the script, also if the server does not answer now."""
    name = request.path_params["table"]
    _check_order(values)
    rows, version, problem, status = None, "", "", 200
    try:
        table = await gateway.client.table(name)
        found = await table.top_n_if_changed(None, **_query_of(values))
        assert found is not None
        rows, version = await asyncio.to_thread(top_fields, found.value), found.version.hex()
    except Unauthenticated:
        raise
    except ScanKvError as error:
        problem, status = error.message, problem_of(error)["status"]
    link = live_link(name, LIVE_PARAMETERS, values)
    base = request.state.session.base
    return show(
        request,
        "live.html",
        values,
        status=status,
        loaded_status=status,
        policy=LIVE_POLICY,
        table=name,
        result=rows,
        version=version,
        problem=problem,
        loaded_at=datetime.now(UTC),
        link=link,
        events=f"{base}{link.replace('/top?', '/top/events?', 1)}",
        login=login_address(link),
        heartbeat=gateway.settings.heartbeat_seconds,
    )


async def answer_events(gateway: Gateway, request: Request) -> Response:
    """Answers with the events of one live page.

    Raises:
        HttpRefusal: The session has ended, or a parameter is wrong.
        ScanKvError: The server refuses the query, or does not answer.
    """
    session = enter(gateway, request)
    if session is None:
        raise _session_ended()
    values = read_parameters(LIVE_PARAMETERS, request.query_params.multi_items())
    _check_order(values)
    name = request.path_params["table"]
    with _ends_with_token(gateway, session):
        table = await gateway.client.table(name)
        watch = table.watch_top_n(**_query_of(values), every=values["every"])

    async def check() -> None:
        if session.keys is not None and gateway.sessions.use(session.keys, time.time()) is None:
            raise _session_ended()
        with _ends_with_token(gateway, session):
            await confirm(gateway, name, watch)

    response = await stream_events(gateway, request, Watched(events=_events(gateway, session, watch), check=check))
    request.scope[NEEDS_TOKEN] = True
    return response


def deep_link_of(request: Request) -> str:
    """Returns the address outside sessions of the live page that a request asks for."""
    query = urlencode(request.query_params.multi_items())
    return path_of(request.path_params["table"]) + (f"?{query}" if query else "")


def top_fields(rows: pa.Table) -> dict[str, Any]:
    """Returns rows as the page shows them: names of columns, whether each has numbers, and the cells as text."""
    columns = [{"name": field.name, "number": _is_number(field.type)} for field in rows.schema]
    return {"columns": columns, "rows": cells_of(rows)}


async def _events(gateway: Gateway, session: Session, watch: TopNWatch) -> AsyncGenerator[Event, None]:
    with _ends_with_token(gateway, session):
        async with watch:
            async for top in watch:
                # In a thread: 200 rows with long lists take a second to become text.
                yield top.version.hex(), await asyncio.to_thread(_rows_text, top.rows)


def _rows_text(rows: pa.Table) -> str:
    return json.dumps(top_fields(rows))


@contextmanager
def _ends_with_token(gateway: Gateway, session: Session) -> Iterator[None]:
    """Ends the session if the server refuses its token for good. Raises HttpRefusal then."""
    try:
        yield
    except Unauthenticated as error:
        if session.keys is None:
            raise _session_ended() from error
        if not has_ended_token(session):
            raise
        try:
            gateway.sessions.end(session.keys)
        except OSError as failure:
            # It ends with its next request all the same, because the server refuses the token.
            _log.warning("the file of a session cannot be removed: %s", failure.strerror)
        raise _session_ended() from error


def _session_ended() -> HttpRefusal:
    return HttpRefusal(401, "SESSION_ENDED", "your session has ended: log in again")


def _check_order(values: Values) -> None:
    if not values["order_by"]:
        raise bad_request("order_by is empty: name the column that orders the rows")


def _query_of(values: Values) -> dict[str, Any]:
    """Returns the arguments of the top-N."""
    return {
        "limit": values["limit"],
        "order_by": values["order_by"],
        "where": values["where"].strip() or None,
        "columns": values["columns"],
        "descending": values["descending"],
    }


def _is_number(type_: pa.DataType) -> bool:
    return bool(pat.is_integer(type_) or pat.is_floating(type_) or pat.is_decimal(type_))
