"""Who calls: tokens are verified here, and the token file is read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError
from streaming_server.access.grants import Grants
from streaming_server.access.principals import principal_in_file
from streaming_server.access.token_file import id_of, read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streaming_server.access.certificates import ClientCertificate
    from streaming_server.access.token_file import TokenRecord

_log = logging.getLogger(__name__)

_NO_HASH: Final = bytes(hashlib.sha256().digest_size)
_MOST_CERTIFIED: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class CallerIdentity:
    """Who made a call, and what the caller may do. Immutable.

    Attributes:
        principal: The principal of the caller, which says where its name comes from: see `principals`.
        grants: What the caller may do.
        token_id: The id of the caller's token in the token file. Empty: another source vouches for the caller.
        expires_at: The seconds since 1970 UTC at which the token stops being valid. None: it does not expire.
        limits: The limits that the token sets, by name. Others are those of the server for every caller.
        certificate_ends: The seconds since 1970 UTC at which the certificate ends that takes the place of a token.
            None: the caller has a token.
        certificate: The name of the certificate in the caller's line of the token file. Empty: the caller has a token.
        token_hash: The SHA-256 of the caller's token in the token file. Empty: the caller has no token of this file.
    """

    principal: str
    grants: Grants
    token_id: str = ""
    expires_at: float | None = None
    limits: tuple[tuple[str, float], ...] = ()
    certificate_ends: float | None = None
    certificate: str = ""
    token_hash: bytes = field(default=b"", repr=False)


ANYBODY: Final = CallerIdentity("", Grants(["admin:*"]))
"""The caller where no tokens are asked for."""

STREAM_CALLER: ContextVar[CallerIdentity | None] = ContextVar("stream_caller", default=None)
"""The caller of the stream that the current task serves. None: no stream, or no tokens are asked for."""


class TokenStore:
    """The tokens of a token file. Bound to the event loop.

    If the file changes and cannot be read any more, the tokens that were read last stay valid, and the log says why: a
    mistake in the file must not lock all callers out.

    Args:
        path: The token file.
        now: Returns the seconds since 1970 UTC.

    Raises:
        UsageError: The file cannot be used.
    """

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now
        self._seen = self._identity()
        self._load(read_tokens(path))

    def _load(self, records: dict[str, TokenRecord]) -> None:
        # By token, so that only the first call with each computes its hash.
        self._verified: dict[str, CallerIdentity] = {}
        self._hashes = {id_: bytes.fromhex(record.sha256) for id_, record in records.items() if record.sha256}
        self._certified: dict[tuple[str, float], CallerIdentity] = {}
        self._certificates = {id_: record.certificate for id_, record in records.items() if record.certificate}
        self._by_certificate: dict[str, list[str]] = {}
        for id_, name in self._certificates.items():
            self._by_certificate.setdefault(name, []).append(id_)
        self._places = {id_: place for place, id_ in enumerate(records)}
        self._revoked = {id_ for id_, record in records.items() if record.revoked is not None}
        self._callers = {
            id_: CallerIdentity(
                principal_in_file(record.principal),
                Grants(record.grants),
                id_,
                record.expires_at,
                tuple(record.limits.items()),
                token_hash=self._hashes.get(id_, b""),
            )
            for id_, record in records.items()
        }

    def find(self, token: str) -> CallerIdentity | None:
        """Returns the caller with a token that was verified before and is valid; None if `verify` must look at it."""
        caller = self._verified.get(token)
        if caller is None or (caller.expires_at is not None and caller.expires_at <= self._now()):
            return None
        return caller

    def verify(self, token: str) -> CallerIdentity | str:
        """Returns the caller with a token, or why the token is refused, for the log only."""
        id_ = id_of(token)
        if id_ is None:
            return "the token is malformed"
        if id_ not in self._hashes:
            self.reload()
        # Takes the same time whether the id is known or not.
        presented = hashlib.sha256(token.encode()).digest()
        if not hmac.compare_digest(presented, self._hashes.get(id_, _NO_HASH)):
            return "the token is unknown"
        found = self._current(id_)
        if isinstance(found, CallerIdentity):
            self._verified[token] = found
        return found

    def identify(self, certificate: ClientCertificate) -> CallerIdentity | str:
        """Returns the caller with a certificate, or why the certificate is refused, for the log only.

        Of several valid lines in the file that name it, the last one counts.
        """
        found = self._identify(certificate)
        if not isinstance(found, CallerIdentity):
            self.reload()
            found = self._identify(certificate)
        return found

    def _identify(self, certificate: ClientCertificate) -> CallerIdentity | str:
        found: CallerIdentity | str = f"no line of the token file names the certificate {certificate}"
        for id_ in self._lines_of(certificate):
            found = self.certified(id_, certificate.ends)
            if isinstance(found, CallerIdentity):
                return found
        return found

    def _lines_of(self, certificate: ClientCertificate) -> list[str]:
        found = {id_ for name in certificate.names for id_ in self._by_certificate.get(name, ())}
        return sorted(found, key=self._places.__getitem__, reverse=True)

    def certified(self, id_: str, ends: float) -> CallerIdentity | str:
        """Returns the caller with a certificate that a line of the file names, or why it is refused.

        Args:
            id_: The id of the line.
            ends: When the certificate ends.
        """
        if id_ not in self._callers:
            self.reload()
        if id_ not in self._callers:
            return "the token was removed from the token file"
        if id_ not in self._certificates:
            return f"the token {id_} is no longer for a certificate"
        found = self._current(id_)
        if not isinstance(found, CallerIdentity):
            return found
        if ends <= self._now():
            return f"the certificate of {found.principal} has expired"
        known = self._certified.get((id_, ends))
        if known is None:
            if len(self._certified) >= _MOST_CERTIFIED:
                self._certified.clear()
            last = ends if found.expires_at is None else min(ends, found.expires_at)
            known = self._certified[id_, ends] = replace(
                found, expires_at=last, certificate_ends=ends, certificate=self._certificates[id_]
            )
        return known

    def renewed(self, caller: CallerIdentity) -> CallerIdentity | str:
        """Returns a caller who was verified before as of now, or why the caller's token is no longer valid."""
        if caller.certificate_ends is not None:
            found = self.certified(caller.token_id, caller.certificate_ends)
            if isinstance(found, CallerIdentity) and found.certificate != caller.certificate:
                return f"the token {caller.token_id} of {caller.principal} is now for another certificate"
            return found
        if caller.token_id not in self._callers:
            return "the token was removed from the token file"
        if self._hashes.get(caller.token_id) != caller.token_hash:
            return f"the line {caller.token_id} of {caller.principal} is now for another token"
        return self._current(caller.token_id)

    def _current(self, id_: str) -> CallerIdentity | str:
        caller = self._callers[id_]
        if id_ in self._revoked:
            return f"the token {id_} of {caller.principal} was revoked"
        if caller.expires_at is not None and caller.expires_at <= self._now():
            return f"the token {id_} of {caller.principal} has expired"
        return caller

    def reload(self) -> None:
        """Reads the file again if it has changed."""
        identity = self._identity()
        if identity == self._seen:
            return
        self._seen = identity
        try:
            records = read_tokens(self._path)
        except UsageError as error:
            _log.error("the tokens read last stay valid, because of an error: %s", error.message)
            return
        self._load(records)
        _log.info("read %d tokens from %s, because it has changed", len(records), self._path)

    def _identity(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
