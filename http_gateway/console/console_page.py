"""What a page of the console is, and how each is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from http_gateway.console.rendering import POLICY, page
from http_gateway.console.sessions import SESSION_PATH, find_session
from http_gateway.parameters import Choice
from http_gateway.problems import problem_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from http_gateway.console.sessions import Session
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Parameter, Values

# A refresh loads the page again, which clears forms and takes the focus away. So pages refresh only if asked to, and
# have no form while they do.
REFRESH: Final = Choice(name="refresh", meaning="Seconds between refreshes.", words=("2", "5", "30", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """One page.

    Attributes:
        path: Its path.
        handler: Makes it.
        parameters: The parameters of its query.
        in_sessions: Whether each session has it, too.
        deep_link: Returns the address of the page outside sessions, to which a login leads back. None: logins do not.
    """

    path: str
    handler: Callable[[Gateway, Request, Values], Awaitable[Response]]
    parameters: tuple[Parameter, ...] = (REFRESH,)
    in_sessions: bool = True
    deep_link: Callable[[Request], str] | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Its paths: the one outside sessions, and the one in a session."""
        return (self.path, f"{SESSION_PATH}{self.path}") if self.in_sessions else (self.path,)


def enter(gateway: Gateway, request: Request) -> Session | None:
    """Returns the session of a request, and has the calls send its token. None: the session has ended."""
    session = find_session(gateway.sessions, request)
    if session is not None:
        request.state.session = session
        gateway.tokens.set(session.token or None)
    return session


def show_error(request: Request, error: Exception, values: Values | None = None) -> Response:
    """Returns the page that says what is wrong. It refreshes as the page does whose values are given."""
    problem = problem_of(error)
    return show(request, "error.html", values or {}, status=problem["status"], problem=problem)


def show(
    request: Request,
    template: str,
    values: Values,
    *,
    status: int = 200,
    policy: str = POLICY,
    **more: Any,  # noqa: ANN401
) -> Response:
    """Returns a page from a template.

    Args:
        request: Asks for it.
        template: The name of the template.
        values: The values of the parameters of its query.
        status: The status of the answer.
        policy: What the browser may load and run.
        more: What the template needs besides.
    """
    session: Session = request.state.session
    kept = [(name, text) for name, text in request.query_params.multi_items() if name != REFRESH.name]
    response = page(
        template,
        status,
        policy,
        path=request.url.path,
        base=session.base,
        values=values,
        refreshing=f"{request.url.path}?{urlencode([*kept, (REFRESH.name, '5')])}",
        resting=f"{request.url.path}?{urlencode(kept)}".rstrip("?"),
        form_key=session.form_key,
        **more,
    )
    # The paths of a session are secret, so no request may name them as its referrer. Without a session, `no-referrer`
    # would keep browsers from saying that a form comes from this site.
    response.headers["Referrer-Policy"] = "no-referrer" if session.base else "same-origin"
    if seconds := values.get("refresh"):
        response.headers["Refresh"] = seconds
    return response
