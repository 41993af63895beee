"""Verifies JSON web tokens of one issuer (RFC 7519; for what to beware of, RFC 8725)."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import jwt

from scankv.model.errors import UsageError
from streaming_server.access.callers import CallerIdentity
from streaming_server.access.jwt_settings import GroupGrants
from streaming_server.access.principals import issued_principal
from streaming_server.access.signing_keys import IssuerKeys, KeyFile, KeySource, suitable_keys
from streaming_server.access.token_file import check_principal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streaming_server.access.jwt_settings import JwtSettings

_log = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 10_000
_MAX_SECONDS: Final = 1e12
_UNKNOWN_KEY: Final = "no known key of the issuer fits the token"
_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.InvalidSignatureError: "the signature is wrong",
    jwt.InvalidIssuerError: "the token is of another issuer",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.MissingRequiredClaimError: "the token lacks exp, iss or aud",
}


@dataclass(frozen=True, slots=True, eq=False)
class IssuedCaller(CallerIdentity):
    """A caller for whom an issuer vouches. Immutable.

    Attributes:
        groups: The groups of the caller.
        key: The fingerprint of the key that signed the token.
    """

    groups: tuple[str, ...] = ()
    key: bytes = b""


class JwtVerifier:
    """Verifies the tokens of one issuer, each once: later calls with the same token cost one hash.

    Bound to the event loop.

    Args:
        settings: Whose tokens are accepted, and what they grant.
        now: Returns the seconds since 1970 UTC.
        keys: The keys of the issuer. None: as the settings say.

    Raises:
        UsageError: A file that the settings name cannot be used.
    """

    def __init__(self, settings: JwtSettings, now: Callable[[], float], keys: KeySource | None = None) -> None:
        self._settings = settings
        self._now = now
        self._grants = GroupGrants(settings.grants)
        if keys is None:
            keys = IssuerKeys(settings) if settings.keys is None else KeyFile(settings.keys)
        self._keys = keys
        # By hash, so that the memory of the server does not keep tokens. The oldest first.
        self._verified: dict[bytes, IssuedCaller] = {}

    async def verify(self, token: str) -> CallerIdentity | str:
        """Returns the caller with a token, or why the token is refused, for the log only.

        Waits a few seconds at most for new keys if the token names an unknown one.
        """
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is not None:
            found = self.renewed(known)
            if found is known:
                return known
            del self._verified[digest]
        else:
            found = self._verify(token)
            if found == _UNKNOWN_KEY:
                await self._keys.renew()
                found = self._verify(token)
        if isinstance(found, IssuedCaller):
            if len(self._verified) >= _MAX_REMEMBERED:
                del self._verified[next(iter(self._verified))]
            self._verified[digest] = found
        return found

    def renewed(self, caller: IssuedCaller) -> IssuedCaller | str:
        """Returns a caller who was verified before as of now, or why the caller's token is no longer valid."""
        if caller.expires_at is None or caller.expires_at <= self._now():
            return f"the token of {caller.principal} has expired"
        if not any(key.fingerprint == caller.key for key in self._keys.keys()):
            return f"the key that signed the token of {caller.principal} is no longer valid"
        grants = self._grants.of(caller.groups)
        return caller if grants is caller.grants else replace(caller, grants=grants)

    def check(self) -> None:
        """Looks at the files, and whether it is time to fetch keys. Called every second."""
        if problem := self._grants.reload():
            _log.error("%s", problem)
        self._keys.check()

    async def run(self) -> None:
        """Keeps the keys up to date until it is cancelled."""
        await self._keys.run()

    def _verify(self, token: str) -> IssuedCaller | str:
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            return "the token is malformed"
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
            return "the token is signed with an algorithm that is not allowed"
        candidates = suitable_keys(self._keys.keys(), header.get("kid"), algorithm)
        reason = _UNKNOWN_KEY
        for key in candidates:
            try:
                claims = jwt.decode(
                    token,
                    key.public,
                    algorithms=[algorithm],
                    audience=settings.audience,
                    issuer=settings.issuer,
                    # Checked below, by the clock of the server.
                    options={
                        "require": ["exp", "iss", "aud"],
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                    },
                )
            except (jwt.PyJWTError, ValueError) as error:
                reason = _REASONS.get(type(error), "the token is malformed")
                continue
            return self._caller_of(claims, key.fingerprint)
        return reason

    def _caller_of(self, claims: dict[str, Any], key: bytes) -> IssuedCaller | str:
        settings, now = self._settings, self._now()
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(isinstance(each, int | float) and 0 <= each < _MAX_SECONDS for each in times.values()):
            return "a time in the token is not a number of seconds"
        expires_at = times["exp"] + settings.leeway_seconds
        name = _claim(claims, settings.principal_claim)
        if not isinstance(name, str):
            return f"the token has no text in the claim {settings.principal_claim}"
        try:
            check_principal(name)
        except UsageError:
            return f"the claim {settings.principal_claim} of the token is not the name of a principal"
        principal = issued_principal(name, shares_names=settings.shares_names)
        if expires_at <= now:
            return f"the token of {principal} has expired"
        if max(times.get("nbf", 0), times.get("iat", 0)) > now + settings.leeway_seconds:
            return f"the token of {principal} is not yet valid"
        groups = _texts(_claim(claims, settings.grants_claim))
        return IssuedCaller(principal, self._grants.of(groups), expires_at=expires_at, groups=groups, key=key)


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """Returns a claim, or a member of one, as in `realm_access.roles`; None for none."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


def _texts(claim: object) -> tuple[str, ...]:
    """Returns the texts of a list, or of one text with spaces in between, as in the claim `scope`."""
    if isinstance(claim, str):
        return tuple(claim.split())
    return tuple(each for each in claim if isinstance(each, str)) if isinstance(claim, list) else ()
