"""Who uses the console: the token is in a cookie that scripts and other sites cannot use."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from http_gateway.problems import HttpRefusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_COOKIE: Final = "scankv_token"
# Browsers take a cookie with this prefix only over HTTPS and from the host itself, not from another one of its domain.
_HOST_ONLY: Final = "__Host-"
_SECRET: Final = secrets.token_bytes(32)  # of this process: its forms are worth nothing to another one
_MAX_BODY_BYTES: Final = 32 * 1024
_MAX_FIELDS: Final = 20


def token_of_browser(request: Request) -> str | None:
    """Returns the token of the cookie; None without a cookie."""
    return request.cookies.get(_cookie_name(request)) or None


def log_in(request: Request, response: Response, token: str) -> None:
    """Has the browser keep a token until it is closed."""
    name, secure = _cookie_name(request), _is_encrypted(request)
    response.set_cookie(name, token, httponly=True, samesite="strict", secure=secure, path="/")


def log_out(request: Request, response: Response) -> None:
    """Has the browser forget the token."""
    name, secure = _cookie_name(request), _is_encrypted(request)
    response.delete_cookie(name, httponly=True, samesite="strict", secure=secure, path="/")


def _cookie_name(request: Request) -> str:
    return f"{_HOST_ONLY}{_COOKIE}" if _is_encrypted(request) else _COOKIE


def _is_encrypted(request: Request) -> bool:
    return request.url.scheme == "https"


def form_key(token: str | None) -> str:
    """Returns what the forms of a session contain, and no other site can know."""
    return hmac.new(_SECRET, (token or "").encode(), hashlib.sha256).hexdigest()


async def read_form(request: Request) -> dict[str, str]:
    """Returns the fields of a form that was sent from a page of this console.

    Raises:
        HttpRefusal: Another site has had the browser send it, it is too large, or its page is from an earlier session.
    """
    origin = request.headers.get("origin", "")
    if urlsplit(origin).netloc != request.headers.get("host", "") or not origin:
        raise HttpRefusal(403, "FOREIGN_FORM", "the form was not sent from a page of this console: open it again")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise HttpRefusal(413, "REQUEST_TOO_LARGE", f"a form has at most {_MAX_BODY_BYTES:,} bytes")
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise HttpRefusal(400, "INVALID_REQUEST", "the body is not a form") from None
    if not hmac.compare_digest(fields.get("form_key", ""), form_key(token_of_browser(request))):
        raise HttpRefusal(403, "OLD_FORM", "the form is from an earlier session: open its page again")
    return fields
