"""The token that authenticates a client: where it comes from, and how it stays out of everything but the calls.

A *source* says where the token is. Sources are compared, shown and pickled, so none of them shows or pickles a token.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import re
from abc import ABC, abstractmethod
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from aio_client._input.immutable import Immutable
from scankv.model.errors import ScanKvError, Unauthenticated, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# gRPC refuses metadata of more than 16 KiB, and other headers need some of that.
_MAX_TOKEN_BYTES: Final = 12 * 1024
# What HTTP allows in a header, without spaces.
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class TokenSource(Immutable, ABC):
    """Where a token comes from. Its `repr` and its pickles never contain the token."""

    __slots__ = ()


class StoredToken(TokenSource):
    """A token that can be read at once."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> str:
        """Returns the token as it is now.

        Raises:
            UsageError: There is no token, or it cannot be sent.
        """

    def version(self) -> object:
        """Returns a value that changes when the token may have changed, at little cost. None: never, or unknown."""
        return None


class TokenFile(StoredToken):
    """A file that contains a token, and nothing else but white space around it.

    The client reads the file again when it changes, and when the server refuses the token. So a token can be replaced
    while clients are connected. Picklable: a pickle has the path, and the process that unpickles it reads its own file.

    Attributes:
        path: The file; `~` stands for the home directory of the user whose process reads the file.
    """

    __slots__ = ("path",)

    path: str

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads nothing yet.

        Args:
            path: The file.

        Raises:
            UsageError: The path is empty or no path.
        """
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise UsageError(f"the path of a token file must be a path, not {type(path).__name__}", option="token")
        self._set(path=os.fspath(path))

    def read(self) -> str:
        """See `StoredToken.read`."""
        try:
            with open(Path(self.path).expanduser(), "rb") as file:
                data = file.read(_MAX_TOKEN_BYTES + 1024)
        except OSError as error:
            raise UsageError(
                f"the token file {self.path} cannot be read: {error.strerror}; it must contain a token", option="token"
            ) from None
        return check_token(data.decode("latin-1").strip(), f"the token file {self.path}")

    def version(self) -> object:
        """See `StoredToken.version`."""
        try:
            status = os.stat(Path(self.path).expanduser())
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def __repr__(self) -> str:
        return f"TokenFile({self.path!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return TokenFile, (self.path,)


class TokenEnv(StoredToken):
    """An environment variable that contains a token.

    Picklable: a pickle has the name of the variable, and the process that unpickles it reads its own environment.

    Attributes:
        name: The name of the variable.
    """

    __slots__ = ("name",)

    name: str

    def __init__(self, name: str) -> None:
        """Reads nothing yet.

        Args:
            name: The name of the variable.

        Raises:
            UsageError: A variable cannot have this name.
        """
        # A token that is given by mistake must not appear in the message.
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(
                "the name of an environment variable with a token must be a letter or _, followed by letters, digits "
                "and _, and the given one is not: give the name of the variable, not the token",
                option="token",
            )
        self._set(name=name)

    def read(self) -> str:
        """See `StoredToken.read`."""
        token = os.environ.get(self.name, "").strip()
        if not token:
            raise UsageError(
                f"the environment variable {self.name} must contain a token, and it is not set in this process",
                option="token",
            )
        return check_token(token, f"the environment variable {self.name}")

    def __repr__(self) -> str:
        return f"TokenEnv({self.name!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return TokenEnv, (self.name,)


class TokenText(StoredToken):
    """A token that the caller has given as text. Cannot be pickled, because a pickle would contain it."""

    __slots__ = ("_token",)

    _token: str

    def __init__(self, token: str) -> None:
        """Raises UsageError if the token cannot be sent."""
        self._set(_token=check_token(token, "token"))

    def read(self) -> str:
        """See `StoredToken.read`."""
        return self._token

    def __repr__(self) -> str:
        return "<a token>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a token that was given as text is not pickled, because any reader of the pickle could use it: give a "
            "TokenFile or a TokenEnv, which is pickled as a path or a name",
            option="token",
        )


class TokenFunction(TokenSource):
    """A function of the caller that returns a token. Cannot be pickled, because other processes could not call it."""

    __slots__ = ("_function",)

    _function: Callable[[], str | Awaitable[str]]

    def __init__(self, function: Callable[[], str | Awaitable[str]]) -> None:
        """Calls nothing yet."""
        self._set(_function=function)

    async def call(self, timeout: float) -> str:
        """Returns a token from the function. One that is not asynchronous runs in a thread, because it may block.

        Args:
            timeout: The seconds that the function has.

        Raises:
            Unauthenticated: The function raised an exception, or took too long.
            UsageError: It returned something else than a token.
        """
        called = asyncio.timeout(timeout)
        try:
            async with called:
                returned = self._function() if self._is_async else await asyncio.to_thread(self._function)
                token = await returned if inspect.isawaitable(returned) else returned
        except ScanKvError:
            raise
        except Exception as error:
            problem = f"has not returned within {timeout:g} s" if called.expired() else f"raised {type(error).__name__}"
            raise Unauthenticated(
                f"the function that was given as token {problem}, so the call was not made: it must return a token"
            ) from error
        if not isinstance(token, str):
            raise UsageError(
                f"the function that was given as token must return a str, not a {type(token).__name__}", option="token"
            )
        return check_token(token, "what the function that was given as token returned")

    @property
    def _is_async(self) -> bool:
        function = self._function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def __repr__(self) -> str:
        return "<a token of a function>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a function that was given as token is not pickled, because the process that unpickles it could not call "
            "it: give a TokenFile or a TokenEnv, which is pickled as a path or a name",
            option="token",
        )


class CallerToken(TokenSource):
    """The token of whomever this program makes a call for, for programs that make calls for many others.

    Each task sets the token that its own calls send, and what else they send about the caller. Tasks that it starts
    afterwards inherit both. So all callers share the connections of one client. Rule: share no object between tasks
    that makes calls later or for several of them at once, such as a `Table`.

    Cannot be pickled, because another process has other callers.
    """

    __slots__ = ("_current", "_headers")

    _current: ContextVar[str | None]
    _headers: ContextVar[tuple[tuple[str, str], ...]]

    def __init__(self) -> None:
        """Starts without a token."""
        self._set(_current=ContextVar("caller_token", default=None), _headers=ContextVar("caller_headers", default=()))

    def set(self, token: str | None) -> None:
        """Has later calls of the running task send a token.

        Args:
            token: The token. None: they send none.

        Raises:
            UsageError: The token cannot be sent.
        """
        self._current.set(None if token is None else check_token(token, "the caller"))

    def get(self) -> str | None:
        """Returns the token that calls of the running task send."""
        return self._current.get()

    def set_headers(self, *headers: tuple[str, str]) -> None:
        """Has later calls of the running task send further metadata about the caller, as names and values."""
        self._headers.set(headers)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Returns the further metadata that calls of the running task send."""
        return self._headers.get()

    def __repr__(self) -> str:
        return "<the tokens of callers>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("the tokens of callers are not pickled: another process has other callers", option="token")


