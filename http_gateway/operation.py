"""What an operation of the gateway is, and one call of it. The operations themselves are in `operations.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Parameter, Values

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, read and checked.

    Attributes:
        table: The table in the path. Empty: the path has none.
        values: The values of the parameters.
        request: The request itself.
    """

    table: str
    values: Values
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a request to one path does.

    Attributes:
        name: A unique name.
        path: The path; `{table}` stands for the name of a table.
        summary: What it does, in a sentence.
        handler: Answers a call.
        parameters: The parameters of the query.
        media_types: What it answers with.
        is_open: Whether it needs no token.
        method: The method of the request.
        body: The JSON schema of the body. None: the request has none.
    """

    name: str
    path: str
    summary: str
    handler: Callable[[Gateway, Call], Awaitable[Response]]
    parameters: tuple[Parameter, ...] = ()
    media_types: tuple[str, ...] = (JSON,)
    is_open: bool = False
    method: str = "GET"
    body: Mapping[str, Any] | None = None
