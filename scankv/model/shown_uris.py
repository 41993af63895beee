"""How do errors show the address of a server or of files? Without what may be a password or a token."""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "***"
# A host, perhaps with a port. If a URI begins with it, an @ further on does not end a user.
_HOST: Final = re.compile(r"[^:@]*(:[0-9]*)?|\[[0-9A-Fa-f:.%]*\](:[0-9]*)?")
_USER: Final = re.compile(r"(?<=://)[^\s/'\"]*@")


def show_uri(uri: str) -> str:
    """Returns a URI, or `host:port`, without the user and password before its host and the values of its query."""
    scheme, separator, rest = _split(uri)
    if user := _user_of(rest):
        rest = _HIDDEN + rest[len(user) :]
    shown, mark, _ = rest.partition("?")
    return scheme + separator + shown + (mark and mark + _HIDDEN)


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


def hide_users(text: str) -> str:
    """Returns a text without the users and passwords of the URIs in it."""
    return _USER.sub(f"{_HIDDEN}@", text)


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
