"""Where are the sessions of the console? One small file for each, which is of no use without the browser's cookie.

A session has two random values: its path, to which the browser's cookie is limited, and the secret in the cookie. The
file is named by a hash of the path, and has the token encrypted with a key made from the secret. So the files, or a
copy of them, do not reveal a token, and the gateway itself has none until the browser sends its next request. The time
of the last use is the time of the file's last change. Sessions survive a restart of the gateway, and removing a file
ends its session: memory has only when each began and must end, and a hash of whose it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cryptography.fernet import Fernet, InvalidToken

if TYPE_CHECKING:
    from pathlib import Path

_PATH_BYTES: Final = 24
_SECRET_BYTES: Final = 32
_CLOCK_STEP_SECONDS: Final = 60.0
_MAX_SESSIONS: Final = 1000
_MAX_SESSIONS_OF_OWNER: Final = 20


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
        most: The most sessions.
    """

    def __init__(self, directory: Path, *, seconds: float, idle_seconds: float, most: int = _MAX_SESSIONS) -> None:
        self._directory = directory
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        self._most = most
        # Without this lock, another login would remove a file that is still being written.
        self._beginning = threading.Lock()
        # What never changes, by name, so that a login does not read the files of all others.
        self._known: dict[str, _Session] = {}

    def begin(self, token: str, now: float, until: float | None = None) -> SessionKeys:
        """Makes a session for a token. Removes the sessions that have ended.

        An owner, which is a token or the subject of web tokens, has up to 20 sessions; beyond that, the least recently
        used one ends. If there are too many, that of the owner with the most sessions does.

        Args:
            token: One that the server has accepted.
            now: The time in seconds since 1970.
            until: When the token expires. None: never, or unknown.

        Raises:
            OSError: The file cannot be written.
        """
        with self._beginning:
            return self._begin(token, now, until)

    def _begin(self, token: str, now: float, until: float | None) -> SessionKeys:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = _owner_of(token)
        self._make_room(owner, now)
        keys = SessionKeys(secrets.token_urlsafe(_PATH_BYTES), secrets.token_urlsafe(_SECRET_BYTES))
        sealed = _seal(keys).encrypt(token.encode()).decode()
        text = json.dumps({"began": now, "until": until, "owner": owner, "sealed": sealed})
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
        found = _read(path)
        if found is None or not self._is_live(found, now):
            return None
        try:
            token = _seal(keys).decrypt(found.sealed).decode()
        except InvalidToken:
            return None
        with suppress(OSError):
            os.utime(path, (now, now))
        return token

    def is_live(self, keys: SessionKeys, now: float) -> bool:
        """Returns whether a session has not ended, which is no use of it."""
        found = _read(self._directory / keys.name)
        return found is not None and self._is_live(found, now)

    def end(self, keys: SessionKeys) -> None:
        """Ends a session. Raises OSError if its file cannot be removed."""
        (self._directory / keys.name).unlink(missing_ok=True)

    def _make_room(self, owner: str, now: float) -> None:
        live = self._live_sessions(now)
        counts = Counter(session.owner for session, _ in live)
        if counts[owner] >= _MAX_SESSIONS_OF_OWNER:
            ending = owner
        elif len(live) >= self._most:
            ((ending, _),) = counts.most_common(1)
        else:
            return
        _, path = min((session.used, path) for session, path in live if session.owner == ending)
        path.unlink(missing_ok=True)

    def _live_sessions(self, now: float) -> list[tuple[_Session, Path]]:
        """Returns all sessions with their files. Removes those that have ended."""
        known, live = self._known, []
        self._known = {}
        for path in self._directory.iterdir():
            found = known.get(path.name) or _read(path)
            with suppress(FileNotFoundError):
                if found is not None:
                    found = replace(found, used=path.stat().st_mtime, sealed="")
            if found is None or not self._is_live(found, now):
                path.unlink(missing_ok=True)
            else:
                self._known[path.name] = found
                live.append((found, path))
        return live

    def _is_live(self, session: _Session, now: float) -> bool:
        # A clock that is set back far must not make a session longer.
        is_young = -_CLOCK_STEP_SECONDS < now - session.began < self._seconds
        is_young = is_young and (session.until is None or now < session.until)
        return is_young and now - session.used < self._idle_seconds


def web_claims(token: str) -> dict[str, Any] | None:
    """Returns the claims of a JSON web token, which it does not check. None: the token is another one."""
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return None
    return claims if isinstance(claims, dict) else None


def _owner_of(token: str) -> str:
    """Returns a hash of whose a token is. Somebody may have any number of web tokens."""
    claims = web_claims(token) or {}
    owner = json.dumps([claims["iss"], claims["sub"]]) if "iss" in claims and "sub" in claims else token
    return hashlib.sha256(f"console:{owner}".encode()).hexdigest()


def _read(path: Path) -> _Session | None:
    """Returns what a file has; None if there is none, or it is not one of a session."""
    try:
        with path.open() as file:
            used = os.fstat(file.fileno()).st_mtime
            fields = json.load(file)
        began, until = float(fields["began"]), fields.get("until")  # earlier versions did not write the end
        return _Session(
            began, None if until is None else float(until), used, str(fields["owner"]), str(fields["sealed"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class _Session:
    began: float
    until: float | None
    used: float
    owner: str
    sealed: str


def _seal(keys: SessionKeys) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(keys.derive("seal")))
