"""The token file: one JSON object a line for each token, with a hash of the token and what it grants.

A line may have the name of client certificates instead of the hash. It is called a token all the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import stat
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import UsageError
from streaming_server.access.certificates import checked_name
from streaming_server.access.grants import Grants
from streaming_server.access.limits import CallerLimits
from streaming_server.access.principals import reserved_prefix
from streaming_server.storage.files.checked_json import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PREFIX: Final = "skv"

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_MAX_PRINCIPAL: Final = 128
_REQUIRED: Final = frozenset({"id", "principal", "grants", "created"})
_FIELDS: Final = _REQUIRED | {"sha256", "certificate", "expires", "revoked", "limits"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """What the token file knows of one token. Immutable.

    The file has the SHA-256 of the token. A slow hash or a salt would add nothing: the secret has 256 random bits, so
    it can neither be guessed nor be found in a table of hashes.

    Attributes:
        id: The id of the token, which is part of the token.
        principal: Whom the token stands for, in the audit log.
        sha256: The SHA-256 of the complete token, in hexadecimal digits. Empty: certificates take the place of a token.
        certificate: A name in certificates of clients, as in `CN=reports`. Their calls need no token. Empty: none.
        grants: The grants, each as `role:pattern`.
        created: When the token was created, as an ISO 8601 time.
        expires: When the token stops being valid. None: never.
        revoked: When the token was revoked. None: it was not.
        limits: The limits of the caller that differ from those of the server for every caller, by name.
    """

    id: str
    principal: str
    grants: tuple[str, ...]
    created: str
    sha256: str = field(default="", repr=False)
    certificate: str = ""
    expires: str | None = None
    revoked: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def expires_at(self) -> float | None:
        """The seconds since 1970 UTC at which the token stops being valid. None: it does not expire."""
        return None if self.expires is None else datetime.fromisoformat(self.expires).timestamp()

    def state(self, now: float) -> str:
        """Returns `revoked`, `expired` or `valid`, at a time in seconds since 1970 UTC."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"


def hash_of(token: str) -> str:
    """Returns the hash by which the token file knows a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def id_of(token: str) -> str | None:
    """Returns the id in a token, or None for something else than a token of a token file."""
    prefix, _, rest = token.partition("_")
    id_, _, secret = rest.partition("_")
    return id_ if prefix == PREFIX and id_ and secret else None


def read_tokens(path: Path) -> dict[str, TokenRecord]:
    """Reads a token file. Returns its records by id, in the order of the file.

    Raises:
        UsageError: The file does not exist, may be changed by other users, or has a line that is not a token record.
            The message has no content of the file.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().splitlines()
    except OSError as error:
        raise UsageError(
            f"the token file {path} cannot be read: {error.strerror}; create a token with: scankv tokens create",
            option="tokens",
        ) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"other users may change the token file {path}: only its owner may; run: chmod 600 {path}", option="tokens"
        )
    records: dict[str, TokenRecord] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _parse(line)
        if isinstance(record, str) or record.id in records:
            problem = record if isinstance(record, str) else f"the id {record.id} occurs twice"
            raise UsageError(f"line {number} of the token file {path} is not valid: {problem}", option="tokens")
        records[record.id] = record
    return records


def _parse(line: bytes) -> TokenRecord | str:
    """Returns the record in a line, or what is wrong with the line."""
    try:
        stored = json.loads(line)
    except ValueError:
        return "it is not JSON"
    if not isinstance(stored, dict) or not _REQUIRED <= set(stored) <= _FIELDS:
        return f"it must be a JSON object with {', '.join(sorted(_FIELDS))}"
    try:
        record = TokenRecord(**{**stored, "grants": tuple(stored["grants"])})
        _check(record)
    except UsageError as error:
        return error.message
    except (TypeError, ValueError, AttributeError):
        return "a field has a value of the wrong type"
    return record


