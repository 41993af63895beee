"""Whose JSON web tokens are accepted, and what they grant. Needs no library, unlike verifying them."""

from __future__ import annotations

import stat
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from scankv.model.errors import UsageError
from streaming_server.access.grants import Grants
from streaming_server.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The algorithms that may be allowed. All are asymmetric: a key that verifies tokens cannot make one."""

_MAX_GRANTS_BYTES: Final = 4 * 1024 * 1024
_MAX_REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """Whose tokens are accepted. Immutable.

    Attributes:
        issuer: The required claim `iss`.
        audience: The value that the claim `aud` must be or contain.
        keys: The file with the public keys of the issuer. None: they are fetched from the issuer.
        ca: The file with the authorities to trust when keys are fetched. None: those that the machine trusts.
        grants: The file with grants by group.
        grants_claim: The claim with the groups of the caller.
        principal_claim: The claim with the name of the caller.
        shares_names: Whether a name is the principal of the same name in the token file.
        algorithms: The allowed algorithms, all of `ALGORITHMS`.
        leeway_seconds: How far the clock of the issuer may differ from that of this machine.
        max_key_age_seconds: How long fetched keys are used without having been fetched again.
    """

    issuer: str
    audience: str
    keys: Path | None
    ca: Path | None
    grants: Path
    grants_claim: str
    principal_claim: str
    shares_names: bool
    algorithms: tuple[str, ...]
    leeway_seconds: float
    max_key_age_seconds: float


def url_problem(url: str) -> str:
    """Returns why keys must not be fetched from a url; empty if they may be.

    An attacker who can change the keys on their way can make tokens for everything. So the connection must be
    encrypted, or must not leave this machine.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "it is not a url"
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        return "it is not a url"
    if parts.username is not None or parts.fragment:
        return "it has a user name or a fragment"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return ""
    return "it does not begin with https:// (http:// is allowed for loopback only)"


class GroupGrants:
    """The file with grants by group. Bound to the event loop.

    If the file changes and cannot be used any more, the grants that were read last stay valid.

    Args:
        path: The file, in TOML: the table `grants` has a list of grants for each group.

    Raises:
        UsageError: The file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._identity()
        self._by_group = _read_grants(path)
        self._grants: dict[tuple[str, ...], Grants] = {}

    def of(self, groups: tuple[str, ...]) -> Grants:
        """Returns what the members of these groups may do: the same object until the file changes."""
        known = self._grants.get(groups)
        if known is None:
            if len(self._grants) >= _MAX_REMEMBERED:
                self._grants.clear()
            texts = dict.fromkeys(text for group in groups for text in self._by_group.get(group, ()))
            known = self._grants[groups] = Grants(texts)
        return known

    def reload(self) -> str | None:
        """Reads the file again if it has changed. Returns what to log as an error; None for nothing."""
        identity = self._identity()
        if identity == self._seen:
            return None
        self._seen = identity
        try:
            self._by_group = _read_grants(self._path)
        except UsageError as error:
            return f"the grants read last stay valid, because of an error: {error.message}"
        self._grants = {}
        return None

    def _identity(self) -> tuple[int, ...] | None:
        return identity_of(self._path)


def identity_of(path: Path) -> tuple[int, ...] | None:
    """Returns a value that changes when a file is changed or replaced; None for no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


def read_protected(path: Path, what: str, option: str, max_bytes: int) -> bytes:
    """Reads a file that decides who may do what.

    Raises:
        UsageError: The file cannot be read, other users may change it, or it is too large.
    """
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be read: {error.strerror}", option=option) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"other users may change the {what} {path}: only its owner may; run: chmod go-w {path}", option=option
        )
    if len(data) > max_bytes:
        raise UsageError(f"the {what} {path} must have at most {max_bytes:,} bytes: is it another file?", option=option)
    return data


def _read_grants(path: Path) -> Mapping[str, tuple[str, ...]]:
    data = read_protected(path, "file of grants", "jwt_grants", _MAX_GRANTS_BYTES)
    try:
        stored = tomllib.loads(data.decode())
    except ValueError as error:
        raise UsageError(f"the file of grants {path} is not valid TOML: {error}", option="jwt_grants") from error
    groups = stored.get("grants")
    if set(stored) != {"grants"} or not isinstance(groups, dict):
        raise UsageError(
            f"the file of grants {path} must have the table [grants] and nothing else, with a list of grants for each "
            'group, as in analysts = ["read:sales.*"]',
            option="jwt_grants",
        )
    for group, texts in groups.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UsageError(
                f'the grants of "{group}" in {path} must be a list of strings, as in ["read:sales.*"]',
                option="jwt_grants",
            )
        Grants(texts)
    return {group: tuple(texts) for group, texts in groups.items()}
