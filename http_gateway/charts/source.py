"""One history, and with whose rights it is sampled."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from aio_client._transport.tokens import TokenFile
from scankv.model.errors import PermissionDenied, ProtocolViolation, ScanKvError, Unauthenticated, UsageError
from scankv.model.forwarded_peers import GATEWAY_KEY, forwarded_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client
    from aio_client._transport.tokens import CallerToken
    from http_gateway.charts.history import History

_log = logging.getLogger(__name__)

OLD_SERVER: Final = "the server is older than this console and counts nothing for charts: upgrade it"

_ANSWER_SECONDS: Final = 4.0
"""How long a sample may take."""

_SLICE_SECONDS: Final = 0.002
"""How long adding a sample may keep the event loop at a time."""


class Rights(Protocol):
    """With whose rights a sample is taken."""

    def send(self, tokens: CallerToken) -> None:
        """Has the calls of the running task send what shows these rights. Raises UsageError if they cannot."""


class GatewayKey:
    """The rights of the server's own gateway, which it shows by its key. They hold only for this one call."""

    def __init__(self, key: str) -> None:
        self._key = key

    def send(self, tokens: CallerToken) -> None:
        """See `Rights`."""
        tokens.set(None)
        tokens.set_headers(_no_certificate(), (GATEWAY_KEY, self._key))


class FileToken:
    """The token in a file, which is read again when the file changes.

    Raises:
        UsageError: The file cannot be read, has no token, or other users may read it.
    """

    def __init__(self, path: str) -> None:
        self._file = TokenFile(path)
        self._read = self._version(), self._token()

    def send(self, tokens: CallerToken) -> None:
        """See `Rights`."""
        version = self._version()
        if version != self._read[0]:
            self._read = version, self._token()
        tokens.set(self._read[1])
        tokens.set_headers(_no_certificate())

    def _version(self) -> object:
        return self._file.version(), self._mode()

    def _mode(self) -> int:
        try:
            return Path(self._file.path).expanduser().stat().st_mode
        except OSError:
            return 0  # Reading it reports this.

    def _token(self) -> str:
        if os.name == "posix" and self._mode() & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(
                f"other users may read the token file {self._file.path} (mode {stat.S_IMODE(self._mode()):o}): run "
                f"chmod 600 {self._file.path}",
                option="charts_token_file",
            )
        return self._file.read()


class PageToken:
    """The token of the reader of a page, or none if the server asks for none."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def send(self, tokens: CallerToken) -> None:
        """See `Rights`."""
        tokens.set(self._token)
        tokens.set_headers(_no_certificate())


def _no_certificate() -> tuple[str, str]:
    """Returns metadata by which the call does not get the rights of the gateway's own certificate."""
    return forwarded_peer("", "")


class Source:
    """A history that is sampled with certain rights. Bound to the event loop.

    Args:
        rights: With whose rights it is sampled.
        history: Where the samples go.
        now: The time.

    Attributes:
        history: What was sampled.
        began_at: When sampling began.
        problem: Why the latest sample is missing. Empty: it is there.
    """

    def __init__(self, rights: Rights, history: History, now: float) -> None:
        self.history = history
        self.began_at = now
        self.problem = ""
        self._rights = rights
        self._sampling: asyncio.Task[None] | None = None
        self._is_closed = False

    def start_sample(self, client: Client, tokens: CallerToken, clock: Callable[[], float]) -> None:
        """Begins to take a sample, unless one is still being taken."""
        if self._is_closed or (self._sampling is not None and not self._sampling.done()):
            return
        # A task of its own, whose calls send the token of no other one.
        self._sampling = asyncio.create_task(self._sample(client, tokens, clock))

    async def close(self) -> None:
        """Ends sampling at once. A sample that is being taken is given up."""
        self._is_closed = True
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    async def _sample(self, client: Client, tokens: CallerToken, clock: Callable[[], float]) -> None:
        asked_at = clock()
        try:
            self._rights.send(tokens)
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await client._activity(self.history.read_at_micros)
        except (ScanKvError, TimeoutError) as error:
            self._record_problem(error)
            return
        began = time.perf_counter()
        for _ in self.history.add_in_steps(asked_at, answer):
            if time.perf_counter() - began > _SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.perf_counter()
        self.problem = ""

    def _record_problem(self, error: Exception) -> None:
        problem = _text_of(error)
        if problem != self.problem:
            # Only the log has the path of a token file.
            detail = error.message if isinstance(error, UsageError) else problem
            _log.warning("the charts of the console are not sampled: %s", detail)
        self.problem = problem


def _text_of(error: Exception) -> str:
    """Returns why a sample is missing, without anything secret."""
    match error:
        case Unauthenticated():
            return "the server does not accept the token with which charts are sampled: replace it"
        case PermissionDenied():
            return "the token with which charts are sampled may read no table: replace it"
        case ProtocolViolation():
            return OLD_SERVER
        case UsageError():
            return "the token file of the gateway cannot be used: see the log of the gateway"
    return f"the server did not answer within {_ANSWER_SECONDS:g} s: the gateway asks again"
