"""The page of the server, and that of its live scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from http_gateway.console.console_page import show
from scankv.model.errors import PermissionDenied, UnknownCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

_Answer = TypeVar("_Answer")


async def show_scans(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the live scans."""
    return show(request, "scans.html", values, scans=await gateway.client.live_scans())


async def show_server(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the server, as far as the caller may see it."""
    client = gateway.client
    unknown: list[str] = []
    return show(
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
    except UnknownCall:
        unknown.append(name)
        return None
