"""The pages of the console, and the two forms that change something: logging in and out, and stopping a scan."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import RedirectResponse, Response

from http_gateway.answers import NEEDS_TOKEN
from http_gateway.console.rendering import cells_of, no_icon, page, style
from http_gateway.console.sessions import (
    SESSION_PATH,
    Session,
    begin_session,
    end_session,
    find_session,
    give_cookie,
    has_ended_token,
    read_form,
)
from http_gateway.parameters import Choice, Parameter, WholeNumber, read_parameters
from http_gateway.problems import HttpRefusal, problem_of
from scankv.model.counts import counted
from scankv.model.errors import PermissionDenied, ProtocolViolation, ScanKvError, Unauthenticated, UsageError
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from aio_client import Scan, Table
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

_Answer = TypeVar("_Answer")

# A refresh loads the page again, which clears forms and takes the focus away. So pages refresh only if asked to, and
# have no form while they do.
_REFRESH: Final = Choice(name="refresh", meaning="Seconds between refreshes.", words=("2", "5", "30", ""))
_QUERY: Final = (
    Parameter(name="where", meaning="A predicate.", default=""),
    Parameter(name="order_by", meaning="A column.", default=""),
    WholeNumber(name="limit", meaning="The most rows.", default=10, low=1, high=200),
    Choice(name="run", meaning="What to do.", words=("rows", "count", "explain")),
    _REFRESH,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """One page.

    Attributes:
        path: Its path.
        handler: Makes it.
        parameters: The parameters of its query.
        in_sessions: Whether each session has it, too.
    """

    path: str
    handler: Callable[[Gateway, Request, Values], Awaitable[Response]]
    parameters: tuple[Parameter, ...] = (_REFRESH,)
    in_sessions: bool = True

    @property
    def paths(self) -> tuple[str, ...]:
        """Its paths: the one outside sessions, and the one in a session."""
        return (self.path, f"{SESSION_PATH}{self.path}") if self.in_sessions else (self.path,)


async def _tables(gateway: Gateway, request: Request, values: Values) -> Response:
    tables, damaged = await gateway.client.tables(), await gateway.client.damaged_tables()
    return _page(request, "tables.html", values, tables=tables, damaged=damaged)


async def _table(gateway: Gateway, request: Request, values: Values) -> Response:
    table = await gateway.client.table(request.path_params["table"])
    result, problem = None, ""
    try:
        result = await _run(table, values)
    except ScanKvError as error:
        problem = error.message
    return _page(
        request,
        "table.html",
        values,
        table=table,
        columns=[(field, format_type(field.type)) for field in table.schema],
        comments=table.column_comments,
        buckets=await table.stats(),
        disk=asdict(await table.disk_use()),
        consumers=await table.consumers(),
        result=result,
        problem=problem,
    )


async def _run(table: Table, values: Values) -> dict[str, Any] | None:
    """Returns the result of the query in the form; None if it was not run."""
    where = values["where"].strip() or None
    match values["run"]:
        case "count":
            return {"text": counted(await table.count(where), "row")}
        case "explain":
            return {"text": str(await _scan(table, where, values["limit"]).explain())}
        case "rows":
            if values["order_by"]:
                rows = await table.top_n(values["limit"], values["order_by"], where)
            else:
                rows = await _scan(table, where, values["limit"]).to_arrow()
            return {"names": rows.schema.names, "rows": cells_of(rows)}
    return None


def _scan(table: Table, where: str | None, limit: int) -> Scan:
    scan = table.scan().limit(limit)
    return scan if where is None else scan.where(where)


async def _scans(gateway: Gateway, request: Request, values: Values) -> Response:
    return _page(request, "scans.html", values, scans=await gateway.client.live_scans())


async def _server(gateway: Gateway, request: Request, values: Values) -> Response:
    client = gateway.client
    unknown: list[str] = []
    return _page(
        request,
        "server.html",
        values,
        # The first two need a grant for every table; the lists show what the caller may see.
        stats=await _answer_if_any(client.stats, "statistics", unknown),
        slow=await _answer_if_any(client.slow_calls, "slow calls", unknown),
        snapshots=await _answer_if_any(client.snapshots, "snapshots", unknown),
        transactions=await _answer_if_any(client.transactions, "open transactions", unknown),
        locks=await _answer_if_any(client.column_locks, "column locks", unknown),
        unknown=unknown,
    )


async def _answer_if_any(call: Callable[[], Awaitable[_Answer]], name: str, unknown: list[str]) -> _Answer | None:
    """Returns the answer of a call. None: the caller may not make it, or the server does not know it.

    Args:
        call: Makes the call.
        name: What the answer shows.
        unknown: Gets the name if the server does not know the call, because it is older than the gateway.
    """
    try:
        return await call()
    except PermissionDenied:
        return None
    except ProtocolViolation:
        unknown.append(name)
        return None


async def _login(gateway: Gateway, request: Request, values: Values) -> Response:
    return _login_page(gateway, request)


def _login_page(gateway: Gateway, request: Request, *, status: int = 200, problem: str = "") -> Response:
    settings = gateway.settings
    lasts = {"seconds": settings.session_seconds, "idle": settings.session_idle_seconds}
    return _page(request, "login.html", {}, status=status, problem=problem, **lasts)


PAGES: Final = (
    ConsolePage(path="/", handler=_tables),
    ConsolePage(path="/tables/{table}", handler=_table, parameters=_QUERY),
    ConsolePage(path="/scans", handler=_scans),
    ConsolePage(path="/server", handler=_server),
    ConsolePage(path="/login", handler=_login, parameters=(), in_sessions=False),
)


async def answer_page(gateway: Gateway, found: ConsolePage, request: Request) -> Response:
    """Returns a page, an error page, or the login if the server needs a token and has not got one."""
    session = _enter(gateway, request)
    if session is None:
        return _ask_for_login()
    try:
        values = read_parameters(found.parameters, request.query_params.multi_items())
        response = await found.handler(gateway, request, values)
    except Unauthenticated:
        return _leave(gateway, request, session) if has_ended_token(session) else _ask_for_login()
    except (HttpRefusal, ScanKvError) as error:
        return _error_page(request, error)
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
        return _error_page(request, error)
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
        return _error_page(request, error)
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
        return _error_page(request, error)
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
    return response


def _error_page(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    return _page(request, "error.html", {}, status=problem["status"], problem=problem)


def _page(request: Request, template: str, values: Values, *, status: int = 200, **more: Any) -> Response:  # noqa: ANN401
    session: Session = request.state.session
    response = page(
        template,
        status,
        path=request.url.path,
        base=session.base,
        values=values,
        form_key=session.form_key,
        **more,
    )
    # The paths of a session are secret, so no request may name them as its referrer. Without a session, `no-referrer`
    # would keep browsers from saying that a form comes from this site.
    response.headers["Referrer-Policy"] = "no-referrer" if session.base else "same-origin"
    if seconds := values.get("refresh"):
        response.headers["Refresh"] = seconds
    return response
