"""Which addresses lead to a live top-N, and which of them does the login follow?

Anyone can send a link to the login with any address in it. So the login follows only what is certainly the path of a
live page here, and never another site's address.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from http_gateway.limits import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_gateway.parameters import Parameter, Values

# What `quote` and `urlencode` write.
_DEEP_LINK: Final = re.compile(r"/tables/[A-Za-z0-9._~%-]+/top(\?[A-Za-z0-9._~%&=+*-]*)?")


def live_link(table: str, parameters: Sequence[Parameter], values: Values) -> str:
    """Returns the address of a live page outside sessions, with those values that differ from the defaults."""
    given = {
        each.name: _text_of(values[each.name]) for each in parameters if values[each.name] not in (each.default, "")
    }
    return f"{path_of(table)}?{urlencode(given)}"


def path_of(table: str) -> str:
    """Returns the path of the live page of a table outside sessions."""
    return f"/tables/{quote(table, safe='')}/top"


def is_deep_link(text: str) -> bool:
    """Returns whether a text is the address of a live page of this gateway, outside sessions."""
    return len(text) <= MAX_TEXT and _DEEP_LINK.fullmatch(text) is not None


def login_address(link: str) -> str:
    """Returns the address of the login that leads back to a deep link; that of the plain login for another text."""
    return f"/login?{urlencode({'next': link})}" if is_deep_link(link) else "/login"


def _text_of(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case list():
            return ",".join(value)
    return str(value)
