"""What a client is told when a certificate or a token is refused: the same words for every reason of the server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from aio_client import Tls, TlsHandshakeFailed, Unauthenticated, Unavailable, UsageError, connect
from streaming_server.access.token_file import create_token
from tests.support.certificates import Authority
from tests.support.tls_server import TlsServer
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio

# Words that would tell which of several reasons it was.
HINTS = ("expired", "revoked", "unknown", "malformed", "signature", "issuer", "audience", "principal")


class Secured(TlsServer):
    """A server with TLS, and what its clients need. `settings` are the TLS settings of a client that is accepted."""

    def __init__(self, directory: Path, *, mutual: bool) -> None:
        super().__init__(directory, client_certificates=mutual)
        self.directory = directory
        self.is_mutual = mutual
        self.pair = self.authority.issue("client") if mutual else (None, None)
        self.settings = self.tls(self.authority)

    def tls(self, authority: Authority) -> Tls:
        return Tls(ca=authority.path, certificate=self.pair[0], key=self.pair[1])

    def install(self, *hosts: str, authority: Authority | None = None, **options: bool) -> None:
        """Gives the server another certificate, which its next connection uses."""
        pair = (authority or self.authority).issue("replacement", *hosts, **options)
        for path, name in zip(pair, ("server.pem", "server.key"), strict=True):
            path.replace(self.directory / name)


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mutual"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("refused"), mutual=request.param) as server:
        yield server


async def error_of(server: TlsServer, tls: Tls | None, token: str | None) -> Exception:
    """Makes a call. Returns its error."""
    url = server.url if tls is not None else server.url.replace("scankvs://", "")
    async with connect(url, token=token, tls=tls, operation_timeout=1.0) as client:
        with pytest.raises((TlsHandshakeFailed, Unavailable, Unauthenticated)) as caught:
            await client.tables()
    return caught.value


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("expired", "certificate has expired"),
        ("other authority", "not trusted.*name the authority"),
        ("self-signed", "not trusted.*name the authority"),
        ("other host", "is not for the host|another host|server_name"),
    ],
)
async def test_a_client_sends_no_token_to_a_server_with_a_wrong_certificate(
    server: Secured, tmp_path: Path, wrong: str, message: str
) -> None:
    match wrong:
        case "expired":
            server.install("localhost", expired=True)
        case "other authority":
            server.install("localhost", authority=Authority(tmp_path, "other"))
        case "self-signed":
            server.install("localhost", self_signed=True)
        case _:
            server.install("db.example.com")
    before = server.process.log.count("refused scankv")
    try:
        error = await error_of(server, server.settings, "not-a-token-of-this-server")
        assert isinstance(error, TlsHandshakeFailed)
        with pytest.raises(TlsHandshakeFailed, match=message):
            raise error
        assert server.process.log.count("refused scankv") == before, "the token was sent"
    finally:
        server.install("localhost")
    async with connect(server.url, token=server.root, tls=server.settings) as client:
        assert await client.tables() == []


async def test_a_server_refuses_every_wrong_client_certificate_with_the_same_words(
    server: Secured, tmp_path: Path
) -> None:
    if not server.is_mutual:
        # A certificate that the server does not ask for does no harm, and grants nothing.
        pair = server.authority.issue("uninvited", self_signed=True)
        tls = Tls(ca=server.authority.path, certificate=pair[0], key=pair[1])
        async with connect(server.url, token=server.root, tls=tls) as client:
            assert await client.tables() == []
        assert isinstance(await error_of(server, tls, None), Unauthenticated)
        return
    wrong = {
        "expired": server.authority.issue("expired", expired=True),
        "self-signed": server.authority.issue("self", self_signed=True),
        "other authority": Authority(tmp_path, "other").issue("stranger"),
        "none": (None, None),
    }
    messages = set()
    for what, (certificate, key) in wrong.items():
        tls = Tls(ca=server.authority.path, certificate=certificate, key=key)
        error = await error_of(server, tls, server.root)
        assert isinstance(error, Unavailable), what
        messages.add(str(error))
    (message,) = messages
    assert "client certificate" in message
    assert "expired" not in message


async def test_every_wrong_token_is_refused_with_the_same_words(server: Secured) -> None:
    now = datetime.now(UTC)
    revoked = server.create_token("read:*")
    server.revoke_token(revoked)
    file = server.directory / "tokens"
    wrong: dict[str, str | None] = {
        "none": None,
        "unknown": "skv_000000000000_c2VjcmV0",
        "wrong secret": f"{server.root}x",
        "malformed": "nonsense",
        "revoked": revoked,
        "expired": create_token(file, "x", ["read:*"], now=now - timedelta(2), expires=now - timedelta(1))[1],
        "a web token": "eyJhbGciOiJub25lIn0.e30.",
        "long": "x" * 12_000,
    }

    async def is_revoked() -> bool:
        async with connect(server.url, token=revoked, tls=server.settings) as client:
            try:
                await client.tables()
            except Unauthenticated:
                return True
            return False

    await await_until(is_revoked, "the server has read the file again")
    messages = {}
    for what, token in wrong.items():
        error = await error_of(server, server.settings, token)
        assert isinstance(error, Unauthenticated), what
        messages[what] = str(error)
    if server.is_mutual:
        # Without a token, its certificate may say who a client is.
        assert "no valid line for the client certificate" in messages.pop("none")
    (message,) = set(messages.values())
    for way in ("connect(url, token=...)", "SCANKV_TOKEN_FILE", "option token_file of Spark", "scankv tokens create"):
        assert way in message
    assert "JWT" not in message
    assert not [hint for hint in HINTS if hint in message]


async def test_a_token_that_cannot_be_sent_is_refused_by_the_client(server: Secured) -> None:
    for token, message in (("x" * 12_289, "has more than 12,288 bytes"), ("a b", "visible ASCII"), ("", "is empty")):
        with pytest.raises(UsageError, match=message) as caught:
            await connect(server.url, token=token, tls=server.settings)
        assert not token or token not in str(caught.value)


async def test_a_client_without_tls_is_told_that_the_server_may_need_it(server: Secured) -> None:
    error = await error_of(server, None, None)
    assert isinstance(error, Unavailable)
    assert "it may require TLS, or a client certificate" in str(error)
