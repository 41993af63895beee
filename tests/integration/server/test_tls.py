"""TLS of a real server: which certificates are refused, mutual TLS, reload, and what a server refuses to start with."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scankv.model.errors import Unavailable, UsageError
from streaming_server.config import ServerConfig
from tests.support.monitoring import free_port
from tests.support.secured import SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

REFLECT = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIST = "scankv.v1.TableService/ListTables"


class Certificate(NamedTuple):
    """A certificate with its key, as objects and in PEM."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def certify(name: str, issuer: Certificate | None = None, *, days: float = 2, is_ca: bool = False) -> Certificate:
    """Makes a certificate for 127.0.0.1, signed by an issuer (None: by itself)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key if issuer is None else issuer.key, hashes.SHA256())
    )
    return Certificate(built, key)


class Directory:
    """The files of a server: certificate, key, authority of clients, tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ca = certify("authority", is_ca=True)
        self.certificate, self.key, self.client_ca = path / "cert.pem", path / "key.pem", path / "ca.pem"
        self.install(certify("server", self.ca))
        self.client_ca.write_bytes(self.ca.pem)
        self.issuer = TokenIssuer(path / "tokens")

    def install(self, certificate: Certificate, *, mode: int = 0o600) -> None:
        for path, content in ((self.certificate, certificate.pem), (self.key, certificate.key_pem)):
            partial = path.with_suffix(".new")
            partial.write_bytes(content)
            partial.chmod(mode)
            partial.replace(path)

    def arguments(self, *, mutual: bool = False) -> list[str]:
        given = {"tokens": self.issuer.path, "tls-certificate": self.certificate, "tls-key": self.key}
        given |= {"tls-client-ca": self.client_ca} if mutual else {}
        return [part for name, path in given.items() for part in (f"--{name}", str(path))]

    def start(self, *, mutual: bool = False) -> ServerProcess:
        return ServerProcess(self.path / "data", *self.arguments(mutual=mutual))

    def code(self, address: str, trusted: bytes | None = None, client: Certificate | None = None) -> str:
        """Lists the tables over a new connection. Returns the name of the status."""
        key, chain = (None, None) if client is None else (client.key_pem, client.pem)
        credentials = grpc.ssl_channel_credentials(self.ca.pem if trusted is None else trusted, key, chain)
        with SecuredServer(address, self.issuer, credentials) as server:
            return server.root.code(LIST)


