"""The token that the calls of one client send, as it is now."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from aio_client._transport.tokens import CallerToken, StoredToken, TokenFunction, expiry_of
from scankv.model.errors import Unauthenticated, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.tokens import TokenSource

Metadata: TypeAlias = tuple[tuple[str, str], ...] | None
"""The metadata of a call; None without a token."""

_SECONDS_BETWEEN_CHECKS: Final = 1.0
_SECONDS_BETWEEN_FAILURES: Final = 5.0
_MOST_SECONDS_BEFORE_END: Final = 60.0
_SHARE_BEFORE_END: Final = 0.2


class Authorization(ABC):
    """The token of one client, and its replacement when the server refuses it. Bound to the event loop."""

    @abstractmethod
    async def prepare(self) -> None:
        """Gets a token if the next call needs a new one.

        Raises:
            Unauthenticated, UsageError: There is no token.
        """

    @abstractmethod
    def metadata(self) -> Metadata:
        """Returns the metadata for a call that is made now, after `prepare`."""

    @abstractmethod
    async def renew(self, refused: Metadata) -> bool:
        """Gets a token again after the server has refused one. Returns whether it is another one.

        Args:
            refused: The metadata of the call that was refused.
        """


def authorization_of(source: TokenSource | None, timeout: float) -> Authorization:
    """Returns the authorization of a client.

    Args:
        source: Where the token is. None: the client has none.
        timeout: The seconds that a function has to return a token.

    Raises:
        UsageError: There is no token, or it cannot be sent.
    """
    if isinstance(source, TokenFunction):
        return FunctionAuthorization(source, timeout)
    if isinstance(source, CallerToken):
        return CallerAuthorization(source)
    assert source is None or isinstance(source, StoredToken)
    return StoredAuthorization(source)


class StoredAuthorization(Authorization):
    """Reads the token from its source, and again when the source has changed or the server refuses the token.

    Reading blocks the event loop for as long as it takes to read a small file.
    """

    def __init__(self, source: StoredToken | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the token.

        Args:
            source: Where the token is. None: the client has none.
            clock: Monotonic seconds.

        Raises:
            UsageError: There is no token, or it cannot be sent.
        """
        self._source = source
        self._clock = clock
        self._checked = clock()
        self._version: object = None
        self._metadata: Metadata = None
        if source is not None:
            self._read(source)

    async def prepare(self) -> None:
        """See `Authorization.prepare`. Does nothing: the token has been read."""

    def metadata(self) -> Metadata:
        """See `Authorization.metadata`. Looks once a second whether the token has changed."""
        if self._source is not None and self._clock() - self._checked >= _SECONDS_BETWEEN_CHECKS:
            self._checked = self._clock()
            version = self._source.version()
            if version is not None and version != self._version:
                self._read_again(self._source)
        return self._metadata

    async def renew(self, refused: Metadata) -> bool:
        """See `Authorization.renew`."""
        if self._source is not None:
            self._read_again(self._source)
        return self._metadata != refused

    def _read_again(self, source: StoredToken) -> None:
        # While a file is being replaced, it may be missing or empty. The last token may still be valid.
        with suppress(UsageError):
            self._read(source)

    def _read(self, source: StoredToken) -> None:
        # The version first: a change in between is then found by the next check.
        self._version = source.version()
        self._metadata = _metadata_of(source.read())


class FunctionAuthorization(Authorization):
    """Calls a function for the first token, when a token is near its end, and when the server refuses a token.

    However many calls need a token, the function runs once at a time.

    Args:
        function: The function.
        timeout: The seconds that it has.
        clock: Monotonic seconds.
        wall: Seconds since 1970 UTC.
    """

    def __init__(
        self,
        function: TokenFunction,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._function = function
        self._timeout = timeout
        self._clock = clock
        self._wall = wall
        self._metadata: Metadata = None
        self._due = -math.inf
        self._turn = asyncio.Lock()

    async def prepare(self) -> None:
        """See `Authorization.prepare`."""
        # While a call gets the next token, others use the last one.
        if not self._is_due or (self._metadata is not None and self._turn.locked()):
            return
        async with self._turn:
            if not self._is_due:
                return
            try:
                await self._call()
            except (Unauthenticated, UsageError):
                if self._metadata is None:
                    raise
                # The last token is still valid for some time, and the server decides for how long.
                self._due = self._clock() + _SECONDS_BETWEEN_FAILURES

    @property
    def _is_due(self) -> bool:
        return self._clock() >= self._due

    def metadata(self) -> Metadata:
        """See `Authorization.metadata`."""
        return self._metadata

    async def renew(self, refused: Metadata) -> bool:
        """See `Authorization.renew`.

        Raises:
            Unauthenticated, UsageError: The function does not return a token.
        """
        async with self._turn:
            if self._metadata == refused:
                await self._call()
        return self._metadata != refused

    async def _call(self) -> None:
        token = await self._function.call(self._timeout)
        self._metadata = _metadata_of(token)
        expires = expiry_of(token)
        left = 0.0 if expires is None else expires - self._wall()
        # By the clock of this machine, a token may seem to have expired that the server accepts.
        before_end = min(_MOST_SECONDS_BEFORE_END, _SHARE_BEFORE_END * left)
        self._due = self._clock() + left - before_end if left > 0 else math.inf


class CallerAuthorization(Authorization):
    """Sends with each call the token of whomever the running task makes it for, and what else is said about them."""

    def __init__(self, tokens: CallerToken) -> None:
        self._tokens = tokens

    async def prepare(self) -> None:
        """See `Authorization.prepare`. Does nothing: the task has set the token."""

    def metadata(self) -> Metadata:
        """See `Authorization.metadata`."""
        token, headers = self._tokens.get(), self._tokens.headers()
        return (*headers, *(() if token is None else _metadata_of(token))) or None

    async def renew(self, refused: Metadata) -> bool:
        """See `Authorization.renew`. Only the caller could renew the token."""
        return False


def _metadata_of(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)
