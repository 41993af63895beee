"""Who samples the server for charts, and for how long?

The server's own gateway samples all the time, by its key. `scankv http` does so with the token of a file, if one is
named. Otherwise, the gateway samples only while a page with charts is open, with the token of its reader.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Self

from http_gateway.charts.history import SAMPLE_SECONDS
from http_gateway.charts.source import FileToken, GatewayKey, PageToken, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client
    from aio_client._transport.tokens import CallerToken
    from http_gateway.charts.history import History
    from http_gateway.settings import GatewaySettings

PAGE_SECONDS: Final = 120.0
"""For how long after the last page with charts the gateway samples on with the token of its reader."""

MAX_READERS: Final = 16
"""The most sessions for which the gateway samples. A further one ends the one that was used least recently."""

MAX_TABLES_OF_READER: Final = 200


class Sampler:
    """Samples the server inside its `async with` block. Bound to the event loop.

    Args:
        client: The client of the server, which sends the token that `tokens` says.
        tokens: What the calls of a task send.
        settings: Whether the gateway has a key or a token of its own.
        clock: The time in seconds.

    Raises:
        UsageError: The token file of the settings cannot be used.
    """

    def __init__(
        self,
        client: Client,
        tokens: CallerToken,
        settings: GatewaySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._tokens = tokens
        self._clock = clock
        self._own: Source | None = None
        if settings.forwarding_key:
            self._own = Source(GatewayKey(settings.forwarding_key), clock())
        elif settings.charts_token_file:
            self._own = Source(FileToken(settings.charts_token_file), clock())
        # Of sessions, by what their paths begin with; the most recently used last.
        self._readers: OrderedDict[str, tuple[Source, float]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def samples_always(self) -> bool:
        """Whether the gateway samples also when no page is open."""
        return self._own is not None

    def now(self) -> float:
        """Returns the time of the samples."""
        return self._clock()

    def open_page(self, session: str, token: str | None) -> Source:
        """Returns what a page with charts shows, and has it sampled while the page is open.

        Args:
            session: What the paths of the session begin with. Empty: the page has no session.
            token: The token of the reader.
        """
        if self._own is not None:
            return self._own
        found = self._readers.pop(session, None)
        source = Source(PageToken(token), self._clock(), MAX_TABLES_OF_READER) if found is None else found[0]
        self._readers[session] = source, self._clock()
        if found is None:
            source.start_sample(self._client, self._tokens, self._clock)
            while len(self._readers) > MAX_READERS:
                self.forget(next(iter(self._readers)))
        return source

    def history_for(self, session: str) -> History | None:
        """Returns what the gateway knows of the last 15 minutes, without having it sampled. None: nothing.

        It may have tables that the reader may not read: ask it only for tables that the server has shown to the reader.

        Args:
            session: What the paths of the session begin with. Empty: the page has no session.
        """
        if self._own is not None:
            return self._own.history
        found = self._readers.get(session)
        return None if found is None else found[0].history

    def forget(self, session: str) -> None:
        """Ends the samples for a session at once, because its user has logged out."""
        found = self._readers.pop(session, None)
        if found is not None:
            closing = asyncio.create_task(found[0].close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def __aenter__(self) -> Self:
        """Begins to sample."""
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends all samples."""
        self._running.cancel()
        for session in list(self._readers):
            self.forget(session)
        if self._own is not None:
            await self._own.close()
        await asyncio.wait([self._running, *self._closing])

    async def _run(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def _sample(self) -> None:
        """Begins a sample of each source, and ends those of which no page was open for long."""
        oldest = self._clock() - PAGE_SECONDS
        for session in [session for session, (_, used_at) in self._readers.items() if used_at < oldest]:
            self.forget(session)
        for source in (*([] if self._own is None else [self._own]), *(source for source, _ in self._readers.values())):
            source.start_sample(self._client, self._tokens, self._clock)
