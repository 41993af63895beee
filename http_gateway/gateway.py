"""What all requests of one gateway share: the client, the tokens of callers, and bounds on what is in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from http_gateway.bound import Bound

if TYPE_CHECKING:
    from aio_client import Client
    from aio_client._transport.tokens import CallerToken
    from http_gateway.charts.sampler import Sampler
    from http_gateway.console.session_files import SessionFiles
    from http_gateway.settings import GatewaySettings
    from http_gateway.sql_queries import SqlRunner

_MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024


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
        sql: The queries in SQL.
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
    sql: SqlRunner
    unsent: Bound = field(default_factory=lambda: Bound("bytes of unread answers", _MAX_UNSENT_BYTES))
    ending: asyncio.Event = field(default_factory=asyncio.Event)
