"""All operations of the gateway: paths, parameters and handlers, in one list that routes and OpenAPI are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from http_gateway import downloads, event_streams, events, monitoring, queries, sql
from http_gateway.answers import BodyResponse, fields_text
from http_gateway.openapi import describe_operations
from http_gateway.operation import Operation

if TYPE_CHECKING:
    from starlette.responses import Response

    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call


async def _describe(gateway: Gateway, call: Call) -> Response:
    return BodyResponse(fields_text(describe_operations(OPERATIONS)), gateway.unsent)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="listTables",
        path="/v1/tables",
        summary="Lists the tables that the caller may read.",
        handler=queries.list_tables,
    ),
    Operation(
        name="showTable",
        path="/v1/tables/{table}",
        summary="Shows the definition of a table.",
        handler=queries.show_table,
    ),
    Operation(
        name="top",
        path="/v1/tables/{table}/top",
        summary="Returns the first rows in the order of a column, exactly, as of one instant.",
        handler=queries.top,
        parameters=queries.TOP,
    ),
    Operation(
        name="count",
        path="/v1/tables/{table}/count",
        summary="Counts the rows, or those that match a predicate, as of one instant.",
        handler=queries.count,
        parameters=(queries.WHERE,),
    ),
    Operation(
        name="aggregate",
        path="/v1/tables/{table}/aggregate",
        summary="Computes aggregates, for all rows or for each group, as of one instant.",
        handler=queries.aggregate,
        parameters=queries.AGGREGATE,
    ),
    Operation(
        name="rows",
        path="/v1/tables/{table}/rows",
        summary="Returns the rows that some keys have.",
        handler=queries.rows_by_key,
        parameters=(queries.KEYS,),
    ),
    Operation(
        name="scan",
        path="/v1/tables/{table}/scan",
        summary="Downloads rows, all as of one instant. An answer that ends in order is complete.",
        handler=downloads.download,
        parameters=downloads.PARAMETERS,
        media_types=tuple(downloads.MEDIA_TYPES.values()),
    ),
    Operation(
        name="sql",
        method="POST",
        path="/v1/sql",
        summary="Runs a query in SQL that reads live tables. An answer that ends in order is complete.",
        handler=sql.answer_query,
        parameters=sql.PARAMETERS,
        body=sql.BODY,
        media_types=tuple(downloads.MEDIA_TYPES.values()),
    ),
    Operation(
        name="watchTop",
        path="/v1/tables/{table}/watch/top",
        summary="Sends the first rows in the order of a column as an event, now and whenever they differ.",
        handler=events.watch_top,
        parameters=(*queries.TOP, events.EVERY),
        media_types=(event_streams.MEDIA_TYPE,),
    ),
    Operation(
        name="watchRows",
        path="/v1/tables/{table}/watch/rows",
        summary="Sends the rows that some keys have as an event, now and whenever they differ.",
        handler=events.watch_rows,
        parameters=(events.KEYS, events.EVERY),
        media_types=(event_streams.MEDIA_TYPE,),
    ),
    Operation(
        name="watchCount",
        path="/v1/tables/{table}/watch/count",
        summary="Sends a number of rows as an event, now and whenever it differs.",
        handler=events.watch_count,
        parameters=(queries.WHERE, events.EVERY),
        media_types=(event_streams.MEDIA_TYPE,),
    ),
    Operation(
        name="metrics",
        path="/metrics",
        summary="Returns the metrics of the server in the text format of Prometheus.",
        handler=monitoring.metrics,
        media_types=(monitoring.METRICS_TYPE,),
    ),
    Operation(
        name="alive",
        path="/healthz",
        summary="Says that the gateway runs.",
        handler=monitoring.alive,
        is_open=True,
    ),
    Operation(
        name="ready",
        path="/readyz",
        summary="Says whether the server takes requests.",
        handler=monitoring.ready,
        is_open=True,
    ),
    Operation(
        name="openapi",
        path="/openapi.json",
        summary="Describes all paths.",
        handler=_describe,
        is_open=True,
    ),
)
