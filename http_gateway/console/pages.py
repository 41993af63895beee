"""All pages of the console, and the forms that change something: logging in and out, and stopping a scan."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response

from http_gateway.answers import NEEDS_TOKEN
from http_gateway.console.chart_pages import CHARTS_REFRESH, show_charts
from http_gateway.console.console_page import ConsolePage, show, show_error
from http_gateway.console.rendering import no_icon, style
from http_gateway.console.server_pages import show_scans, show_server
from http_gateway.console.sessions import (
    Session,
    begin_session,
    end_session,
    find_session,
    give_cookie,
    has_ended_token,
    read_form,
)
from http_gateway.console.table_pages import TABLE_PARAMETERS, show_table, show_tables
from http_gateway.parameters import read_parameters
from http_gateway.problems import HttpRefusal, problem_of
from scankv.model.errors import ScanKvError, Unauthenticated, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values


async def _login(gateway: Gateway, request: Request, values: Values) -> Response:
    return _login_page(gateway, request)


def _login_page(gateway: Gateway, request: Request, *, status: int = 200, problem: str = "") -> Response:
    settings = gateway.settings
    lasts = {"seconds": settings.session_seconds, "idle": settings.session_idle_seconds}
    return show(request, "login.html", {}, status=status, problem=problem, **lasts)


PAGES: Final = (
    ConsolePage(path="/", handler=show_tables),
    ConsolePage(path="/tables/{table}", handler=show_table, parameters=TABLE_PARAMETERS),
    ConsolePage(path="/scans", handler=show_scans),
    ConsolePage(path="/server", handler=show_server),
    ConsolePage(path="/charts", handler=show_charts, parameters=(CHARTS_REFRESH,)),
    ConsolePage(path="/login", handler=_login, parameters=(), in_sessions=False),
)


async def answer_page(gateway: Gateway, found: ConsolePage, request: Request) -> Response:
    """Returns a page, an error page, or the login if the server needs a token and has not got one."""
    session = _enter(gateway, request)
    if session is None:
        return _ask_for_login()
    values: Values = {}
    try:
        values = read_parameters(found.parameters, request.query_params.multi_items())
        response = await found.handler(gateway, request, values)
    except Unauthenticated:
        return _leave(gateway, request, session) if has_ended_token(session) else _ask_for_login()
    except (HttpRefusal, ScanKvError) as error:
        return show_error(request, error, values)
    request.scope[NEEDS_TOKEN] = found.handler is not _login
    return response


async def answer_style(_gateway: Gateway, _request: Request) -> Response:
    """Answers with the style of all pages."""
    return style()


async def answer_icon(_gateway: Gateway, _request: Request) -> Response:
    """Answers that there is no icon."""
    return no_icon()


async def answer_login(gateway: Gateway, request: Request) -> Response:
    """Logs in: checks the token of the form with the server, and begins a session with it."""
    request.state.session = Session()
    try:
        token = (await read_form(request, request.state.session)).get("token", "").strip()
    except HttpRefusal as error:
        return show_error(request, error)
    try:
        gateway.tokens.set(token or None)
        until = await gateway.client._caller_expires_at()
        if await _is_open(gateway):
            return RedirectResponse("/", 303)
        session = await asyncio.to_thread(begin_session, gateway.sessions, token, until)
    except (ScanKvError, HttpRefusal) as error:
        if isinstance(error, Unauthenticated | UsageError):
            return _login_page(gateway, request, status=401, problem="The server does not accept this token.")
        return _login_page(gateway, request, status=problem_of(error)["status"], problem=error.message)
    response = RedirectResponse(f"{session.base}/", 303)
    give_cookie(request, response, session)
    return response


async def _is_open(gateway: Gateway) -> bool:
    """Returns whether the server answers without a token. It would accept any text for one, and needs no session."""
    gateway.tokens.set(None)
    try:
        await gateway.client.tables()
    except Unauthenticated:
        return False
    return True


async def answer_logout(gateway: Gateway, request: Request) -> Response:
    """Logs out."""
    session = _enter(gateway, request)
    if session is None:
        return _ask_for_login()
    try:
        await read_form(request, session)
    except HttpRefusal as error:
        return show_error(request, error)
    return _leave(gateway, request, session)


async def answer_stop(gateway: Gateway, request: Request) -> Response:
    """Stops a scan, if the server lets the caller."""
    session = _enter(gateway, request)
    if session is None:
        return _ask_for_login()
    try:
        fields = await read_form(request, session)
        await gateway.client.cancel_scan(fields.get("scan_id", ""))
    except Unauthenticated:
        return _leave(gateway, request, session) if has_ended_token(session) else _ask_for_login()
    except (HttpRefusal, ScanKvError) as error:
        return show_error(request, error)
    return RedirectResponse(f"{session.base}/scans", 303)


def _enter(gateway: Gateway, request: Request) -> Session | None:
    """Returns the session of a request, and has the calls send its token. None: the session has ended."""
    session = find_session(gateway.sessions, request)
    if session is not None:
        request.state.session = session
        gateway.tokens.set(session.token or None)
    return session


def _ask_for_login() -> Response:
    return RedirectResponse("/login", 303)


def _leave(gateway: Gateway, request: Request, session: Session) -> Response:
    """Ends a session whose user logs out, or whose token is no longer accepted."""
    response = _ask_for_login()
    end_session(gateway.sessions, request, response, session)
    gateway.sampler.forget(session.base)
    return response
