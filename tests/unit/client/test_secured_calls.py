"""Calls to servers that use TLS and want a token: what is sent, what is trusted, and how a token is replaced."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING

import grpc
import pytest

from aio_client import (
    Client,
    DeadlineExceeded,
    PermissionDenied,
    ScanInterrupted,
    ScanSpec,
    Tls,
    TlsHandshakeFailed,
    TokenFile,
    Unauthenticated,
    Unavailable,
    connect,
)
from tests.support.certificates import Authority
from tests.unit.client.messages import whole_scan
from tests.unit.client.misbehaving import KeepsItsContract
from tests.unit.client.wants_tokens import WantsTokens, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from scankv.v1.scan_pb2 import ScanKvResponse
    from tests.unit.client.misbehaving import Context

pytestmark = pytest.mark.asyncio

SECRET = "s3cr3t-Xq7"
SCAN = ScanSpec(table="game.scores")


class EndsStreamsOfOldTokens(KeepsItsContract):
    """Ends the first scan after its first chunk, once `expired` is set; answers later scans completely."""

    def __init__(self) -> None:
        super().__init__()
        self.expired = asyncio.Event()
        self.scans = 0

    async def messages(self, context: Context) -> AsyncIterator[ScanKvResponse]:
        self.scans += 1
        if self.scans > 1:
            async for message in super().messages(context):
                yield message
            return
        for message in whole_scan()[:2]:
            yield message
        await self.expired.wait()
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")


def server_credentials(certificate: tuple[Path, Path], clients: Authority | None = None) -> grpc.ServerCredentials:
    """Returns the credentials of a server. With `clients`, it requires certificates of that authority."""
    chain, key = (path.read_bytes() for path in certificate)
    roots = None if clients is None else clients.path.read_bytes()
    return grpc.ssl_server_credentials([(key, chain)], roots, clients is not None)


def calls_of(client: Client) -> tuple[Callable[[], Awaitable[object]], ...]:
    """Calls of each kind: with one answer, a stream, and a health check."""
    return client.tables, client.scan(SCAN).to_arrow, client.wait_ready


async def test_every_call_sends_the_token() -> None:
    tokens = WantsTokens(SECRET)
    async with serving(tokens) as url, connect(url, token=SECRET) as client:
        await client.wait_ready(30)
        assert await client.tables() == []
        assert (await client.scan(SCAN).to_arrow()).num_rows > 0
    assert tokens.came == [f"Bearer {SECRET}"] * 3


async def test_every_call_announces_the_size_of_its_message() -> None:
    """So a message that is late does not claim the memory of the largest one."""
    tokens = WantsTokens(SECRET)
    async with serving(tokens) as url, connect(url, token=SECRET) as client:
        await client.tables()
        await client.scan(SCAN).to_arrow()
    # The server does not answer this call.
    async with serving(tokens) as url, connect(url, token=SECRET, attempt_timeout=0.5) as client:
        with pytest.raises(DeadlineExceeded):
            await client.table(f"a.{'x' * 100_000}")
    sizes = {name: int(size or 0) for name, size in tokens.announced.items()}
    assert sizes.pop("GetTable") >= 100_000
    assert sizes == {"ListTables": 65_536, "ScanKv": 65_536}


async def test_a_client_without_a_token_sends_none() -> None:
    tokens = WantsTokens()
    async with serving(tokens) as url, connect(url) as client:
        with pytest.raises(Unauthenticated, match="who are you"):
            await client.tables()
    assert tokens.came == [None]


@pytest.mark.parametrize(
    ("code", "error"),
    [(grpc.StatusCode.UNAUTHENTICATED, Unauthenticated), (grpc.StatusCode.PERMISSION_DENIED, PermissionDenied)],
)
async def test_a_refused_token_is_sent_once_and_not_shown(
    code: grpc.StatusCode, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = WantsTokens("another")
    tokens.code = code
    async with serving(tokens) as url, connect(url, token=SECRET) as client:
        for call in calls_of(client):
            tokens.came.clear()
            with pytest.raises(error) as caught:
                await call()
            assert len(tokens.came) == 1
            assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert SECRET not in caplog.text


async def test_a_replaced_token_file_is_used_once_the_old_token_is_refused(tmp_path: Path) -> None:
    tokens, file = WantsTokens("first"), tmp_path / "token"
    file.write_text("first\n")
    async with serving(tokens) as url, connect(url, token=file) as client:
        for number, call in enumerate(calls_of(client)):
            await call()
            tokens.valid = {f"token-{number}"}
            with pytest.raises(Unauthenticated):
                await call()
            file.write_text(f"token-{number}\n")
            tokens.came.clear()
            await call()
            assert tokens.came[-1] == f"Bearer token-{number}"
            assert len(tokens.came) <= 2


async def test_a_scan_whose_token_expires_continues_with_the_new_token(tmp_path: Path) -> None:
    tokens, scans, file = WantsTokens("first", "second"), EndsStreamsOfOldTokens(), tmp_path / "token"
    file.write_text("first")
    async with serving(tokens, scans=scans) as url, connect(url, token=TokenFile(file)) as client:
        async with client.scan(ScanSpec(table="game.scores")).stream() as stream:
            await anext(stream)
            file.write_text("second")
            scans.expired.set()
            # A scan of live rows is not continued by itself.
            with pytest.raises(ScanInterrupted, match="its token is no longer valid; there is a new one") as caught:
                await anext(stream)
        assert caught.value.resume_token is not None
        assert tokens.came == ["Bearer first"]
        assert (await client.scan(SCAN).to_arrow()).num_rows > 0
        assert tokens.came == ["Bearer first", "Bearer second"]


async def test_a_scan_whose_token_expires_fails_if_there_is_no_other(tmp_path: Path) -> None:
    tokens, scans, file = WantsTokens("first"), EndsStreamsOfOldTokens(), tmp_path / "token"
    file.write_text("first")
    async with serving(tokens, scans=scans) as url, connect(url, token=file) as client:
        async with client.scan(SCAN).stream() as stream:
            await anext(stream)
            scans.expired.set()
            with pytest.raises(Unauthenticated):
                await anext(stream)


# ---- TLS ----


@pytest.mark.parametrize(
    ("name", "expired", "message"),
    [
        ("localhost", True, r"certificate has expired"),
        ("db.example.com", False, "certificate is for another host"),
    ],
)
async def test_a_server_with_a_wrong_certificate_gets_no_token(
    tmp_path: Path, name: str, expired: bool, message: str
) -> None:
    authority, tokens = Authority(tmp_path), WantsTokens(SECRET)
    credentials = server_credentials(authority.issue("server", name, expired=expired))
    async with (
        serving(tokens, credentials) as address,
        connect(address, token=SECRET, tls=Tls(ca=authority.path)) as client,
    ):
        for call in calls_of(client):
            with pytest.raises(TlsHandshakeFailed, match=message) as caught:
                await call()
            assert caught.value.details == {"address": address}
    assert tokens.came == []


async def test_a_server_of_an_unknown_authority_gets_no_token(tmp_path: Path) -> None:
    authority, other, tokens = Authority(tmp_path), Authority(tmp_path, "other"), WantsTokens(SECRET)
    async with serving(tokens, server_credentials(authority.issue("server", "localhost"))) as address:
        for tls in (True, Tls(ca=other.path)):
            async with connect(address, token=SECRET, tls=tls) as client:
                with pytest.raises(TlsHandshakeFailed, match=r"not trusted.*name the authority"):
                    await client.tables()
    assert tokens.came == []


async def test_a_server_without_tls_gets_no_token() -> None:
    tokens = WantsTokens(SECRET)
    async with serving(tokens) as address, connect(address, token=SECRET, tls=True) as client:
        with pytest.raises(TlsHandshakeFailed, match="it does not use TLS"):
            await client.tables()
    assert tokens.came == []


async def test_a_server_with_tls_is_hinted_at_if_the_client_uses_none(tmp_path: Path) -> None:
    credentials = server_credentials(Authority(tmp_path).issue("server", "localhost"))
    async with serving(WantsTokens(), credentials) as address, connect(address, operation_timeout=0.5) as client:
        with pytest.raises(Unavailable, match="it may require TLS, or a client certificate"):
            await client.tables()


async def test_the_name_in_the_certificate_may_be_given(tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path), WantsTokens(SECRET)
    async with serving(tokens, server_credentials(authority.issue("server", "db.example.com"))) as address:
        tls = Tls(ca=authority.path, server_name="db.example.com")
        async with connect(address, token=SECRET, tls=tls) as client:
            assert await client.tables() == []


async def test_renewed_certificates_are_used_for_new_connections(tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path), WantsTokens(SECRET)
    (tmp_path / "client-ca").mkdir()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Authority(tmp_path / "client-ca").path.read_bytes())
    async with (
        serving(tokens, server_credentials(authority.issue("server", "localhost"))) as address,
        connect(address, token=SECRET, tls=Tls(ca=ca)) as client,
    ):
        with pytest.raises(TlsHandshakeFailed):
            await client.tables()
        # While the file is being replaced, the client keeps what it has read.
        ca.write_bytes(b"")
        with pytest.raises(TlsHandshakeFailed):
            await client.tables()
        ca.write_bytes(authority.path.read_bytes())
        with pytest.raises(TlsHandshakeFailed):
            await client.tables()
        assert await client.tables() == []
