"""All pages of the console, and the forms that change something: logging in and out, and stopping a scan."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response

from http_gateway.answers import NEEDS_TOKEN
from http_gateway.console.chart_pages import show_charts
from http_gateway.console.console_page import ConsolePage, enter, show, show_error
from http_gateway.console.live_links import is_deep_link, login_address
from http_gateway.console.live_page import LIVE_PARAMETERS, deep_link_of, show_live
from http_gateway.console.rendering import no_icon, static_file
from http_gateway.console.server_pages import show_scans, show_server
from http_gateway.console.sessions import (
    Session,
    begin_session,
    end_session,
    give_cookie,
    has_ended_token,
    read_form,
)
from http_gateway.console.table_pages import TABLE_PARAMETERS, show_table
from http_gateway.console.tables_page import TABLES_PARAMETERS, show_tables
from http_gateway.parameters import Parameter, read_parameters
from http_gateway.problems import HttpRefusal, problem_of
from scankv.model.errors import ScanKvError, Unauthenticated, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values


async def _login(gateway: Gateway, request: Request, values: Values) -> Response:
    return _login_page(gateway, request, values["next"])


def _login_page(gateway: Gateway, request: Request, next_: str, *, status: int = 200, problem: str = "") -> Response:
    # Anyone can make a link to the login, so only addresses of our own are followed.
    target = next_ if is_deep_link(next_) else ""
    return show(
        request,
        "login.html",
        {},
        status=status,
        problem=problem,
        next=target,
        seconds=gateway.settings.session_seconds,
        idle=gateway.settings.session_idle_seconds,
    )


_NEXT: Final = Parameter(name="next", meaning="The page to show after the login.", default="")

PAGES: Final = (
    ConsolePage(path="/", handler=show_tables, parameters=TABLES_PARAMETERS),
    ConsolePage(path="/tables/{table}", handler=show_table, parameters=TABLE_PARAMETERS),
    ConsolePage(path="/tables/{table}/top", handler=show_live, parameters=LIVE_PARAMETERS, deep_link=deep_link_of),
    ConsolePage(path="/scans", handler=show_scans),
    ConsolePage(path="/server", handler=show_server),
    ConsolePage(path="/charts", handler=show_charts),
    ConsolePage(path="/login", handler=_login, parameters=(_NEXT,), in_sessions=False),
)


async def answer_page(gateway: Gateway, found: ConsolePage, request: Request) -> Response:
    """Returns a page, an error page, or the login if the server needs a token and has not got one."""
    link = "" if found.deep_link is None else found.deep_link(request)
    session = enter(gateway, request)
    if session is None:
        return _ask_for_login(link)
    values: Values = {}
    try:
        values = read_parameters(found.parameters, request.query_params.multi_items())
        response = await found.handler(gateway, request, values)
    except Unauthenticated:
        return _leave(gateway, request, session, link) if has_ended_token(session) else _ask_for_login(link)
    except (HttpRefusal, ScanKvError) as error:
        return show_error(request, error, values)
    request.scope[NEEDS_TOKEN] = found.handler is not _login
    return response


async def answer_file(name: str, _request: Request) -> Response:
    """Answers with a file that pages load."""
    return static_file(name)


async def answer_icon(_gateway: Gateway, _request: Request) -> Response:
    """Answers that there is no icon."""
    return no_icon()


async def answer_login(gateway: Gateway, request: Request) -> Response:
    """Logs in: checks the token of the form with the server, and begins a session with it."""
    request.state.session = Session()
    try:
        fields = await read_form(request, request.state.session)
    except HttpRefusal as error:
        return show_error(request, error)
    token, link = fields.get("token", "").strip(), fields.get("next", "")
    target = link if is_deep_link(link) else "/"
    try:
        gateway.tokens.set(token or None)
        until = await gateway.client._caller_expires_at()
        if await _is_open(gateway):
            return RedirectResponse(target, 303)
        session = await asyncio.to_thread(begin_session, gateway.sessions, token, until)
    except (ScanKvError, HttpRefusal) as error:
        if isinstance(error, Unauthenticated | UsageError):
            return _login_page(gateway, request, link, status=401, problem="The server does not accept this token.")
        return _login_page(gateway, request, link, status=problem_of(error)["status"], problem=error.message)
    response = RedirectResponse(f"{session.base}{target}", 303)
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
    session = enter(gateway, request)
    if session is None:
        return _ask_for_login()
    try:
        await read_form(request, session)
    except HttpRefusal as error:
        return show_error(request, error)
    return _leave(gateway, request, session)


async def answer_stop(gateway: Gateway, request: Request) -> Response:
    """Stops a scan, if the server lets the caller."""
    session = enter(gateway, request)
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


def _ask_for_login(link: str = "") -> Response:
    return RedirectResponse(login_address(link), 303)


def _leave(gateway: Gateway, request: Request, session: Session, link: str = "") -> Response:
    """Ends a session whose user logs out, or whose token is no longer accepted."""
    response = _ask_for_login(link)
    end_session(gateway.sessions, request, response, session)
    gateway.sampler.forget(session.base)
    return response
