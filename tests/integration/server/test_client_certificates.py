"""Callers are known from a token file, an issuer, or certificates, and none of these hands out the names of another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from aio_client import PermissionDenied, Tls, Unauthenticated, sync
from scankv.model.forwarded_peers import forwarded_peer
from scankv.v1 import scan_pb2
from tests.support.certificates import Authority
from tests.support.command_line import CommandLine
from tests.support.gateway import HttpCaller
from tests.support.identity_provider import AUDIENCE, Issuer
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.wire import refusal_of
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIST = "scankv.v1.TableService/ListTables"
SCAN = "scankv.v1.ScanService/ScanKv"
RELEASE = "scankv.v1.SnapshotService/ReleaseSnapshot"
KEY = pa.schema([pa.field("k", pa.int64(), nullable=False)])


@dataclass
class CertificateServer:
    """A server of two workers with mutual TLS, a token file and an issuer.

    Attributes:
        directory: Where its files are.
        address: Its address.
        authority: Who issues the certificates of server and clients.
        tokens: Its token file.
        issuer: Issues JSON web tokens.
        audit: Its audit log.
    """

    directory: Path
    address: str
    authority: Authority
    tokens: TokenIssuer
    issuer: Issuer
    audit: Path

    @property
    def url(self) -> str:
        return f"scankvs://localhost:{self.address.rpartition(':')[2]}"

    def grant(self, name: str, principal: str, *grants: str) -> None:
        """Gives grants to the certificates with a name."""
        self.tokens.create(*grants, principal=principal, certificate=name)

    def revoke(self, name: str) -> None:
        """Revokes what the certificates with a name have."""
        lines = [json.loads(line) for line in self.tokens.path.read_text().splitlines()]
        for line in lines:
            if line.get("certificate") == name:
                self.tokens.revoke(f"skv_{line['id']}_")

    def tls(self, name: str) -> Tls:
        """Returns the TLS of a client with a new certificate."""
        certificate, key = self.authority.issue(name)
        return Tls(ca=self.authority.path, certificate=certificate, key=key)

    def calls(self, name: str) -> SecuredServer:
        """Returns a connection with a new certificate."""
        certificate, key = self.authority.issue(name)
        pems = (path.read_bytes() for path in (self.authority.path, key, certificate))
        address = f"localhost:{self.address.rpartition(':')[2]}"
        return SecuredServer(address, self.tokens, grpc.ssl_channel_credentials(*pems))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CertificateServer]:
    directory = tmp_path_factory.mktemp("certificates")
    authority, tokens, issuer = Authority(directory), TokenIssuer(directory / "tokens"), Issuer()
    certificate, key = authority.issue("server", "localhost")
    (directory / "keys").write_text(json.dumps(issuer.key_set()))
    (directory / "grants.toml").write_text('[grants]\nanalysts = ["read:own.*"]\n')
    given = {"tls-certificate": certificate, "tls-key": key, "tls-client-ca": authority.path, "tokens": tokens.path}
    settings = {"keys": directory / "keys", "grants": directory / "grants.toml", "issuer": issuer.url}
    arguments = [
        *(part for name, path in given.items() for part in (f"--{name}", str(path))),
        *(f"--set=jwt_{name}={value}" for name, value in {**settings, "audience": AUDIENCE}.items()),
        *("--audit-log", str(directory / "audit.log"), "--workers", "2", "--set", "follow_heartbeat_seconds=0.2"),
    ]
    with ServerProcess(directory / "data", *arguments) as process:
        yield CertificateServer(directory, process.url, authority, tokens, issuer, directory / "audit.log")


def test_a_client_whose_certificate_has_grants_needs_no_token_whichever_workers_answer(
    server: CertificateServer,
) -> None:
    # One table of each worker, and one of both.
    names = [name for (name,) in names_of_workers(2, database="cert")]
    server.grant("CN=loader.example", "loader", "write:cert.*")
    with sync.connect(server.url, token=server.tokens.root, tls=server.tls("operator")) as operator:
        for name in names:
            operator.create_table(name, KEY, primary_key=["k"])
        operator.create_table("cert.both", KEY, primary_key=["k"], buckets=2, tablets=2)
        operator.create_table("foreign.rows", KEY, primary_key=["k"])
    with sync.connect(server.url, tls=server.tls("loader.example")) as client:
        for name in (*names, "cert.both"):
            table = client.table(name)
            table.upsert(pa.table({"k": range(10)}))
            with client.transaction() as transaction:
                transaction.upsert(table, pa.table({"k": [10]}))
            with table.snapshot(ttl=60) as snapshot:
                assert table.scan().as_of(snapshot).to_arrow().num_rows == table.count() == 11
                assert {each.principal for each in client.snapshots(name)} == {"loader"}
        with pytest.raises(PermissionDenied):
            client.table("foreign.rows")
        with pytest.raises(PermissionDenied):
            client.create_table("cert.mine", KEY, primary_key=["k"])

    def is_recorded() -> bool:
        lines = [json.loads(line) for line in server.audit.read_text().splitlines()]
        own = [line for line in lines if line["principal"] == "loader"]
        return len(own) >= 3 and {line["tls_client"] for line in own} == {"loader.example"}

    wait_until(is_recorded, "lines of the audit log")


def test_a_certificate_without_grants_is_refused_with_its_name_and_what_to_do(server: CertificateServer) -> None:
    with sync.connect(server.url, tls=server.tls("stranger.example")) as client:
        with pytest.raises(Unauthenticated) as caught:
            client.tables()
    assert "line for the client certificate CN=stranger.example, DNS=stranger.example: ask" in caught.value.message
    assert "scankv tokens create PRINCIPAL --certificate CN=NAME" in caught.value.message


def test_a_call_with_a_token_never_gets_the_grants_of_its_certificate(server: CertificateServer) -> None:
    server.grant("CN=known.example", "known", "read:*")
    with server.calls("known.example") as connected:
        assert TokenCaller(connected.channel).code(LIST) == "OK"
        for token in ("nonsense", f"{server.tokens.root}x", ""):
            assert TokenCaller(connected.channel, token).code(LIST) == "UNAUTHENTICATED"
        assert TokenCaller(connected.channel, scheme="Basic ", token="x").code(LIST) == "UNAUTHENTICATED"
        weak = TokenCaller(connected.channel, server.tokens.create("read:none.*"))
        assert weak(LIST).tables == []


def test_no_client_claims_the_certificate_of_another(server: CertificateServer) -> None:
    line = server.tokens.root.split("_")[1]
    with server.calls("claimant.example") as connected:
        for metadata in (("scankv-certified", f"{line} 1e12"), ("scankv-forwarded", "x"), ("scankv-of-server", "x")):
            caller = TokenCaller(connected.channel)
            caller.metadata = (metadata, ("scankv-certified", f"{line} 1e12"))
            assert caller.code(LIST) == "UNAUTHENTICATED"


def follow(caller: TokenCaller, table: str) -> Any:
    call = caller.stream(SCAN, scan_pb2.ScanKvRequest(table=table, log=scan_pb2.Changelog(latest=scan_pb2.LogLatest())))
    assert next(call).HasField("header")
    return call


def test_revoking_the_line_of_a_certificate_ends_its_streams_and_refuses_its_connections(
    server: CertificateServer,
) -> None:
    names = [name for (name,) in names_of_workers(2, database="ending")]
    server.grant("DNS=ending.example", "ending", "read:ending.*")
    with server.calls("ending.example") as connected:
        root, caller = connected.root, TokenCaller(connected.channel)
        for name in names:
            schema = KEY.serialize().to_pybytes()
            root("scankv.v1.TableService/CreateTable", name=name, arrow_schema=schema, primary_key=["k"], buckets=1)
        streams = [follow(caller, name) for name in names]
        server.revoke("DNS=ending.example")
        for stream in streams:
            with pytest.raises(grpc.RpcError) as caught:
                list(stream)
            assert refusal_of(caught.value).reason == "UNAUTHENTICATED"
        assert caller.code(LIST) == "UNAUTHENTICATED"
        assert root.code(LIST) == "OK"
        server.grant("DNS=ending.example", "ending", "read:ending.*")
        assert caller.code(LIST) == "OK"


@pytest.mark.breadth
def test_a_gateway_gives_no_client_the_grants_of_its_own_certificate(server: CertificateServer) -> None:
    server.grant("CN=gateway.example", "gateway", "admin:*")
    with server.calls("gateway.example") as connected:
        caller = TokenCaller(connected.channel)
        assert caller.code(LIST) == "OK"
        caller.metadata = (forwarded_peer("", "ipv4:127.0.0.1:1"),)
        assert caller.code(LIST) == "UNAUTHENTICATED"
    certificate, key = server.authority.issue("gateway.example")
    files = {"CLIENT_CERTIFICATE": certificate, "CLIENT_KEY": key, "TLS_CA": server.authority.path}
    command = [sys.executable, "-m", "scankv", "http", "--port", "0", "--url", server.url]
    environment = {**os.environ, **{f"SCANKV_{name}": str(path) for name, path in files.items()}}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        try:
            assert HttpCaller(port).get("/v1/tables").status == 401
            assert HttpCaller(port).get("/").headers["location"] == "/login"
            assert HttpCaller(port, server.tokens.root).get("/v1/tables").status == 200
        finally:
            process.terminate()


def test_the_command_grants_to_certificates_and_clients_find_theirs_in_the_environment(
    server: CertificateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = server.authority.issue("cli.example")
    for name, path in {"CLIENT_CERTIFICATE": certificate, "CLIENT_KEY": key, "TLS_CA": server.authority.path}.items():
        monkeypatch.setenv(f"SCANKV_{name}", str(path))
    scankv, file = CommandLine(server.url), str(server.tokens.path)
    assert "has no valid line" in scankv.fails("tables")
    grant = ("--grant", "read:*", "--certificate", "dns=CLI.example")
    made = scankv("tokens", "create", "cli", "--tokens", file, *grant)
    assert (made.stdout, made.stderr.startswith("granted to certificates with DNS=cli.example, as ")) == (b"", True)
    scankv("tables")
    listed = scankv("tokens", "list", "--tokens", file, "--json").json
    assert [each["principal"] for each in listed if each["certificate"] == "DNS=cli.example"] == ["cli"]
    assert "DNS=cli.example" in scankv("tokens", "list", "--tokens", file).text


SOURCES = ("token", "issuer", "certificate")
SHOWN = {"token": "root", "issuer": "jwt:root", "certificate": "robot"}


@pytest.fixture(scope="module")
def roots(server: CertificateServer) -> Iterator[dict[str, TokenCaller]]:
    """The same name from each source. The authority says `root`, and the line of the operator who that is."""
    server.grant("CN=root", "robot", "read:own.*")
    with server.calls("root") as connected:
        connected.root(
            "scankv.v1.TableService/CreateTable",
            name="own.rows",
            arrow_schema=KEY.serialize().to_pybytes(),
            primary_key=["k"],
            buckets=1,
        )
        yield {
            "token": TokenCaller(connected.channel, server.tokens.create("read:own.*", principal="root")),
            "issuer": TokenCaller(connected.channel, server.issuer.token(sub="root")),
            "certificate": TokenCaller(connected.channel),
        }


def pin(caller: TokenCaller) -> str:
    pinned = caller("scankv.v1.SnapshotService/PinSnapshot", table="own.rows", lease_id=uuid.uuid4().hex)
    return str(pinned.snapshot.snapshot_id)


@pytest.mark.parametrize("other", SOURCES)
@pytest.mark.parametrize("owner", SOURCES)
def test_the_name_of_one_source_owns_nothing_of_the_same_name_of_another(
    roots: dict[str, TokenCaller], owner: str, other: str
) -> None:
    snapshot = pin(roots[owner])
    refused = roots[other].refusal(RELEASE, snapshot_id=snapshot)
    if owner == other:
        assert refused is None
        return
    assert refused is not None
    assert (refused.code, refused.details["principal"]) == ("PERMISSION_DENIED", SHOWN[owner])
    assert f'belongs to the principal "{SHOWN[owner]}", and the caller is "{SHOWN[other]}"' in refused.message
    assert roots[owner].code(RELEASE, snapshot_id=snapshot) == "OK"


def test_an_admin_gives_what_a_name_owns_to_the_same_name_of_another_source(
    server: CertificateServer, roots: dict[str, TokenCaller]
) -> None:
    # What a JWT made before its principal had a prefix belongs to the bare name.
    snapshot = pin(roots["token"])
    with sync.connect(server.url, token=server.tokens.root, tls=server.tls("operator")) as operator:
        assert operator.assign_owner("own.rows", "jwt:root", current="root").snapshots == 1
        assert {each.principal for each in operator.snapshots("own.rows")} == {"jwt:root"}
    assert roots["token"].code(RELEASE, snapshot_id=snapshot) == "PERMISSION_DENIED"
    assert roots["issuer"].code(RELEASE, snapshot_id=snapshot) == "OK"


def test_a_certificate_is_the_principal_of_a_token_if_its_line_says_so(
    server: CertificateServer, roots: dict[str, TokenCaller]
) -> None:
    server.grant("CN=twin.example", "root", "read:own.*")
    with server.calls("twin.example") as connected:
        assert TokenCaller(connected.channel).code(RELEASE, snapshot_id=pin(roots["token"])) == "OK"
