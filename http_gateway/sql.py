"""`POST /v1/sql`: queries over live tables in SQL, which only read, and reach nothing else of this process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from http_gateway.answers import StreamedResponse
from http_gateway.downloads import FORMAT, MEDIA_TYPES, QUOTE_FORMULAS, encoder_of
from http_gateway.operation import JSON
from http_gateway.problems import HttpRefusal, bad_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client._sql.query import SqlQuery
    from http_gateway.downloads import MakeEncoder
    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call

PARAMETERS: Final = (FORMAT, QUOTE_FORMULAS)
BODY: Final = {
    "type": "object",
    "required": ["query"],
    "additionalProperties": False,
    "properties": {
        "query": {"type": "string", "description": "One statement that reads, in the dialect of DuckDB."},
        "parameters": {
            "description": "The values of ? in their order, or of $name by name.",
            "oneOf": [{"type": "array"}, {"type": "object"}],
        },
    },
    "example": {"query": "select count(*) from game.scores where score > $least", "parameters": {"least": 10}},
}

_NO_TABLE: Final = (".",)  # the name of no table


async def answer_query(gateway: Gateway, call: Call) -> Response:
    """Answers with the rows of a query."""
    format_, encoder = encoder_of(call)
    text, parameters = await _query_of(call.request)
    # A query that names no table makes no other call that the server would refuse without a token.
    await gateway.client._activity(names=_NO_TABLE)
    query = await asyncio.to_thread(gateway.sql.query, text, parameters)
    pieces = _pieces(gateway, query, encoder)
    # The first piece is made before the answer begins, so that a query that is refused is a problem with a status.
    first = await anext(pieces)
    headers = {"Content-Disposition": f'attachment; filename="query.{format_}"', "Vary": "Accept"}
    return StreamedResponse(first, pieces, MEDIA_TYPES[format_], headers)


async def _query_of(request: Request) -> tuple[str, Any]:
    """Returns the query and its parameters. Raises HttpRefusal if the body has another form."""
    # Pages of other sites can only send other types without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HttpRefusal(415, "UNSUPPORTED_MEDIA_TYPE", f"give the query as JSON, with Content-Type: {JSON}")
    try:
        given = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise bad_request('the body is not JSON: give {"query": "select ..."}') from None
    if not isinstance(given, dict) or not isinstance(given.get("query"), str):
        raise bad_request('query is missing, or no text: give {"query": "select ..."}')
    if unknown := [name for name in given if name not in ("query", "parameters")]:
        raise bad_request(f'the body has "{unknown[0]:.80}": only query and parameters are allowed')
    parameters = given.get("parameters")
    if not isinstance(parameters, list | dict | None):
        raise bad_request("parameters must be a list for ? or an object for $name")
    return given["query"], parameters


async def _pieces(gateway: Gateway, query: SqlQuery, make_encoder: MakeEncoder) -> AsyncGenerator[bytes, None]:
    async with gateway.sql.run(query) as stream:
        encoder = make_encoder(stream.schema)
        # With the first rows, so that what fails before them is a problem with a status.
        data = encoder.start()
        while (rows := await stream.read()) is not None:
            yield data + await asyncio.to_thread(encoder.encode, rows)
            data = b""
        yield data + encoder.end()
