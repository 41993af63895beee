"""Server-sent events: an answer that is sent again whenever it differs.

An event has the complete answer, not a change of it. So a slow reader loses nothing by missing events: while it reads
one, nothing is asked, and the next event has the answer as of then. A reader that comes back with `Last-Event-ID` gets
no event until the table has changed.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from http_gateway.answers import StreamedResponse, rows_text
from http_gateway.limits import HEARTBEAT_SECONDS, MAX_WATCHED_KEYS
from http_gateway.parameters import Seconds
from http_gateway.problems import problem_of
from http_gateway.queries import KEYS as WANTED
from http_gateway.queries import keys_of
from scankv.model.errors import ScanKvError
from scankv.model.expressions import all_of, any_of, col

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    import pyarrow as pa
    from starlette.responses import Response

    from aio_client import Table, TopNWatch
    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call
    from scankv.model.expressions import Predicate

MEDIA_TYPE: Final = "text/event-stream"
EVERY: Final = Seconds(name="every", meaning="The least seconds between two events.", default=1.0, low=0.1, high=3600.0)
KEYS: Final = replace(WANTED, most=MAX_WATCHED_KEYS)
_RETRY: Final = b"retry: 2000\n\n"
_HEARTBEAT: Final = b": still here\n\n"
_VERSION: Final = re.compile(r"([0-9a-f]{2}){1,64}")


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
    return await _answer(gateway, call, _rows_events(table, watch))


async def watch_rows(gateway: Gateway, call: Call) -> Response:
    """Answers with events of the rows that some keys have."""
    table = await gateway.client.table(call.table)
    where = _any_of(keys_of(table, call.values))
    order = table.primary_key[0]
    watch = table.watch_top_n(MAX_WATCHED_KEYS, order, where, descending=False, every=call.values["every"])
    return await _answer(gateway, call, _rows_events(table, watch))


async def watch_count(gateway: Gateway, call: Call) -> Response:
    """Answers with events of a number of rows."""
    table = await gateway.client.table(call.table)
    return await _answer(gateway, call, _count_events(table, call.values["where"], call.values["every"]))


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


async def _answer(gateway: Gateway, call: Call, events: AsyncGenerator[tuple[str, str], None]) -> Response:
    last = call.request.headers.get("last-event-id", "")
    known = last if _VERSION.fullmatch(last) else None
    pieces = _pieces(gateway, events, known)
    first = await anext(pieces)
    return StreamedResponse(first, pieces, MEDIA_TYPE, {"X-Accel-Buffering": "no"})


async def _pieces(
    gateway: Gateway, events: AsyncGenerator[tuple[str, str], None], known: str | None
) -> AsyncGenerator[bytes, None]:
    """Makes the text of a stream of events. An error before the first event is raised, a later one is an event."""
    with gateway.event_streams.take():
        is_first = True
        async with aclosing(events):
            try:
                async for event in _with_silences(gateway, events):
                    if event is None:
                        yield _HEARTBEAT
                        continue
                    version, data = event
                    shown = b"" if is_first and version == known else f"id: {version}\ndata: {data}\n\n".encode()
                    # Proxies and browsers wait for a first byte.
                    yield (_RETRY if is_first else b"") + shown
                    is_first = False
            except ScanKvError as error:
                if is_first:
                    raise
                yield f"event: problem\ndata: {json.dumps(problem_of(error))}\n\n".encode()


async def _with_silences(
    gateway: Gateway, events: AsyncIterator[tuple[str, str]]
) -> AsyncGenerator[tuple[str, str] | None, None]:
    """Yields the events, and None after each silence. Ends with the gateway."""
    ending = asyncio.create_task(gateway.ending.wait())
    reading: asyncio.Task[tuple[str, str] | None] = asyncio.create_task(_next(events))
    try:
        while True:
            await asyncio.wait({reading, ending}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return
            if not reading.done():
                yield None
                continue
            event = reading.result()
            if event is None:
                return
            yield event
            reading = asyncio.create_task(_next(events))
    finally:
        for task in (reading, ending):
            task.cancel()
        await asyncio.wait({reading, ending})


async def _next(events: AsyncIterator[tuple[str, str]]) -> tuple[str, str] | None:
    return await anext(events, None)


def _any_of(keys: pa.RecordBatch) -> Predicate:
    """Returns the predicate that the rows with these keys fulfil."""
    rows = keys.to_pylist()
    if keys.num_columns == 1:
        (name,) = keys.schema.names
        return col(name).is_in([row[name] for row in rows])
    return any_of([all_of([col(name) == value for name, value in row.items()]) for row in rows])
