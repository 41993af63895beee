"""The list of tables, and the page of a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from http_gateway.console.chart_pages import table_charts
from http_gateway.console.console_page import REFRESH, show
from http_gateway.console.rendering import cells_of
from http_gateway.parameters import Choice, Parameter, WholeNumber
from scankv.model.counts import counted
from scankv.model.errors import ScanKvError
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client import Scan, Table
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

TABLE_PARAMETERS: Final = (
    Parameter(name="where", meaning="A predicate.", default=""),
    Parameter(name="order_by", meaning="A column.", default=""),
    WholeNumber(name="limit", meaning="The most rows.", default=10, low=1, high=200),
    Choice(name="run", meaning="What to do.", words=("rows", "count", "explain")),
    REFRESH,
)


async def show_tables(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the tables that the caller may read."""
    tables, damaged = await gateway.client.tables(), await gateway.client.damaged_tables()
    return show(request, "tables.html", values, tables=tables, damaged=damaged)


async def show_table(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows a table, and the result of the query in its form."""
    table = await gateway.client.table(request.path_params["table"])
    result, problem = None, ""
    try:
        result = await _run(table, values)
    except ScanKvError as error:
        problem = error.message
    return show(
        request,
        "table.html",
        values,
        table=table,
        columns=[(field, format_type(field.type)) for field in table.schema],
        comments=table.column_comments,
        buckets=await table.stats(),
        disk=asdict(await table.disk_use()),
        consumers=await table.consumers(),
        result=result,
        problem=problem,
        charts=table_charts(gateway, request, table.name),
    )


async def _run(table: Table, values: Values) -> dict[str, Any] | None:
    """Returns the result of the query in the form; None if it was not run."""
    where = values["where"].strip() or None
    match values["run"]:
        case "count":
            return {"text": counted(await table.count(where), "row")}
        case "explain":
            return {"text": str(await _scan(table, where, values["limit"]).explain())}
        case "rows":
            if values["order_by"]:
                rows = await table.top_n(values["limit"], values["order_by"], where)
            else:
                rows = await _scan(table, where, values["limit"]).to_arrow()
            return {"names": rows.schema.names, "rows": cells_of(rows)}
    return None


def _scan(table: Table, where: str | None, limit: int) -> Scan:
    scan = table.scan().limit(limit)
    return scan if where is None else scan.where(where)
