"""How does a stream of server-sent events run, say that it is alive, and end?

At each heartbeat, the server is asked again whether it lets the caller read the table. So a stream ends within the
heartbeat interval after its token has expired or was revoked, also if no row changes.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from http_gateway.answers import StreamedResponse
from http_gateway.problems import HttpRefusal, problem_of, status_of
from scankv.model.errors import ScanKvError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client import TopNWatch
    from http_gateway.gateway import Gateway

Event: TypeAlias = tuple[str, str]
"""The version of an answer, and its text."""

MEDIA_TYPE: Final = "text/event-stream"
_RETRY: Final = b"retry: 2000\n\n"
_VERSION: Final = re.compile(r"([0-9a-f]{2}){1,64}")
# After these statuses, the server is expected to answer later.
_PASSING: Final = frozenset({429, 503, 504})
# A script takes twice the heartbeat interval without a byte for a lost connection, so a check must take less.
_CHECK_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a stream sends.

    Attributes:
        events: The answers, each when it differs from the last one.
        check: Raises an error if the caller may no longer read the answers, or if the server does not answer.
    """

    events: AsyncGenerator[Event, None]
    check: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Beat:
    """A heartbeat. Without a problem, the last answer is current."""

    problem: Exception | None


async def stream_events(gateway: Gateway, request: Request, watched: Watched) -> Response:
    """Answers with a stream of events. Raises the error of a query that has no first answer.

    A reader that has the current answer, by its `Last-Event-ID`, gets a heartbeat instead of it.
    """
    last = request.headers.get("last-event-id", "")
    known = last if _VERSION.fullmatch(last) else None
    pieces = _pieces(gateway, watched, known)
    first = await anext(pieces, None)
    if first is None:
        raise HttpRefusal(503, "GATEWAY_ENDING", "the gateway is shutting down: try again in a moment")
    return StreamedResponse(first, pieces, MEDIA_TYPE, {"X-Accel-Buffering": "no"})


async def confirm(gateway: Gateway, table: str, watch: TopNWatch | None = None) -> None:
    """Asks the server whether the caller may still read a table.

    Raises:
        ScanKvError: The caller may not, the table does not exist, or a watch of it has no answer from the server.
    """
    if watch is not None and watch.current_error is not None:
        raise copy(watch.current_error)
    await gateway.client.table(table)


async def _pieces(gateway: Gateway, watched: Watched, known: str | None) -> AsyncGenerator[bytes, None]:
    """Makes the text of a stream of events. An error before the first byte is raised, a later one is an event."""
    with gateway.event_streams.take():
        has_begun = has_answer = False
        # The heartbeats are closed first, because one of their tasks may be reading the events.
        async with aclosing(watched.events), aclosing(_with_beats(gateway, watched)) as all_pieces:
            try:
                async for each in all_pieces:
                    if isinstance(each, _Beat):
                        text = _beat_text(each) if has_answer or each.problem is not None else ": no answer yet\n\n"
                    else:
                        version, data = each
                        is_known = not has_answer and version == known
                        text = _beat_text(_Beat(None)) if is_known else f"id: {version}\ndata: {data}\n\n"
                        has_answer = True
                    # Proxies and browsers wait for a first byte.
                    yield (b"" if has_begun else _RETRY) + text.encode()
                    has_begun = True
            except (ScanKvError, HttpRefusal) as error:
                if not has_begun:
                    raise
                yield _problem_text("problem", error).encode()


def _beat_text(beat: _Beat) -> str:
    return "event: alive\ndata: {}\n\n" if beat.problem is None else _problem_text("away", beat.problem)


def _problem_text(kind: str, error: Exception) -> str:
    return f"event: {kind}\ndata: {json.dumps(problem_of(error))}\n\n"


async def _with_beats(gateway: Gateway, watched: Watched) -> AsyncGenerator[Event | _Beat, None]:
    """Yields the events, and a heartbeat after each check. Ends with the gateway."""
    seconds = gateway.settings.heartbeat_seconds
    ending = asyncio.create_task(gateway.ending.wait())
    reading: asyncio.Task[Event | None] = asyncio.create_task(_next(watched.events))
    checking = asyncio.create_task(_check_after(seconds, watched))
    try:
        while True:
            await asyncio.wait({reading, checking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return
            if reading.done():
                event = reading.result()
                if event is None:
                    return
                yield event
                reading = asyncio.create_task(_next(watched.events))
            if checking.done():
                yield checking.result()
                checking = asyncio.create_task(_check_after(seconds, watched))
    finally:
        tasks = {reading, checking, ending}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


async def _check_after(seconds: float, watched: Watched) -> _Beat:
    """Waits, and checks. Raises the error of a check that fails for good."""
    await asyncio.sleep(seconds)
    try:
        async with asyncio.timeout(seconds * _CHECK_SHARE):
            await watched.check()
    except TimeoutError:
        return _Beat(Unavailable("the server does not answer"))
    except ScanKvError as error:
        if status_of(error) not in _PASSING:
            raise
        return _Beat(error)
    return _Beat(None)
