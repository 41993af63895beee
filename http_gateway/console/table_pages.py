"""The page of a table: its first rows or the result of a query, what it is, and how large."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from http_gateway.console.chart_pages import table_charts
from http_gateway.console.console_page import REFRESH, show
from http_gateway.console.rendering import cells_of
from http_gateway.console.sections import SECTION_SECONDS, Section, read_section
from http_gateway.console.table_query import QUERY_PARAMETERS, TableQuery
from scankv.formats.table_sheets import (
    Sheet,
    bases_sheet,
    buckets_sheet,
    columns_sheet,
    definition_pairs,
    indexes_sheet,
    partitions_sheet,
    why_no_base,
)
from scankv.model.counts import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client import BucketStats, Consumer, DiskUse, IndexStatus, Table
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

TABLE_PARAMETERS: Final = (*QUERY_PARAMETERS, REFRESH)

_RESULTS: Final = {
    None: "The rows",
    "rows": "The rows",
    "count": "The count",
    "explain": "The explanation",
}
"""What a run shows, as a message begins."""

MOST_ITEMS: Final = 100
"""The most partitions, and the most buckets, that the page of a table lists."""


_Result: TypeAlias = dict[str, Any]


class _Parts(NamedTuple):
    """What the page of a table reads from the server."""

    result: Section[_Result]
    buckets: Section[list[BucketStats]]
    disk: Section[DiskUse]
    indexes: Section[list[IndexStatus]]
    partitions: Section[tuple[Sheet, int] | None]
    consumers: Section[list[Consumer]]


async def show_table(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows a table, and the result of the query in its form: of its first rows if the form was not sent."""
    table = await gateway.client.table(request.path_params["table"])
    parts = await _read_parts(table, values)
    asked_refresh = values["refresh"]
    if parts.result.timed_out:
        # A page that refreshes itself would repeat the query for ever.
        values = {**values, "refresh": None}
    buckets = _first_buckets(parts.buckets.value or ())
    return show(
        request,
        "table.html",
        values,
        table=table,
        pairs=definition_pairs(table, parts.buckets.value, parts.disk.value, "press “Count rows”"),
        columns=columns_sheet(table, table._handle.shape.defaults),
        **parts._asdict(),
        shown_buckets=buckets_sheet(buckets),
        bases=bases_sheet(buckets),
        no_base=why_no_base(parts.buckets.value or ()),
        index_sheet=indexes_sheet(parts.indexes.value or ()),
        is_slow=values["run"] is None and any(part.timed_out for part in parts),
        has_stopped=bool(asked_refresh and parts.result.timed_out),
        charts=table_charts(gateway, request, table.name),
    )


async def _read_parts(table: Table, values: Values) -> _Parts:
    """Reads all parts of the page at once.

    The page of a slow table comes soon. Who presses a button waits as long as the client does.

    Raises:
        Unauthenticated: The session has ended.
    """
    query, run = TableQuery.of(values), values["run"]
    seconds = SECTION_SECONDS if run is None else None
    try:
        async with asyncio.TaskGroup() as group:
            start = group.create_task
            result = start(read_section(_run(table, query, run or "rows"), _RESULTS[run], seconds))
            buckets = start(read_section(table.stats(), "The buckets", seconds))
            disk = start(read_section(table.disk_use(), "The sizes", seconds))
            indexes = start(read_section(table.index_status(), "The indexes", seconds))
            partitions = start(read_section(_partitions(table), "The partitions", seconds))
            consumers = start(read_section(table.consumers(), "The consumers", seconds))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return _Parts(
        result.result(), buckets.result(), disk.result(), indexes.result(), partitions.result(), consumers.result()
    )


async def _run(table: Table, query: TableQuery, what: str) -> _Result:
    """Returns the result of a query: a text, or names and rows."""
    match what:
        case "count":
            return {"text": counted(await query.count(table), "row")}
        case "explain":
            return {"text": str(await query.explain(table))}
    rows, is_cut = await query.rows(table)
    # Rows may have megabytes, and other pages must not wait for them.
    cells = await asyncio.to_thread(cells_of, rows)
    return {"names": rows.schema.names, "rows": cells, "is_cut": is_cut}


async def _partitions(table: Table) -> tuple[Sheet, int] | None:
    """Returns the first partitions, and how many there are. None: the table is not partitioned."""
    if not table.partition_by:
        return None
    found = await table.partitions()
    return partitions_sheet(table, found[:MOST_ITEMS], dt.datetime.now(dt.UTC)), len(found)


def _first_buckets(buckets: Sequence[BucketStats]) -> list[BucketStats]:
    """Returns the first buckets, and all damaged ones."""
    return [each for number, each in enumerate(buckets) if number < MOST_ITEMS or each.damage]
