"""How the tokens of callers are decoded, before anything is known about who sends them."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt

from scankv.model.errors import Unauthenticated
from streaming_server.access.authentication import Authenticator
from streaming_server.access.callers import TokenStore
from streaming_server.access.jwt_settings import ALGORITHMS, JwtSettings
from streaming_server.access.jwt_verifier import JwtVerifier
from streaming_server.access.token_file import create_token
from streaming_server.current_call import CALL_METADATA
from streaming_server.services.authorization import CallGuard
from tests.support.identity_provider import AUDIENCE, Issuer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from streaming_server.access.callers import CallerIdentity


class TokenGate:
    """Authenticates calls with tokens of both kinds: of a token file, and of an issuer."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        self.issuer = Issuer()
        (directory / "keys").write_text(json.dumps(self.issuer.key_set()))
        (directory / "grants.toml").write_text('[grants]\nanalysts = ["read:sales.*"]\n')
        settings = JwtSettings(
            issuer=self.issuer.url,
            audience=AUDIENCE,
            keys=directory / "keys",
            ca=None,
            grants=directory / "grants.toml",
            grants_claim="realm.groups",
            principal_claim="sub",
            shares_names=False,
            algorithms=ALGORITHMS,
            leeway_seconds=30.0,
            max_key_age_seconds=3600.0,
        )
        self.token = create_token(directory / "tokens", "fuzz", ["read:*"], now=datetime.now(UTC))[1]
        known = Authenticator(TokenStore(directory / "tokens", time.time), JwtVerifier(settings, time.time))
        resources: Any = None
        self._guard = CallGuard(resources, known)

    def authenticate(self, header: str) -> CallerIdentity | None:
        """Returns who makes a call with a header; None if the call is refused."""
        CALL_METADATA.set((("authorization", header),))
        context: Any = _CallFromNowhere()
        try:
            return _result_of(self._guard.authenticate(context, "a call", is_forwarded=False))
        except Unauthenticated:
            return None

    def sign(self, claims: bytes) -> str:
        """Returns a token of the issuer with these claims, which need not be JSON."""
        ((name, key),) = self.issuer.keys.items()
        return jwt.PyJWS().encode(claims, key, self.issuer.algorithm, {"kid": name})


class _CallFromNowhere:
    def peer(self) -> str:
        return "nowhere"


def _result_of(work: Coroutine[Any, Any, CallerIdentity]) -> CallerIdentity:
    """Runs a coroutine that waits for nothing, since the keys are in a file."""
    try:
        work.send(None)
    except StopIteration as ended:
        found: CallerIdentity = ended.value
        return found
    raise AssertionError("it waits")


@cache
def _gate() -> TokenGate:
    return TokenGate()


def bearer_token(data: bytes) -> None:
    """Authenticates a call with some header."""
    header = data.decode("latin-1")
    caller = _gate().authenticate(header)
    if caller is not None and caller.token_id:
        assert header[7:] == _gate().token


def bearer_tokens() -> list[bytes]:
    """Returns headers with valid tokens."""
    gate = _gate()
    return [b"Bearer " + token.encode() for token in (gate.token, gate.issuer.token())]


def signed_claims(data: bytes) -> None:
    """Authenticates a call with a token of the issuer that has some claims."""
    _gate().authenticate(f"Bearer {_gate().sign(data)}")


def claims() -> list[bytes]:
    """Returns the claims of valid tokens."""
    changes: list[dict[str, Any]] = [{}, {"realm": {"groups": ["analysts", 5]}}, {"realm.groups": "analysts others"}]
    return [json.dumps(_gate().issuer.claims(**each, nbf=0)).encode() for each in changes]
