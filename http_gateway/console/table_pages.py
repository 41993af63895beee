"""The page of a table: its first rows or the result of a query, what it is, and how large."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from http_gateway.console.chart_pages import table_charts
from http_gateway.console.console_page import REFRESH, show
from http_gateway.console.rendering import cells_of
from http_gateway.console.sections import SECTION_SECONDS, read_section
from http_gateway.console.table_query import QUERY_PARAMETERS, TableQuery
from scankv.formats.table_sheets import (
    Sheet,
    bases_sheet,
    buckets_sheet,
    columns_sheet,
    definition_pairs,
    indexes_sheet,
    partitions_sheet,
)
from scankv.model.counts import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client import BucketStats, Table
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

TABLE_PARAMETERS: Final = (*QUERY_PARAMETERS, REFRESH)

_RESULTS: Final = {
    None: "The rows",
    "rows": "The rows",
    "count": "The numbers of rows",
    "explain": "Explanations of rows in the order of a column",
}
"""What a run shows, in the plural, as a message begins."""

MOST_ITEMS: Final = 100
"""The most partitions, and the most buckets, that the page of a table lists."""


async def show_table(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows a table, and the result of the query in its form: of its first rows if the form was not sent."""
    table = await gateway.client.table(request.path_params["table"])
    query = TableQuery.of(values)
    # The page of a slow table comes soon. Who presses a button waits as long as the client does.
    seconds = SECTION_SECONDS if values["run"] is None else None
    result, buckets, disk, indexes, partitions, consumers = await asyncio.gather(
        read_section(_run(table, query, values["run"] or "rows"), _RESULTS[values["run"]], seconds),
        read_section(table.stats(), "The buckets"),
        read_section(table.disk_use(), "The sizes"),
        read_section(table.index_status(), "The indexes"),
        read_section(_partitions(table), "The partitions"),
        read_section(table.consumers(), "The consumers"),
    )
    asked_refresh = values["refresh"]
    if result.timed_out:
        # A page that refreshes itself would repeat the query for ever.
        values = {**values, "refresh": None}
    return show(
        request,
        "table.html",
        values,
        table=table,
        pairs=definition_pairs(table, buckets.value, disk.value),
        columns=columns_sheet(table, table._handle.shape.defaults),
        result=result,
        buckets=buckets,
        shown_buckets=buckets_sheet(_first_buckets(buckets.value or ())),
        bases=bases_sheet(_first_buckets(buckets.value or ())),
        disk=disk,
        indexes=indexes,
        index_sheet=indexes_sheet(indexes.value or ()),
        partitions=partitions,
        consumers=consumers,
        has_stopped=bool(asked_refresh and result.timed_out),
        charts=table_charts(gateway, request, table.name),
    )


async def _run(table: Table, query: TableQuery, what: str) -> dict[str, Any]:
    """Returns the result of a query: a text, or names and rows."""
    match what:
        case "count":
            return {"text": counted(await query.count(table), "row")}
        case "explain":
            return {"text": str(await query.explain(table))}
    rows = await query.rows(table)
    return {"names": rows.schema.names, "rows": cells_of(rows)}


async def _partitions(table: Table) -> tuple[Sheet, int] | None:
    """Returns the first partitions, and how many there are. None: the table is not partitioned."""
    if not table.partition_by:
        return None
    found = await table.partitions()
    return partitions_sheet(table, found[:MOST_ITEMS], dt.datetime.now(dt.UTC)), len(found)


def _first_buckets(buckets: Sequence[BucketStats]) -> list[BucketStats]:
    """Returns the first buckets, and all damaged ones."""
    return [each for number, each in enumerate(buckets) if number < MOST_ITEMS or each.damage]
