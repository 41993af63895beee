"""Server-sent events: an answer that is sent again whenever it differs.

An event has the complete answer, not a change of it. So a slow reader loses nothing by missing events: while it reads
one, nothing is asked, and the next event has the answer as of then. A reader that comes back with `Last-Event-ID` gets
no event until the table has changed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from http_gateway.answers import rows_text
from http_gateway.event_streams import Watched, confirm, stream_events
from http_gateway.limits import MAX_WATCHED_KEYS
from http_gateway.parameters import Seconds
from http_gateway.queries import KEYS as WANTED
from http_gateway.queries import keys_of
from scankv.model.expressions import all_of, any_of, col

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa
    from starlette.responses import Response

    from aio_client import Table, TopNWatch
    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call
    from scankv.model.expressions import Predicate

EVERY: Final = Seconds(name="every", meaning="The least seconds between two events.", default=1.0, low=0.1, high=3600.0)
KEYS: Final = replace(WANTED, most=MAX_WATCHED_KEYS)


async def watch_top(gateway: Gateway, call: Call) -> Response:
    """Answers with events of the first rows in the order of a column."""
    table = await gateway.client.table(call.table)
    values = call.values
    watch = table.watch_top_n(
        values["limit"],
        values["order_by"],
        values["where"],
        columns=values["columns"],
        descending=values["descending"],
        every=values["every"],
    )
    return await _stream_rows(gateway, call, table, watch)


async def watch_rows(gateway: Gateway, call: Call) -> Response:
    """Answers with events of the rows that some keys have."""
    table = await gateway.client.table(call.table)
    where = _any_of(keys_of(table, call.values))
    order = table.primary_key[0]
    watch = table.watch_top_n(MAX_WATCHED_KEYS, order, where, descending=False, every=call.values["every"])
    return await _stream_rows(gateway, call, table, watch)


async def watch_count(gateway: Gateway, call: Call) -> Response:
    """Answers with events of a number of rows."""
    table = await gateway.client.table(call.table)
    events = _count_events(table, call.values["where"], call.values["every"])
    watched = Watched(events=events, check=partial(confirm, gateway, call.table))
    return await stream_events(gateway, call.request, watched)


async def _stream_rows(gateway: Gateway, call: Call, table: Table, watch: TopNWatch) -> Response:
    watched = Watched(events=_rows_events(table, watch), check=partial(confirm, gateway, call.table, watch))
    return await stream_events(gateway, call.request, watched)


async def _rows_events(table: Table, watch: TopNWatch) -> AsyncGenerator[tuple[str, str], None]:
    async with watch:
        async for top in watch:
            data = f'{{"table": {json.dumps(table.name)}, "rows": {await rows_text(top.rows)}}}'
            yield top.version.hex(), data


async def _count_events(table: Table, where: str | None, every: float) -> AsyncGenerator[tuple[str, str], None]:
    since: bytes | None = None
    count: int | None = None
    while True:
        # While nothing changes, the server answers from memory.
        found = await table.count_if_changed(since, where)
        if found is not None:
            since = found.version
            if found.value != count:
                count = found.value
                yield found.version.hex(), json.dumps({"table": table.name, "count": count})
        await asyncio.sleep(every)


def _any_of(keys: pa.RecordBatch) -> Predicate:
    """Returns the predicate that the rows with these keys fulfil."""
    rows = keys.to_pylist()
    if keys.num_columns == 1:
        (name,) = keys.schema.names
        return col(name).is_in([row[name] for row in rows])
    return any_of([all_of([col(name) == value for name, value in row.items()]) for row in rows])
