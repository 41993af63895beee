"""JSON web tokens of a real server: next to a token file, with an identity provider, and which are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.errors import Unavailable
from scankv.v1 import scan_pb2
from tests.support.certificates import Authority
from tests.support.identity_provider import AUDIENCE, IdentityProvider, encoded, make_key, public_pem
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.wire import refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIST = "scankv.v1.TableService/ListTables"
CREATE = "scankv.v1.TableService/CreateTable"
SCAN = "scankv.v1.ScanService/ScanKv"
TABLE = "jwt.rows"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)]).serialize().to_pybytes()


class JwtServer(SecuredServer):
    """A server with a token file and an identity provider."""

    def __init__(self, process: ServerProcess, issuer: TokenIssuer, provider: IdentityProvider, grants: Path) -> None:
        super().__init__(process.url, issuer)
        self.process = process
        self.provider = provider
        self.grants = grants

    def bearer(self, **claims: Any) -> TokenCaller:
        return TokenCaller(self.channel, self.provider.token(**claims))

    def grant(self, text: str) -> None:
        partial = self.grants.with_suffix(".new")
        partial.write_text(f"[grants]\n{text}\n")
        partial.replace(self.grants)


def jwt_arguments(provider: IdentityProvider, grants: Path, **settings: object) -> list[str]:
    values = {"jwt_issuer": provider.url, "jwt_audience": AUDIENCE, "jwt_grants": grants, **settings}
    return [f"--set={name}={value}" for name, value in values.items()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JwtServer]:
    directory = tmp_path_factory.mktemp("jwt")
    issuer, grants, authority = TokenIssuer(directory / "tokens"), directory / "grants.toml", Authority(directory)
    grants.write_text('[grants]\nanalysts = ["read:jwt.*"]\n')
    with IdentityProvider(certificate=authority.issue("idp", "localhost")) as provider:
        arguments = jwt_arguments(provider, grants, jwt_ca=authority.path, jwt_leeway_seconds=0)
        arguments += ["--tokens", str(issuer.path), "--set", "follow_heartbeat_seconds=0.2"]
        with (
            ServerProcess(directory / "data", *arguments) as process,
            JwtServer(process, issuer, provider, grants) as server,
        ):
            server.root(CREATE, name=TABLE, arrow_schema=SCHEMA, primary_key=["k"], buckets=1)
            yield server


def follow(caller: TokenCaller) -> Any:
    call = caller.stream(SCAN, scan_pb2.ScanKvRequest(table=TABLE, log=scan_pb2.Changelog(latest=scan_pb2.LogLatest())))
    assert next(call).HasField("header")
    return call


def ending_of(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    return refusal_of(caught.value).reason


def test_both_kinds_of_tokens_are_accepted(server: JwtServer) -> None:
    caller = server.bearer()
    assert [table.name for table in caller(LIST).tables] == [TABLE]
    assert caller.code(CREATE, name="jwt.x", arrow_schema=SCHEMA, primary_key=["k"]) == "PERMISSION_DENIED"
    assert server.root.code(LIST) == "OK"
    assert server.caller("read:jwt.*").code(LIST) == "OK"
    assert server.bearer(groups=["strangers"]).code(LIST) == "PERMISSION_DENIED"


def forged(server: JwtServer) -> dict[str, str]:
    """Returns tokens that must be refused, by what is wrong with them."""
    provider, now = server.provider, time.time()
    name = list(provider.keys)[-1]
    shared = public_pem(provider.keys[name])
    head, body, signature = provider.token().split(".")
    return {
        "expired": provider.token(exp=now - 1),
        "not yet valid": provider.token(nbf=now + 100),
        "another issuer": provider.token(iss="https://localhost/other"),
        "another audience": provider.token(aud="other"),
        "no expiry": provider.token(exp=None),
        "another key": provider.token(key=make_key()),
        "unknown key": provider.token(headers={"kid": "unknown"}),
        "no algorithm": f"{encoded({'alg': 'none', 'kid': name})}.{body}.",
        "public key as secret": _signed_with_secret(shared, name, body),
        "changed claims": f"{head}.{encoded(provider.claims(groups=['admins']))}.{signature}",
        "no signature": f"{head}.{body}.",
        "malformed": f"{head}.{body}",
        "too long": provider.token(padding="x" * 9600),
        "binary": f"{head}.{body}.{base64.b64encode(bytes(64)).decode()}",
        "unknown token of a file": "skv_000000000000_secret",
        "nonsense": "nonsense",
        "empty": "",
    }


def _signed_with_secret(secret: bytes, name: str, body: str) -> str:
    text = f"{encoded({'alg': 'HS256', 'kid': name})}.{body}"
    return f"{text}.{encoded(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def test_every_unusable_token_is_refused_with_the_same_words(server: JwtServer) -> None:
    messages = set()
    for what, token in forged(server).items():
        refused = TokenCaller(server.channel, token).refusal(LIST)
        assert refused is not None, what
        assert refused.code == "UNAUTHENTICATED", what
        messages.add((refused.message, refused.reason))
    assert server.bearer(padding="x" * 8000).code(LIST) == "OK", "a long token is allowed"
    refused = TokenCaller(server.channel).refusal(LIST)
    assert refused is not None
    messages.add((refused.message, refused.reason))
    ((message, _),) = messages
    assert "creates with scankv tokens create, and JSON web tokens (JWT) of its identity provider" in message
    assert server.provider.url not in message
    log = server.process.log
    for reason in ("has expired", "not yet valid", "another issuer", "another audience", "signature is wrong"):
        assert reason in log
    assert not any(part in log for token in forged(server).values() for part in token.split(".") if len(part) > 20)


def test_a_stream_ends_when_its_token_expires_or_its_group_loses_its_grant(server: JwtServer) -> None:
    expiring = follow(server.bearer(exp=time.time() + 3))
    demoted, kept = follow(server.bearer(groups=["temporary", "analysts"])), follow(server.root)
    assert ending_of(expiring) == "UNAUTHENTICATED"
    server.grant("")
    try:
        assert ending_of(demoted) == "PERMISSION_DENIED"
        assert server.bearer().code(LIST) == "PERMISSION_DENIED"
    finally:
        server.grant('analysts = ["read:jwt.*"]')
    assert next(kept).HasField("heartbeat")
    kept.cancel()
    wait_until(lambda: server.bearer().code(LIST) == "OK", "the grant is back")


def test_a_new_key_of_the_issuer_is_accepted_without_a_restart(server: JwtServer) -> None:
    old = server.bearer()
    assert old.code(LIST) == "OK"
    stream = follow(old)
    server.provider.rotate("second")
    # The server asks the issuer for unknown keys every ten seconds at most.
    wait_until(lambda: server.bearer().code(LIST) == "OK", "the new key is accepted")
    assert old.code(LIST) == "UNAUTHENTICATED"
    assert ending_of(stream) == "UNAUTHENTICATED"


@pytest.mark.breadth
def test_a_server_starts_while_its_issuer_is_silent_and_stops_at_once(tmp_path: Path) -> None:
    issuer, grants = TokenIssuer(tmp_path / "tokens"), tmp_path / "grants.toml"
    grants.write_text('[grants]\nanalysts = ["read:*"]\n')
    with IdentityProvider() as provider:
        provider.silent.set()
        arguments = [*jwt_arguments(provider, grants), "--tokens", str(issuer.path)]
        with (
            ServerProcess(tmp_path / "data", *arguments) as process,
            JwtServer(process, issuer, provider, grants) as server,
        ):
            assert server.root.code(LIST) == "OK"
            assert server.bearer().code(LIST) == "UNAUTHENTICATED"
            provider.silent.clear()
            wait_until(lambda: server.bearer().code(LIST) == "OK", "the keys are fetched")
            provider.silent.set()
            server.bearer(headers={"kid": "unknown"}).code(LIST)
            assert process.stop(30) == 0


def test_a_server_with_an_issuer_needs_no_token_file(tmp_path: Path) -> None:
    grants, keys = tmp_path / "grants.toml", tmp_path / "keys.pem"
    grants.write_text('[grants]\nadmins = ["admin:*"]\n')
    with IdentityProvider() as provider:
        keys.write_bytes(public_pem(provider.keys["first"]))
        arguments = jwt_arguments(provider, grants, jwt_keys=keys)
        with ServerProcess(tmp_path / "data", *arguments) as process, grpc.insecure_channel(process.url) as channel:
            assert TokenCaller(channel, provider.token(groups=["admins"])).code(LIST) == "OK"
            assert TokenCaller(channel, "skv_000000000000_secret").code(LIST) == "UNAUTHENTICATED"
            refused = TokenCaller(channel).refusal(LIST)
            assert refused is not None
            assert refused.code == "UNAUTHENTICATED"
            assert refused.message.endswith("; the server accepts JSON web tokens (JWT) of its identity provider")
        assert provider.requests == []


def test_a_server_does_not_start_with_unusable_files(tmp_path: Path) -> None:
    grants = tmp_path / "grants.toml"
    with IdentityProvider() as provider:
        for text, message in ((None, "cannot be read"), ("[x]", r"must have the table \[grants\]")):
            if text is not None:
                grants.write_text(text)
            with pytest.raises(Unavailable, match=message):
                ServerProcess(tmp_path / "data", *jwt_arguments(provider, grants))


@pytest.mark.breadth
def test_a_client_with_a_function_follows_changes_beyond_the_end_of_its_tokens(server: JwtServer) -> None:
    given: list[str] = []

    def fetch_token() -> str:
        given.append(server.provider.token(exp=time.time() + 5))
        return given[-1]

    with (
        sync.connect(server.address, token=server.issuer.root) as root,
        sync.connect(server.address, token=fetch_token) as client,
    ):
        table = root.create_table("jwt.followed", pa.schema([("k", pa.int64())]), primary_key=["k"], buckets=1)
        with client.table("jwt.followed").changes().stream() as stream:
            table.upsert([{"k": 0}])
            assert next(stream)["k"].to_pylist() == [0]
            first = stream.scan_id
            wait_until(lambda: first not in {each.scan_id for each in root.live_scans()}, "ended by the server")
            table.upsert([{"k": 1}])
            assert next(stream)["k"].to_pylist() == [1]
        assert len(given) > 1
        root.drop_table("jwt.followed")
