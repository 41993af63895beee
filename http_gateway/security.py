"""What holds for every request before it is answered: hosts, origins, methods, sizes, tokens; and headers after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from http_gateway.limits import MAX_TARGET_BYTES
from http_gateway.problems import HttpRefusal
from http_gateway.settings import is_loopback

if TYPE_CHECKING:
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.types import Scope

    from http_gateway.settings import GatewaySettings

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PREFLIGHT_SECONDS: Final = 600


def check_request(settings: GatewaySettings, scope: Scope, headers: Headers) -> None:
    """Refuses requests that no handler should see.

    Raises:
        HttpRefusal: The target is too long, or a page of another site has made the browser ask this machine.
    """
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise HttpRefusal(414, "REQUEST_TOO_LARGE", f"the address has more than {MAX_TARGET_BYTES:,} bytes")
    # On loopback, a server may do without tokens. A web site whose name resolves to 127.0.0.1 would then read it, as
    # the browser takes both for one site (DNS rebinding). Only the name in the request tells them apart.
    host = headers.get("host")
    if host is not None and is_loopback(settings.host) and not is_loopback(_host_of(host)):
        raise HttpRefusal(
            421,
            "WRONG_HOST",
            f"the gateway listens on {settings.host} and answers only requests to localhost or a loopback address",
        )


def token_of(headers: Headers) -> str | None:
    """Returns the bearer token of a request; None if it has none.

    Raises:
        HttpRefusal: The header Authorization has something else.
    """
    value = headers.get("authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise HttpRefusal(401, "UNAUTHENTICATED", "the header Authorization must be: Bearer TOKEN")
    return token.strip()


def preflight_headers(settings: GatewaySettings, headers: Headers, allow: str) -> dict[str, str]:
    """Returns the headers of an answer to OPTIONS."""
    answer = {"Allow": allow}
    if headers.get("origin") in settings.origins:
        answer["Access-Control-Allow-Methods"] = allow
        answer["Access-Control-Allow-Headers"] = "authorization, content-type, last-event-id"
        answer["Access-Control-Max-Age"] = str(_PREFLIGHT_SECONDS)
    return answer


def add_headers(settings: GatewaySettings, request: Headers, answer: MutableHeaders) -> None:
    """Adds the headers that protect browsers. Those that a handler has set stay."""
    for name, value in _HEADERS.items():
        answer.setdefault(name, value)
    if settings.origins:
        answer.add_vary_header("Origin")
        origin = request.get("origin")
        if origin in settings.origins:
            answer["Access-Control-Allow-Origin"] = origin
            answer["Cross-Origin-Resource-Policy"] = "cross-origin"


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
