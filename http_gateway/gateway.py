"""What all requests of one gateway share: the client, the tokens of callers, and bounds on what is in memory."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from http_gateway.problems import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_client import Client
    from aio_client._transport.tokens import CallerToken
    from http_gateway.charts.sampler import Sampler
    from http_gateway.console.session_files import SessionFiles
    from http_gateway.settings import GatewaySettings

_MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024


class Bound:
    """A bound on something that requests take for a while. Belongs to the event loop.

    Args:
        what: What is bounded, for the message.
        most: The most of it at once.

    Attributes:
        taken: How much is taken now.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self.taken = 0

    @contextmanager
    def take(self, amount: int = 1) -> Iterator[None]:
        """Takes some of it inside the block.

        Raises:
            HttpRefusal: It is not free. One request may take more than the bound if it is alone.
        """
        if self.taken and self.taken + amount > self._most:
            raise HttpRefusal(
                503, "GATEWAY_BUSY", f"the gateway has too many {self._what} at once: try again in a moment"
            )
        self.taken += amount
        try:
            yield
        finally:
            self.taken -= amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """What the handlers of requests use.

    Attributes:
        client: The client of the gRPC server, shared by all callers.
        tokens: The token that the calls of the running task send.
        settings: The settings of the gateway.
        sessions: The sessions of the console.
        sampler: Samples the server for charts.
        event_streams: The streams of events that are open.
        downloads: The downloads that run.
        unsent: The bytes of answers that are in memory until they are sent.
        ending: Set when the gateway ends, so that streams of events end.
    """

    client: Client
    tokens: CallerToken
    settings: GatewaySettings
    sessions: SessionFiles
    sampler: Sampler
    event_streams: Bound
    downloads: Bound
    unsent: Bound = field(default_factory=lambda: Bound("bytes of unread answers", _MAX_UNSENT_BYTES))
    ending: asyncio.Event = field(default_factory=asyncio.Event)
