"""Where are the sessions of the console? One small file for each, which is of no use without the browser's cookie.

A session has two random values: its path, to which the browser's cookie is limited, and the secret in the cookie. The
file is named by a hash of the path, and has the token encrypted with a key made from the secret. So the files, or a
copy of them, do not reveal a token, and the gateway itself has none until the browser sends its next request. The time
of the last use is the time of the file's last change. Nothing is kept in memory: sessions survive a restart of the
gateway, and removing a file ends its session.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.fernet import Fernet, InvalidToken

from http_gateway.problems import HttpRefusal

if TYPE_CHECKING:
    from pathlib import Path

_PATH_BYTES: Final = 24
_SECRET_BYTES: Final = 32
_CLOCK_STEP_SECONDS: Final = 60.0
_MAX_SESSIONS: Final = 1000
_MAX_SESSIONS_OF_TOKEN: Final = 20


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What the browser has of a session.

    Attributes:
        path: The part of its paths that names it. It appears in the history of the browser.
        secret: The value of its cookie.
    """

    path: str
    secret: str

    def derive(self, purpose: str) -> bytes:
        """Returns 32 bytes that only this session has, different ones for each purpose."""
        return hmac.digest(self.secret.encode(), f"{purpose}:{self.path}".encode(), "sha256")

    @property
    def name(self) -> str:
        """The name of its file."""
        return hashlib.sha256(self.path.encode()).hexdigest()


class SessionFiles:
    """The sessions of one gateway. Thread-safe.

    Args:
        directory: Where the files are. It is created on the first use, for its owner only.
        seconds: How long a session lasts at most.
        idle_seconds: How long a session lasts without use.
    """

    def __init__(self, directory: Path, *, seconds: float, idle_seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        # Without this lock, another login would remove a file that is still being written.
        self._beginning = threading.Lock()

    def begin(self, token: str, now: float) -> SessionKeys:
        """Makes a session for a token. Removes the sessions that have ended.

        A token has up to 20 sessions; beyond that, its least recently used one ends.

        Raises:
            HttpRefusal: There are too many sessions.
            OSError: The file cannot be written.
        """
        with self._beginning:
            return self._begin(token, now)

    def _begin(self, token: str, now: float) -> SessionKeys:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = hashlib.sha256(b"console:" + token.encode()).hexdigest()
        others, own = self._live_sessions(owner, now)
        for _, path in sorted(own)[: max(0, len(own) - _MAX_SESSIONS_OF_TOKEN + 1)]:
            path.unlink(missing_ok=True)
        if others + len(own) >= _MAX_SESSIONS:
            raise HttpRefusal(
                503, "TOO_MANY_SESSIONS", f"the console has {_MAX_SESSIONS:,} sessions: log out of one, or try later"
            )
        keys = SessionKeys(secrets.token_urlsafe(_PATH_BYTES), secrets.token_urlsafe(_SECRET_BYTES))
        text = json.dumps({"began": now, "owner": owner, "sealed": _seal(keys).encrypt(token.encode()).decode()})
        path = self._directory / keys.name
        # Written in place and not renamed, because after a crash, no session uses a file that was written in part.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(text)
        os.utime(path, (now, now))
        return keys

    def use(self, keys: SessionKeys, now: float) -> str | None:
        """Returns the token of a session, and records its use. None: the session does not exist, or has ended."""
        path = self._directory / keys.name
        found = self._read(path, now)
        if found is None:
            return None
        try:
            token = _seal(keys).decrypt(found.sealed).decode()
        except InvalidToken:
            return None
        with suppress(OSError):
            os.utime(path, (now, now))
        return token

    def end(self, keys: SessionKeys) -> None:
        """Ends a session. Raises OSError if its file cannot be removed."""
        (self._directory / keys.name).unlink(missing_ok=True)

    def _live_sessions(self, owner: str, now: float) -> tuple[int, list[tuple[float, Path]]]:
        """Returns how many sessions other tokens have, and last uses and files of this one's. Removes ended ones."""
        others, own = 0, []
        for path in self._directory.iterdir():
            found = self._read(path, now)
            if found is None:
                path.unlink(missing_ok=True)
            elif found.owner == owner:
                own.append((found.used, path))
            else:
                others += 1
        return others, own

    def _read(self, path: Path, now: float) -> _Session | None:
        """Returns what a file has. None: it cannot be read, or its session has ended."""
        try:
            with path.open() as file:
                used = os.fstat(file.fileno()).st_mtime
                fields = json.load(file)
            session = _Session(float(fields["began"]), used, str(fields["owner"]), str(fields["sealed"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        # Setting the clock far back must not make a session longer.
        is_live = -_CLOCK_STEP_SECONDS < now - session.began < self._seconds and now - session.used < self._idle_seconds
        return session if is_live else None


@dataclass(frozen=True, slots=True)
class _Session:
    began: float
    used: float
    owner: str
    sealed: str


def _seal(keys: SessionKeys) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(keys.derive("seal")))
