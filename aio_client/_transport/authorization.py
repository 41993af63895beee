"""The token that the calls of one client send, as it is now."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.tokens import TokenSource

Metadata: TypeAlias = tuple[tuple[str, str], ...] | None
"""The metadata of a call; None without a token."""

_SECONDS_BETWEEN_CHECKS: Final = 1.0


class Authorization:
    """Reads the token from its source, and again when the source has changed or the server refuses the token.

    Reading blocks the event loop for as long as it takes to read a small file.
    """

    def __init__(self, source: TokenSource | None, clock: Callable[[], float] = time.monotonic) -> None:
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

    def metadata(self) -> Metadata:
        """Returns the metadata for a call that is made now. Looks once a second whether the token has changed."""
        if self._source is not None and self._clock() - self._checked >= _SECONDS_BETWEEN_CHECKS:
            self._checked = self._clock()
            version = self._source.version()
            if version is not None and version != self._version:
                self._read_again(self._source)
        return self._metadata

    def renew(self, refused: Metadata) -> bool:
        """Reads the token again after the server has refused it. Returns whether it has changed.

        Args:
            refused: The metadata of the call that was refused.
        """
        if self._source is not None:
            self._read_again(self._source)
        return self._metadata != refused

    def _read_again(self, source: TokenSource) -> None:
        # While a file is being replaced, it may be missing or empty. The last token may still be valid.
        with suppress(UsageError):
            self._read(source)

    def _read(self, source: TokenSource) -> None:
        # The version first: a change in between is then found by the next check.
        self._version = source.version()
        self._metadata = (("authorization", f"Bearer {source.read()}"),)
