"""How does a stream of events end: when its reader leaves, and when the gateway ends?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.requests import Request

from http_gateway.bound import Bound
from http_gateway.event_streams import Watched, stream_events
from http_gateway.gateway import Gateway
from http_gateway.problems import HttpRefusal
from http_gateway.settings import GatewaySettings
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from http_gateway.event_streams import Event


class AnswersAtOnce:
    """One answer, and then none; `is_closed` says whether the generator has ended."""

    def __init__(self, *answers: Event) -> None:
        self._answers = answers
        self.is_closed = False

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            for each in self._answers:
                yield each
            await asyncio.Event().wait()
        finally:
            self.is_closed = True

    def watched(self) -> Watched:
        return Watched(events=self.events(), check=self._check)

    async def _check(self) -> None:
        """Finds that the reader may read."""


def make_gateway() -> Gateway:
    """Returns a gateway whose client is not used."""
    unused = cast("Any", None)
    return Gateway(
        client=unused,
        tokens=unused,
        settings=GatewaySettings(heartbeat_seconds=0.01),
        sessions=unused,
        sampler=unused,
        event_streams=Bound("streams of events", 5),
        downloads=Bound("downloads", 1),
        sql=unused,
    )


REQUEST = Request({"type": "http", "headers": []})


@pytest.mark.asyncio
async def test_a_reader_who_leaves_at_a_heartbeat_ends_the_query_at_once() -> None:
    gateway, answers = make_gateway(), AnswersAtOnce(("00", "x"))
    sent: list[bytes] = []
    beating = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if b"event: alive" in sent[-1]:
            beating.set()
            await asyncio.Event().wait()  # the reader takes nothing more

    async def receive() -> dict[str, Any]:
        await beating.wait()
        return {"type": "http.disconnect"}

    response = await stream_events(gateway, REQUEST, answers.watched())
    await response({"type": "http", "method": "GET"}, cast("Any", receive), send)
    assert answers.is_closed
    assert gateway.event_streams.taken == 0


@pytest.mark.asyncio
async def test_a_gateway_that_ends_before_the_first_answer_asks_to_try_again() -> None:
    gateway, answers = make_gateway(), AnswersAtOnce()
    gateway.ending.set()
    with pytest.raises(HttpRefusal, match="shutting down") as refusal:
        await stream_events(gateway, REQUEST, answers.watched())
    assert refusal.value.status == 503
    assert answers.is_closed


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("heartbeat_seconds", 0.0, "0.01"), ("charts_seconds", 0.0, "0.01"), ("max_event_streams", 0, "1")],
)
def test_settings_of_streams_have_a_least_value(name: str, value: float, least: str) -> None:
    with pytest.raises(UsageError, match=f"{name} = 0: give at least {least}"):
        GatewaySettings(**cast("Any", {name: value}))
