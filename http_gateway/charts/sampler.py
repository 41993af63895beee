"""Who samples the server for charts, and for how long?

The server's own gateway samples all the time, by its key. `scankv http` does so with the token of a file, if one is
named. Otherwise, the gateway samples only while a page with charts is open, with the token of its reader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable  # noqa: TC003  # a field of a dataclass
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from http_gateway.charts.history import MAX_TABLES, History
from http_gateway.charts.source import FileToken, GatewayKey, PageToken, Source

if TYPE_CHECKING:
    from aio_client import Client
    from aio_client._transport.tokens import CallerToken
    from http_gateway.charts.source import Rights
    from http_gateway.settings import GatewaySettings

PAGE_SECONDS: Final = 120.0
"""For how long after the last page with charts the gateway samples on with the token of its reader."""

MAX_READERS: Final = 16
"""The most sessions for which the gateway samples. A further one gets no charts."""

MAX_TABLES_OF_READER: Final = 200


@dataclass(slots=True)
class _Reader:
    """A session for which the gateway samples.

    Attributes:
        source: What is sampled.
        is_live: Whether the session has not ended.
        used_at: When its last page with charts was opened.
    """

    source: Source
    is_live: Callable[[], bool]
    used_at: float


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
        self._seconds = settings.charts_seconds
        self._own: Source | None = None
        if settings.forwarding_key:
            self._own = self._new_source(GatewayKey(settings.forwarding_key), MAX_TABLES)
        elif settings.charts_token_file:
            self._own = self._new_source(FileToken(settings.charts_token_file), MAX_TABLES)
        # Of sessions, by what their paths begin with.
        self._readers: dict[str, _Reader] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def samples_always(self) -> bool:
        """Whether the gateway samples also when no page is open."""
        return self._own is not None

    def now(self) -> float:
        """Returns the time of the samples."""
        return self._clock()

    def open_page(self, session: str, token: str | None, is_live: Callable[[], bool]) -> Source | None:
        """Returns what a page with charts shows, and has it sampled while the page is open.

        Returns None if the pages of too many sessions are open.

        Args:
            session: What the paths of the session begin with. Empty: the page has no session.
            token: The token of the reader.
            is_live: Whether the session has not ended. It is asked before each sample.
        """
        if self._own is not None:
            return self._own
        if session not in self._readers:
            if len(self._readers) >= MAX_READERS:
                return None
            source = self._new_source(PageToken(token), MAX_TABLES_OF_READER)
            self._readers[session] = _Reader(source, is_live, self._clock())
            source.start_sample(self._client, self._tokens, self._clock)
        self._readers[session].used_at = self._clock()
        return self._readers[session].source

    def _new_source(self, rights: Rights, max_tables: int) -> Source:
        return Source(rights, History(max_tables, self._seconds), self._clock())

    def history_for(self, session: str) -> History | None:
        """Returns what the gateway knows of the last 15 minutes, without having it sampled. None: nothing.

        It may have tables that the reader may not read: ask it only for tables that the server has shown to the reader.

        Args:
            session: What the paths of the session begin with. Empty: the page has no session.
        """
        if self._own is not None:
            return self._own.history
        found = self._readers.get(session)
        return None if found is None else found.source.history

    def forget(self, session: str) -> None:
        """Ends the samples for a session at once."""
        found = self._readers.pop(session, None)
        if found is not None:
            closing = asyncio.create_task(found.source.close())
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
            await asyncio.sleep(self._seconds)

    def _sample(self) -> None:
        """Begins a sample of each source, and ends those whose session has ended, or has had no page open for long."""
        oldest = self._clock() - PAGE_SECONDS
        for session, reader in list(self._readers.items()):
            if reader.used_at < oldest or not reader.is_live():
                self.forget(session)
        for source in (*([] if self._own is None else [self._own]), *(each.source for each in self._readers.values())):
            source.start_sample(self._client, self._tokens, self._clock)
