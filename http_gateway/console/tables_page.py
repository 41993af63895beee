"""The list of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_gateway.console.console_page import show

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values


async def show_tables(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the tables that the caller may read."""
    tables, damaged = await gateway.client.tables(), await gateway.client.damaged_tables()
    return show(request, "tables.html", values, tables=tables, damaged=damaged)