def token_source(token: object) -> TokenSource | None:
    """Returns the source for the argument `token` of `connect`; None for None.

    Raises:
        UsageError: It is none of text, a path, a source and a function, or cannot be sent as a token.
    """
    match token:
        case None | TokenSource():
            return token
        case str():
            return TokenText(token)
        case os.PathLike():
            return TokenFile(token)
    if callable(token) and not isinstance(token, type):
        return TokenFunction(token)
    raise UsageError(
        f"token must be a str, the path of a file as pathlib.Path or TokenFile, a TokenEnv, or a function that returns "
        f"a str, not a {type(token).__name__}",
        option="token",
    )


def expiry_of(token: str) -> float | None:
    """Returns when a JSON web token expires, in seconds since 1970 UTC. None: it is another token, or never expires.

    Its signature is not verified. Only the server can decide whether the token is valid.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = claims.get("exp")
        return float(expires) if isinstance(expires, int | float) and not isinstance(expires, bool) else None
    except (ValueError, AttributeError, OverflowError, RecursionError):
        return None


def check_token(token: str, where: str) -> str:
    """Returns the token. The message of an error says where it is, and never contains it.

    Raises:
        UsageError: The token is empty, too long, or has a character that a header must not have.
    """
    if not token:
        raise UsageError(f"{where} must contain a token, and is empty", option="token")
    if len(token) > _MAX_TOKEN_BYTES:
        raise UsageError(
            f"{where} has more than {_MAX_TOKEN_BYTES:,} bytes, which is the limit of a token: is it another file?",
            option="token",
        )
    if not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{where} must contain one token of visible ASCII characters, and has others (which are not shown here)",
            option="token",
        )
    return token
