"""Which session does a request belong to? And: was a form sent from a page of this console?

Browsers send a cookie to every port of a host, if the path matches. So the cookie has a random path, for which browsers
ask no other port, and the pages of a session are below it. The path alone gives no access, because it appears in the
history of the browser.
"""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from http_gateway.console.session_files import SessionKeys, web_claims
from http_gateway.problems import HttpRefusal

if TYPE_CHECKING:
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import Response

    from http_gateway.console.session_files import SessionFiles

SESSION_PATH: Final = "/console/{session}"
"""What the paths of all pages of a session begin with."""

_COOKIE: Final = "scankv_session"
# Browsers take a cookie with this prefix only over HTTPS. `__Host-` would need the path "/".
_ENCRYPTED_ONLY: Final = "__Secure-"
_FORM_KEY: Final = secrets.token_hex(32)  # of this process, for forms without a session
_MAX_FIELDS: Final = 20
_MAX_COOKIES: Final = 10
# Those of earlier versions had the token itself, and the path "/", so browsers send them to every port of the host.
_FORMER_COOKIES: Final = {
    "scankv_token": "HttpOnly; Max-Age=0; Path=/; SameSite=strict",
    "__Host-scankv_token": "HttpOnly; Max-Age=0; Path=/; SameSite=strict; Secure",
}


@dataclass(frozen=True, slots=True)
class Session:
    """For whom a request is answered.

    Attributes:
        keys: The keys of the session. None: the request has no session.
        token: The token of the session.
    """

    keys: SessionKeys | None = None
    token: str | None = None

    @property
    def base(self) -> str:
        """What the paths of its pages begin with."""
        return "" if self.keys is None else SESSION_PATH.format(session=self.keys.path)

    @property
    def form_key(self) -> str:
        """What its forms contain so that no other site can send them."""
        return _FORM_KEY if self.keys is None else self.keys.derive("form").hex()


def find_session(files: SessionFiles, request: Request) -> Session | None:
    """Returns the session that the path and the cookie of a request name, and records its use.

    For a path outside sessions, returns a session without a token. None: the session has ended, or a page of another
    site or port has made the browser send the request.
    """
    path = request.path_params.get("session")
    if path is None:
        return Session()
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return None
    # Another port of the host may have added cookies of the same name.
    for secret in _cookies(request)[:_MAX_COOKIES]:
        keys = SessionKeys(path, secret)
        token = files.use(keys, time.time())
        if token is not None:
            return Session(keys, token)
    return None


def begin_session(files: SessionFiles, token: str, until: float | None) -> Session:
    """Makes a session that ends with its token. Raises HttpRefusal if it cannot be stored."""
    try:
        return Session(files.begin(token, time.time(), until), token)
    except OSError as error:
        raise HttpRefusal(
            503, "SESSION_NOT_STORED", f"the session cannot be stored ({error.strerror}): see to the gateway's disk"
        ) from error


def give_cookie(request: Request, response: Response, session: Session) -> None:
    """Has the browser keep the cookie of a session until the browser is closed."""
    assert session.keys is not None
    name, secure, path = _cookie_name(request), _is_encrypted(request), f"{session.base}/"
    response.set_cookie(name, session.keys.secret, httponly=True, samesite="strict", secure=secure, path=path)


def end_session(files: SessionFiles, request: Request, response: Response, session: Session) -> None:
    """Ends a session, and has the browser forget its cookie."""
    if session.keys is None:
        return
    files.end(session.keys)
    name, secure, path = _cookie_name(request), _is_encrypted(request), f"{session.base}/"
    response.delete_cookie(name, httponly=True, samesite="strict", secure=secure, path=path)


def has_ended_token(session: Session) -> bool:
    """Returns whether a token that the server refuses stays refused.

    A web token that has not expired may be accepted again: a server that has just started lacks its issuer's keys.
    """
    claims = web_claims(session.token or "")
    expiry = None if claims is None else claims.get("exp")
    return not isinstance(expiry, int | float) or expiry <= time.time()


def expire_former_cookies(request: Headers, answer: MutableHeaders) -> None:
    """Has the browser forget the cookies of earlier versions, if it has sent one."""
    names = {each.partition("=")[0].strip() for header in request.getlist("cookie") for each in header.split(";")}
    for name, attributes in _FORMER_COOKIES.items():
        if name in names:
            answer.append("Set-Cookie", f'{name}=""; {attributes}')


async def read_form(request: Request, session: Session) -> dict[str, str]:
    """Returns the fields of a form that was sent from a page of this console.

    Raises:
        HttpRefusal: Another site has made the browser send it, it is not a form, or its page is from an earlier
            session.
    """
    origin = request.headers.get("origin", "")
    # From the pages of a session, browsers do not say where a form comes from. Only these pages have its key.
    is_silent = origin == "null" and session.keys is not None
    if not is_silent and (urlsplit(origin).netloc != request.headers.get("host", "") or not origin):
        raise HttpRefusal(403, "FOREIGN_FORM", "the form was not sent from a page of this console: open it again")
    body = await request.body()
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise HttpRefusal(400, "INVALID_REQUEST", "the body is not a form") from None
    if not hmac.compare_digest(fields.get("form_key", "").encode(), session.form_key.encode()):
        raise HttpRefusal(403, "OLD_FORM", "the form is from an earlier session: open its page again")
    return fields


def _cookies(request: Request) -> list[str]:
    """Returns the values of all cookies that may belong to a session."""
    pairs = (each.strip().partition("=") for each in request.headers.get("cookie", "").split(";"))
    name = _cookie_name(request)
    return [value for found, _, value in pairs if found == name and value]


def _cookie_name(request: Request) -> str:
    return f"{_ENCRYPTED_ONLY}{_COOKIE}" if _is_encrypted(request) else _COOKIE


def _is_encrypted(request: Request) -> bool:
    return request.url.scheme == "https"
