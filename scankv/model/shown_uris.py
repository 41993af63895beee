"""How do errors show the address of a server or of files? Without what may be a password or a token."""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "***"
# A host, perhaps with a port. If a URI begins with it, an @ further on does not end a user.
_HOST: Final = re.compile(r"[^:@]*(:[0-9]*)?|\[[0-9A-Fa-f:.%]*\](:[0-9]*)?")
# A text's URI, without the signs that may close it.
_URI: Final = re.compile(r"(?<=://)\S*[^\s'\")\]>.,:;]")
# What is certainly no secret of a server's address, perhaps after one and before another. A token is no host.
_SERVER: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)?(?P<user>[^?#]*@)?"
    r"(?P<address>(?:\[[0-9A-Fa-f:.%]+\]|(?!skv_)[A-Za-z0-9._-]{1,63})(?::[0-9]{1,5})?)(?P<rest>/|[/?#][^@]*)?",
    re.DOTALL,
)


def show_uri(uri: str) -> str:
    """Returns a URI, or `host:port`, without the user and password before its host and the values of its query."""
    scheme, separator, rest = _split(uri)
    if user := _user_of(rest):
        rest = _HIDDEN + rest[len(user) :]
    shown, mark, _ = rest.partition("?")
    return scheme + separator + shown + (mark and mark + _HIDDEN)


def show_server(url: str) -> str:
    """Returns nothing of the address of a server but its scheme, host and port: the rest may be a secret."""
    match = _SERVER.fullmatch(url)
    if match is None:
        return _HIDDEN
    scheme, user, address, rest = (match[name] or "" for name in ("scheme", "user", "address", "rest"))
    return scheme + (user and f"{_HIDDEN}@") + address + (rest if rest in ("", "/") else rest[0] + _HIDDEN)


def show_location(location: str) -> str:
    """Returns a directory as it is, and a URI as `show_uri` does."""
    return show_uri(location) if "://" in location else location


def has_user(uri: str) -> bool:
    """Returns whether a URI has a user or a password."""
    return bool(_user_of(_split(uri)[2]))


def show_reason(error: Exception, uri: str) -> str:
    """Returns what a library's error says about a URI. Only its class, if the text has what `show_uri` hides."""
    text = str(error)
    rest = _split(uri)[2]
    user = _user_of(rest)
    query = rest[len(user) :].partition("?")[2]
    parts = [*re.split(r"[:/?#@]", user), *(pair.partition("=")[2] for pair in query.split("&"))]
    # A library may have decoded what is encoded here.
    is_secret = "%" in user + query or any(part and part in text for part in parts)
    return type(error).__name__ if is_secret else text


def hide_secrets(text: str) -> str:
    """Returns a text without the users and passwords of the URIs in it, and without their queries.

    What looks like a port may begin a password, so with one, all that precedes the last @ is hidden.
    """
    return _URI.sub(lambda found: _hide(found[0]), text)


def _hide(rest: str) -> str:
    _, at, host = rest.rpartition("@")
    may_be_user = at and any(sign in re.split(r"[/?#]", rest, maxsplit=1)[0] for sign in "@:")
    shown, mark, _ = (f"{_HIDDEN}@{host}" if may_be_user else rest).partition("?")
    return shown + (mark and mark + _HIDDEN)


def _split(uri: str) -> tuple[str, str, str]:
    scheme, separator, rest = uri.partition("://")
    return (scheme, separator, rest) if separator else ("", "", uri)


def _user_of(rest: str) -> str:
    """Returns what precedes the last @ after a scheme; empty if that @ is part of a path.

    A password may contain characters that should be encoded there, such as a slash.
    """
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" not in host and _HOST.fullmatch(host):
        return ""
    return rest.rpartition("@")[0]
