"""What the server's own gateway may do by its key, without a token: ask for the activity, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import Unauthenticated
from scankv.model.forwarded_peers import FORWARDED_PEER, GATEWAY_KEY
from streaming_server.access.authentication import Authenticator
from streaming_server.access.callers import TokenStore
from streaming_server.access.forwarded_peers import ForwardedPeers
from streaming_server.access.grants import Role
from streaming_server.current_call import CALL_METADATA
from streaming_server.services.authorization import ACTIVITY, GATEWAY, CallGuard
from streaming_server.services.permissions import PERMISSIONS
from tests.support.secured import TokenIssuer

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.access.callers import CallerIdentity


class ContextWithoutCertificate:
    """The context of a call over a connection without a client certificate."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def auth_context(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def gateways() -> ForwardedPeers:
    return ForwardedPeers("the key")


@pytest.fixture
def guard(tmp_path: Path, gateways: ForwardedPeers) -> CallGuard:
    issuer = TokenIssuer(tmp_path / "tokens")
    nothing: Any = None
    return CallGuard(nothing, Authenticator(TokenStore(issuer.path, lambda: 0.0)), gateways=gateways)


def authenticate(guard: CallGuard, method: str, *metadata: tuple[str, str]) -> CallerIdentity:
    context: Any = ContextWithoutCertificate()
    token = CALL_METADATA.set(metadata)
    try:
        return asyncio.run(guard.authenticate(context, method, is_forwarded=False))
    finally:
        CALL_METADATA.reset(token)


def test_the_key_allows_to_read_the_activity_of_all_tables(guard: CallGuard) -> None:
    caller = authenticate(guard, ACTIVITY, (GATEWAY_KEY, "the key"))
    assert caller is GATEWAY
    assert guard.renew(caller) is caller
    assert caller.grants.allow_everywhere(Role.READ)
    assert not caller.grants.allow_somewhere(Role.WRITE)


@pytest.mark.parametrize("method", sorted(name for name in PERMISSIONS if name != ACTIVITY))
def test_the_key_allows_no_other_call(guard: CallGuard, method: str) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(guard, method, (GATEWAY_KEY, "the key"))


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        ((GATEWAY_KEY, "another key"),),
        ((GATEWAY_KEY, ""),),
        # As the gateway makes calls for browsers.
        ((FORWARDED_PEER, "the key ipv4:10.0.0.7:44882"),),
        ((GATEWAY_KEY, "the key"), ("authorization", "Bearer scankv_1_wrong")),
    ],
)
def test_without_the_key_or_with_a_token_of_a_caller_it_allows_nothing(
    guard: CallGuard, metadata: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(guard, ACTIVITY, *metadata)
