"""The ASGI application: routes, tokens, and errors as problems."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from http_gateway.access_log import REQUEST_ID
from http_gateway.answers import ABORT, KNOWN, NEEDS_TOKEN
from http_gateway.console import live_page, pages
from http_gateway.console.rendering import FILES
from http_gateway.console.sessions import SESSION_PATH, expire_former_cookies
from http_gateway.operation import Call
from http_gateway.operations import OPERATIONS
from http_gateway.parameters import read_parameters
from http_gateway.problems import HttpRefusal, problem_response
from http_gateway.security import add_headers, check_request, preflight_headers, token_of
from scankv.model.errors import ScanKvError, UsageError
from scankv.model.forwarded_peers import forwarded_peer, peer_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from http_gateway.gateway import Gateway
    from http_gateway.operation import Operation

_log = logging.getLogger(__name__)


class Application:
    """Answers requests with calls of the gateway's client. An ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._routes = [
            *(Route(each.path, _endpoint(gateway, each), methods=[each.method], name=each.name) for each in OPERATIONS),
            *(
                Route(path, partial(pages.answer_page, gateway, each), methods=["GET"])
                for each in pages.PAGES
                for path in each.paths
            ),
            *(Route(f"/{name}", partial(pages.answer_file, name), methods=["GET"]) for name in FILES),
            *(
                Route(path, partial(live_page.answer_events, gateway), methods=["GET"])
                for path in (live_page.EVENTS_PATH, f"{SESSION_PATH}{live_page.EVENTS_PATH}")
            ),
            Route("/favicon.ico", partial(pages.answer_icon, gateway), methods=["GET"]),
            Route("/login", partial(pages.answer_login, gateway), methods=["POST"]),
            Route(f"{SESSION_PATH}/logout", partial(pages.answer_logout, gateway), methods=["POST"]),
            Route("/scans/stop", partial(pages.answer_stop, gateway), methods=["POST"]),
            Route(f"{SESSION_PATH}/scans/stop", partial(pages.answer_stop, gateway), methods=["POST"]),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway takes no {scope['type']}")
        headers = Headers(scope=scope)
        self._name_client(scope)
        started = False

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if message["status"] < 400 and scope.get(NEEDS_TOKEN):
                    scope[KNOWN]()
                answer_headers = MutableHeaders(scope=message)
                add_headers(self._gateway.settings, headers, answer_headers)
                expire_former_cookies(headers, answer_headers)
            await send(message)

        try:
            check_request(self._gateway.settings, scope, headers)
            answer = await self._answer(scope, receive, headers)
            await answer(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            # Its client has left, or the gateway ends and the time that running answers get is over.
            scope[ABORT]()
            await asyncio.sleep(0)
        except ClientDisconnect:
            pass
        except Exception as error:
            if started:
                raise
            if not isinstance(error, HttpRefusal | ScanKvError):
                _log.exception("a request has failed")
            await problem_response(error)(scope, receive, send_with_headers)

    def _name_client(self, scope: Scope) -> None:
        """Has the calls of this request send its id, and its client, which the server believes with the key."""
        headers = [("x-request-id", scope[REQUEST_ID])]
        # Always, because no call without a token may get the rights that the gateway's own certificate may have.
        peer = peer_text(*scope["client"]) if scope["client"] else "unknown"
        headers.append(forwarded_peer(self._gateway.settings.forwarding_key, peer))
        self._gateway.tokens.set_headers(*headers)

    async def _answer(self, scope: Scope, receive: Receive, headers: Headers) -> ASGIApp:
        # Of two routes with one path, the second one may have the method.
        matches = [(route, *route.matches(scope)) for route in self._routes]
        matches.sort(key=lambda each: -each[1].value)
        for route, match, child in matches[:1]:
            if match is Match.NONE:
                continue
            allow = ", ".join(sorted({*(route.methods or ()), "OPTIONS"}))
            if scope["method"] == "OPTIONS":
                return Response(status_code=204, headers=preflight_headers(self._gateway.settings, headers, allow))
            if match is Match.PARTIAL:
                message = f"{scope['method']:.20} is not allowed here: use {allow}"
                raise HttpRefusal(405, "METHOD_NOT_ALLOWED", message, {"Allow": allow})
            scope.update(child)
            answer: ASGIApp = await scope["endpoint"](Request(scope, receive))
            return answer
        raise HttpRefusal(404, "NO_SUCH_PATH", "there is nothing at this path: /openapi.json describes all paths")


def _endpoint(gateway: Gateway, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        values = read_parameters(operation.parameters, request.query_params.multi_items())
        set_token(gateway, token_of(request.headers))
        call = Call(table=request.path_params.get("table", ""), values=values, request=request)
        response = await operation.handler(gateway, call)
        request.scope[NEEDS_TOKEN] = not operation.is_open
        return response

    return answer


def set_token(gateway: Gateway, token: str | None) -> None:
    """Has the calls of this request send a token. Raises HttpRefusal if it cannot be one."""
    try:
        gateway.tokens.set(token)
    except UsageError as error:
        raise HttpRefusal(401, "UNAUTHENTICATED", error.message) from None