def _check(record: TokenRecord) -> None:
    Grants(record.grants)
    check_limits(record.limits)
    check_principal(record.principal)
    for instant in (record.created, record.expires, record.revoked):
        if instant is not None and datetime.fromisoformat(instant).tzinfo is None:
            raise UsageError("a time has no time zone: append Z")
    if bool(record.sha256) == bool(record.certificate):
        raise UsageError("it must have either sha256 or certificate")
    if record.sha256 and len(bytes.fromhex(record.sha256)) != hashlib.sha256().digest_size:
        raise UsageError("sha256 must be 64 hexadecimal digits")
    if record.certificate and record.certificate != (name := checked_name(record.certificate)):
        raise UsageError(f"certificate must be written as {name}, not {record.certificate}")
    if not record.id.isalnum():
        raise UsageError("id must consist of letters and digits")


def check_limits(limits: Mapping[str, float]) -> None:
    """Raises UsageError unless the limits exist and have values that are allowed."""
    names = [each.name for each in fields(CallerLimits)]
    if unknown := sorted(set(limits) - set(names)):
        raise UsageError(f"limits has the unknown limit {unknown[0][:_MAX_PRINCIPAL]!r}: write {', '.join(names)}")
    CallerLimits().overridden_by(limits)


def check_principal(name: str) -> None:
    """Raises UsageError unless the text can be the name of a principal."""
    if not 0 < len(name) <= _MAX_PRINCIPAL or not name.isprintable():
        raise UsageError(f"principal must be 1 to {_MAX_PRINCIPAL} printable characters, not {name[:_MAX_PRINCIPAL]!r}")


def create_token(
    path: Path,
    principal: str,
    grants: Sequence[str],
    *,
    now: datetime,
    expires: datetime | None = None,
    limits: Mapping[str, float] | None = None,
    certificate: str | None = None,
) -> tuple[TokenRecord, str]:
    """Adds a token to a token file, which is created if it does not exist.

    With the name of certificates, as in `CN=reports`, these take its place, and the token that is returned is empty.

    Returns:
        The record, and the token, which is not stored anywhere.

    Raises:
        UsageError: The principal, a grant, a limit or the name of certificates is malformed, the expiry has passed, or
            the file cannot be changed.
    """
    check_principal(principal)
    if prefix := reserved_prefix(principal):
        raise UsageError(
            f"principal must not begin with {prefix}, not {principal}: choose another name, because principals of "
            "other kinds begin like this"
        )
    check_limits(limits or {})
    Grants(grants)
    if not grants:
        raise UsageError("the token has no grants: give at least one, as in read:sales.*")
    if expires is not None and expires <= now:
        raise UsageError(f"expires must be in the future, not {expires.isoformat()}")
    certificate = "" if certificate is None else checked_name(certificate)
    with _editing(path) as records:
        id_ = secrets.token_hex(_ID_BYTES)
        token = "" if certificate else f"{PREFIX}_{id_}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        record = TokenRecord(
            id=id_,
            principal=principal,
            sha256=hash_of(token) if token else "",
            certificate=certificate,
            grants=tuple(grants),
            created=_text(now),
            expires=None if expires is None else _text(expires),
            limits=dict(limits or {}),
        )
        records[id_] = record
    return record, token


def revoke_tokens(path: Path, ids: Sequence[str], *, now: datetime) -> list[str]:
    """Revokes tokens, and returns the ids that the file does not have. Tokens that were revoked before stay revoked."""
    with _editing(path) as records:
        for id_ in ids:
            if id_ in records and records[id_].revoked is None:
                records[id_] = replace(records[id_], revoked=_text(now))
        return [id_ for id_ in ids if id_ not in records]


@contextmanager
def _editing(path: Path) -> Iterator[dict[str, TokenRecord]]:
    """Yields the records for changes, and replaces the file atomically and durably. Excludes other processes."""
    try:
        lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"the directory {path.parent} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = read_tokens(path) if path.exists() else {}
        yield records
        _write(path, records)
    except OSError as error:
        raise UsageError(f"the token file {path} cannot be written: {error.strerror}") from error
    finally:
        os.close(lock)


def _write(path: Path, records: dict[str, TokenRecord]) -> None:
    # A link stays a link: its target is replaced.
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.writelines(json.dumps(_stored(record)) + "\n" for record in records.values())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def _stored(record: TokenRecord) -> dict[str, Any]:
    stored = asdict(record)
    # Older servers do not know limits and certificates.
    return {name: value for name, value in stored.items() if value or name not in ("limits", "sha256", "certificate")}


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
