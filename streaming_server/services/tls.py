"""The server's side of TLS: credentials that follow the files of the certificate."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc

from scankv.model.errors import UsageError
from scankv.model.private_keys import check_key_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.config import ServerConfig

_log = logging.getLogger(__name__)


def server_credentials(config: ServerConfig) -> grpc.ServerCredentials:
    """Returns the credentials of a server, which read their files again when these change. At least TLS 1.2.

    Raises:
        UsageError: A file cannot be read, or has no certificate or no key, the key belongs to another certificate,
            or users outside its owner and group can read the key.
    """
    files = CertificateFiles(config.tls_certificate, config.tls_key, config.tls_client_ca)
    # The stub does not know that the function may return None for no change.
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", files.load_if_changed)
    return grpc.dynamic_ssl_server_credentials(files.load(), fetch, bool(config.tls_client_ca))


def https_context(config: ServerConfig) -> ssl.SSLContext:
    """Returns the TLS settings of the HTTP port, which read their files again when these change. At least TLS 1.2.

    With `tls_client_ca`, a client may give a certificate, which must then be valid.

    Raises:
        UsageError: As in `server_credentials`.
    """
    files = CertificateFiles(config.tls_certificate, config.tls_key, config.tls_client_ca)
    files.load()
    context = files.context

    def use_current(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        files.load_if_changed()
        connection.context = files.context

    # OpenSSL calls it in every handshake, whether the client names a server or not.
    context.sni_callback = use_current
    return context


class CertificateFiles:
    """The files of TLS: certificate, key, and the authorities of clients.

    gRPC calls `load_if_changed` before each handshake, one call at a time, in threads of its own.

    Attributes:
        context: The files that were read last, as Python uses them.
    """

    context: ssl.SSLContext

    def __init__(self, certificate: str, key: str, client_ca: str) -> None:
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._client_ca = Path(client_ca) if client_ca else None
        self._loaded: tuple[tuple[int, ...], ...] = ()
        self._reported: tuple[tuple[int, ...], ...] = ()

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Reads the files and checks them. Returns what gRPC wants.

        Raises:
            UsageError: A file cannot be used.
        """
        seen = self._identities()
        try:
            check_key_mode(self._key, self._key.stat().st_mode)
            chain, key = self._certificate.read_bytes(), self._key.read_bytes()
            authorities = None if self._client_ca is None else self._client_ca.read_bytes()
        except OSError as error:
            raise UsageError(f"the file {error.filename} cannot be read: {error.strerror}", option="tls_key") from error
        self.context = self._check()
        self._loaded = seen
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)

    def load_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns what gRPC wants if a file has changed; None otherwise, or if the files cannot be used.

        While the files are being replaced one by one, they do not fit together. The old ones stay in use until then.
        """
        identities = self._identities()
        if identities == self._loaded:
            return None
        try:
            loaded = self.load()
        except UsageError as error:
            if identities != self._reported:
                self._reported = identities
                _log.error("the certificate read last stays in use: %s", error.message)
            return None
        _log.info("using the new certificate in %s", self._certificate)
        return loaded

    def _check(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"{self._certificate} and {self._key} are not a certificate and its unencrypted private key, in PEM",
                option="tls_certificate",
            ) from error
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise UsageError(f"{self._client_ca} has no certificates in PEM", option="tls_client_ca") from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _identities(self) -> tuple[tuple[int, ...], ...]:
        paths = [self._certificate, self._key, *([] if self._client_ca is None else [self._client_ca])]
        return tuple(_identity(path) for path in paths)


def _identity(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
