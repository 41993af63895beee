"""The questions about tables that have one answer: tables, top-N, count, aggregate, rows by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from http_gateway.answers import BodyResponse, fields_text, rows_text
from http_gateway.limits import MAX_KEYS, MAX_TOP
from http_gateway.parameters import Names, Parameter, Repeated, Truth, WholeNumber
from http_gateway.problems import bad_request
from scankv.formats.key_text import parse_keys
from scankv.model.tables.log_tables import require_key
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from starlette.responses import Response

    from aio_client import Table
    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call
    from http_gateway.parameters import Values

_FUNCTIONS: Final = ("count", "sum", "min", "max", "mean")

WHERE: Final = Parameter(
    name="where", meaning="A predicate in the syntax of SQL. Default: all rows.", example="score > 100"
)
COLUMNS: Final = Names(name="columns", meaning="The columns to return, with commas between them. Default: all.")
KEYS: Final = Repeated(
    name="key",
    meaning="A key; one of several columns as a line of CSV. May be repeated.",
    required=True,
    most=MAX_KEYS,
    example=["ann"],
)
TOP: Final = (
    Parameter(name="order_by", meaning="The column that orders the rows.", required=True, example="score"),
    WholeNumber(name="limit", meaning="The most rows.", default=10, low=1, high=MAX_TOP),
    Truth(name="descending", meaning="Whether the greatest values come first.", default=True),
    WHERE,
    COLUMNS,
)
AGGREGATE: Final = (
    Repeated(
        name="function",
        meaning=f"A function and its column, as in sum(score); one of {', '.join(_FUNCTIONS)}. May be repeated.",
        required=True,
        most=64,
        example=["sum(score)"],
    ),
    Names(name="group_by", meaning="The columns whose equal values form a group. Default: one group."),
    WHERE,
)


async def list_tables(gateway: Gateway, call: Call) -> Response:
    """Answers with the tables that the caller may read."""
    tables = await gateway.client.tables()
    damaged = await gateway.client.damaged_tables()
    fields = {
        "tables": [describe(table) for table in tables],
        "damaged": [{"name": each.name, "reason": each.reason, "partial": each.partial} for each in damaged],
    }
    return BodyResponse(fields_text(fields), gateway.unsent)


async def show_table(gateway: Gateway, call: Call) -> Response:
    """Answers with the definition of one table."""
    return BodyResponse(fields_text(describe(await gateway.client.table(call.table))), gateway.unsent)


async def count(gateway: Gateway, call: Call) -> Response:
    """Answers with a number of rows."""
    table = await gateway.client.table(call.table)
    fields = {"table": table.name, "count": await table.count(call.values["where"])}
    return BodyResponse(fields_text(fields), gateway.unsent)


async def top(gateway: Gateway, call: Call) -> Response:
    """Answers with the first rows in the order of a column."""
    table = await gateway.client.table(call.table)
    values = call.values
    rows = await table.top_n(
        values["limit"],
        values["order_by"],
        values["where"],
        columns=values["columns"],
        descending=values["descending"],
    )
    return await answer_rows(gateway, table, rows)


async def aggregate(gateway: Gateway, call: Call) -> Response:
    """Answers with aggregates, one row for each group."""
    functions = functions_of(call.values["function"])
    table = await gateway.client.table(call.table)
    rows = await table.aggregate(functions, call.values["where"], group_by=call.values["group_by"] or ())
    return await answer_rows(gateway, table, rows)


async def rows_by_key(gateway: Gateway, call: Call) -> Response:
    """Answers with the rows that some keys have. A key without a row adds nothing."""
    table = await gateway.client.table(call.table)
    rows = await table.lookup(keys_of(table, call.values))
    return await answer_rows(gateway, table, rows)


async def answer_rows(gateway: Gateway, table: Table, rows: pa.Table) -> Response:
    """Returns the answer that contains rows of a table."""
    return BodyResponse(fields_text({"table": table.name}, await rows_text(rows)), gateway.unsent)


def keys_of(table: Table, values: Values) -> pa.RecordBatch:
    """Returns the keys that a request names. Raises UsageError or NoPrimaryKey."""
    require_key(table.name, table.primary_key, "rows are not found by a key: use top or scan with where")
    return parse_keys(values["key"], _key_schema(table))


def functions_of(texts: list[str]) -> dict[str, list[str]]:
    """Returns the aggregate functions by column of texts such as `sum(score)`."""
    functions: dict[str, list[str]] = {}
    for text in texts:
        name, opened, rest = text.strip().partition("(")
        if name not in _FUNCTIONS or not opened or not rest.endswith(")") or not rest[:-1]:
            raise bad_request(
                f"function must be {', '.join(_FUNCTIONS[:-1])} or {_FUNCTIONS[-1]} with a column, as in sum(score), "
                f"not {text!r:.80}"
            )
        functions.setdefault(rest[:-1], []).append(name)
    return functions


def describe(table: Table) -> dict[str, Any]:
    """Returns the definition of a table as fields."""
    comments = table.column_comments
    return {
        "name": table.name,
        "columns": [
            {
                "name": field.name,
                "type": format_type(field.type),
                "nullable": field.nullable,
                **({"comment": comments[field.name]} if field.name in comments else {}),
            }
            for field in table.schema
        ],
        "primary_key": table.primary_key,
        "bucket_key": table.bucket_key,
        "partition_by": table.partition_by,
        "buckets": table.buckets,
        "indexes": [list(columns) for columns in table.indexes],
        "merge_engine": table.merge_engine,
        "options": table.options,
    }


def _key_schema(table: Table) -> pa.Schema:
    return pa.schema([table.schema.field(name) for name in table.primary_key])