@pytest.fixture
def files(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def served_certificate(address: str) -> bytes:
    """Connects, and returns the certificate of the server in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as plain, context.wrap_socket(plain) as secured:
        assert secured.version() in {"TLSv1.2", "TLSv1.3"}
        return secured.getpeercert(binary_form=True) or b""


def der(certificate: Certificate) -> bytes:
    return certificate.certificate.public_bytes(serialization.Encoding.DER)


def test_clients_that_trust_the_authority_are_served_and_others_do_not_connect(files: Directory) -> None:
    with files.start() as server:
        assert files.code(server.url) == "OK"
        assert files.code(server.url, certify("another", is_ca=True).pem) == "UNAVAILABLE"
        with SecuredServer(server.url, files.issuer) as plain:
            assert plain.root.code(LIST) == "UNAVAILABLE"


def test_clients_refuse_an_expired_or_self_signed_certificate_of_the_server(files: Directory) -> None:
    files.install(certify("server", files.ca, days=-1))
    with files.start() as server:
        assert files.code(server.url) == "UNAVAILABLE"
        files.install(certify("server"))
        assert files.code(server.url) == "UNAVAILABLE"


def test_a_new_certificate_is_used_for_new_connections_without_a_restart(files: Directory) -> None:
    with files.start() as server:
        credentials = grpc.ssl_channel_credentials(files.ca.pem)
        with SecuredServer(server.url, files.issuer, credentials) as connected:
            assert connected.root.code(LIST) == "OK"
            new = certify("server", files.ca)
            files.install(new)
            assert served_certificate(server.url) == der(new)
            assert connected.root.code(LIST) == "OK"
        assert files.code(server.url) == "OK"


def test_a_certificate_without_its_key_is_not_used_until_the_key_is_there(files: Directory) -> None:
    with files.start() as server:
        old = served_certificate(server.url)
        new = certify("server", files.ca)
        files.certificate.write_bytes(new.pem)
        assert served_certificate(server.url) == old
        assert "the certificate read last stays in use" in server.log
        files.key.write_bytes(new.key_pem)
        wait_until(lambda: served_certificate(server.url) == der(new), "new certificate")


def test_with_mutual_tls_a_client_needs_a_valid_certificate_and_a_token(files: Directory) -> None:
    with files.start(mutual=True) as server:
        good = certify("client", files.ca)
        assert files.code(server.url, client=good) == "OK"
        for bad in (None, certify("client"), certify("client", files.ca, days=-1)):
            assert files.code(server.url, client=bad) == "UNAVAILABLE"
        files.issuer.revoke(files.issuer.root)
        wait_until(lambda: files.code(server.url, client=good) == "UNAUTHENTICATED", "refused")


@pytest.mark.one_process
def test_the_socket_of_the_server_itself_answers_only_the_server(files: Directory) -> None:
    with files.start(mutual=True) as server:
        opened = {os.readlink(fd) for fd in Path(f"/proc/{server.process.pid}/fd").iterdir()}
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        (own,) = {line[7] for line in lines if line[-1].startswith("@scankv-") and f"socket:[{line[6]}]" in opened}
        with grpc.insecure_channel(f"unix-abstract:{own.removeprefix('@')}") as channel:
            caller = TokenCaller(channel, files.issuer.root)
            for method in (LIST, "grpc.health.v1.Health/Check", REFLECT):
                assert caller.code(method) == "PERMISSION_DENIED", method


def test_tls_below_1_2_is_refused(files: Directory) -> None:
    with files.start() as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        # Without security level 0, OpenSSL would not even offer it.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        host, _, port = server.url.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain)


def test_a_server_does_not_start_with_files_that_do_not_fit(files: Directory) -> None:
    files.key.write_bytes(certify("other").key_pem)
    with pytest.raises(Unavailable, match="are not a certificate and its unencrypted private key"):
        files.start()
    files.key.unlink()
    with pytest.raises(Unavailable, match=r"key.pem cannot be read: No such file or directory"):
        files.start()


def test_a_key_that_other_users_can_read_is_refused_and_a_running_server_keeps_its_pair(files: Directory) -> None:
    for mode in (0o644, 0o602):
        files.key.chmod(mode)
        with pytest.raises(Unavailable, match=rf"as 0600, 0640 and 0440 do, not {mode:04o}; run: chmod o= "):
            files.start()
    files.key.chmod(0o660)
    with files.start() as server:
        old = served_certificate(server.url)
        new = certify("server", files.ca)
        files.install(new, mode=0o644)
        assert served_certificate(server.url) == old
        assert "the certificate read last stays in use: users other than the owner and the group" in server.log
        files.key.chmod(0o640)
        wait_until(lambda: served_certificate(server.url) == der(new), "new certificate")


def test_beyond_loopback_a_server_starts_only_with_tls_and_tokens(files: Directory) -> None:
    data = files.path / "data"
    with ServerProcess(data, *files.arguments(), "--host", "0.0.0.0") as server:
        assert " WARNING " not in server.log
    for lacking, settings in (
        ("no TLS and no tokens", {}),
        ("no TLS", {"tokens": "t"}),
        ("no tokens", {"tls_certificate": "c", "tls_key": "k"}),
    ):
        with pytest.raises(UsageError, match=f"the server has {lacking}: give --tls-certificate, --tls-key and --tok"):
            ServerConfig(data=data, host="0.0.0.0", **settings)  # type: ignore[arg-type]
        assert ServerConfig(data=data, host="0.0.0.0", insecure=True, **settings).missing_protection == lacking  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"tls_key": "k"}, {"tls_certificate": "c"}, {"tls_client_ca": "a"}])
def test_settings_of_tls_need_each_other(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="tls_certificate"):
        ServerConfig(data=tmp_path, **given)  # type: ignore[arg-type]


# ---- The HTTP port ----


def read_metrics(port: int, path: str, tls: ssl.SSLContext | None) -> int:
    """Asks the HTTP port over a new connection. Returns the status of its answer."""
    scheme = "http" if tls is None else "https"
    try:
        with urlopen(f"{scheme}://127.0.0.1:{port}{path}", timeout=30, context=tls) as response:
            return int(response.status)
    except HTTPError as error:
        error.close()
        return error.code


def trusting(trusted: Certificate, directory: Path, client: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusted.pem.decode())
    if client is not None:
        pair = directory / f"{client.certificate.serial_number}.pem"
        pair.write_bytes(client.pem + client.key_pem)
        context.load_cert_chain(pair)
    return context


def monitored(files: Directory, host: str, *, mutual: bool = False) -> tuple[ServerProcess, int]:
    port = free_port()
    arguments = [*files.arguments(mutual=mutual), "--metrics-port", str(port), "--metrics-host", host]
    return ServerProcess(files.path / "data", *arguments), port


def test_beyond_loopback_metrics_are_encrypted_with_the_current_certificate(files: Directory) -> None:
    server, port = monitored(files, "0.0.0.0")
    with server:
        for path in ("/metrics", "/healthz", "/readyz"):
            assert read_metrics(port, path, trusting(files.ca, files.path)) == 200
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            read_metrics(port, "/metrics", trusting(certify("another", is_ca=True), files.path))
        with pytest.raises((URLError, OSError, HTTPException)):
            read_metrics(port, "/metrics", None)
        new = certify("server", files.ca)
        files.install(new)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
            trusting(files.ca, files.path).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.getpeercert(binary_form=True) == der(new)


def test_with_mutual_tls_metrics_need_a_client_certificate_and_probes_do_not(files: Directory) -> None:
    server, port = monitored(files, "0.0.0.0", mutual=True)
    with server:
        good, without = certify("prometheus", files.ca), trusting(files.ca, files.path)
        assert read_metrics(port, "/metrics", trusting(files.ca, files.path, good)) == 200
        assert read_metrics(port, "/metrics", without) == 403
        assert read_metrics(port, "/healthz", without) == read_metrics(port, "/readyz", without) == 200
        for bad in (certify("self"), certify("old", files.ca, days=-1), certify("x", certify("other", is_ca=True))):
            with pytest.raises(OSError, match=r"alert|reset|EOF|closed"):
                read_metrics(port, "/metrics", trusting(files.ca, files.path, bad))


def test_on_loopback_metrics_are_not_encrypted(files: Directory) -> None:
    server, port = monitored(files, "127.0.0.1", mutual=True)
    with server:
        assert read_metrics(port, "/metrics", None) == 200


def test_beyond_loopback_metrics_need_tls_or_consent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"metrics_host = 0\.0\.0\.0: other machines can reach this address"):
        ServerConfig(data=tmp_path, metrics_port=9464, metrics_host="0.0.0.0")
    ServerConfig(data=tmp_path, metrics_host="0.0.0.0")
    ServerConfig(data=tmp_path, metrics_port=9464, metrics_host="0.0.0.0", insecure=True)
