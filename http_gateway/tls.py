"""TLS of the gateway, with files that may be replaced while it runs, and the name that a certificate is for."""

from __future__ import annotations

import logging
import os
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scankv.model.errors import UsageError
from scankv.model.private_keys import check_key_mode

if TYPE_CHECKING:
    from http_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


def https_context(settings: GatewaySettings) -> ssl.SSLContext:
    """Returns the settings of HTTPS, which read their files again when these change. At least TLS 1.2.

    Raises:
        UsageError: A file cannot be used.
    """
    context, seen = _load(settings), _identities(settings)

    def use_current(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal context, seen
        if (now := _identities(settings)) != seen:
            # While files are being replaced, they may not fit together. The old ones stay in use until then.
            try:
                context = _load(settings)
            except UsageError as error:
                _log.error("the certificate read last stays in use: %s", error.message)
            seen = now
        connection.context = context

    # OpenSSL calls it in every handshake, whether the client names a server or not.
    first = context
    first.sni_callback = use_current
    return first


def name_in_certificate(certificate: str, key: str) -> str:
    """Returns a name or an address that a certificate is for.

    Python decodes only the certificate of a peer, so this function shakes hands with itself in memory.

    Raises:
        UsageError: The files cannot be used, or the certificate has no name of a server.
    """
    server_context, client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    # The chain may end at an authority that is not in the file.
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server_context.load_cert_chain(certificate, key, password="")
        client_context.load_verify_locations(certificate)
        server = server_context.wrap_bio(to_server, to_client, server_side=True)
        client = client_context.wrap_bio(to_client, to_server)
        for side in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        peer = client.getpeercert() or {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{certificate} is not a valid certificate with its key {key}: {error}") from error
    alternatives: Any = peer.get("subjectAltName", ())
    names = [name for kind, name in alternatives if kind in ("DNS", "IP Address")]
    if not names:
        raise UsageError(f"{certificate} has no name or address of a server: issue one with subjectAltName")
    name = str(names[0])
    return name.replace("*", "any", 1) if name.startswith("*.") else name


def _load(settings: GatewaySettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        check_key_mode(settings.tls_key, os.stat(settings.tls_key).st_mode)
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")
        if settings.tls_client_ca:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{settings.tls_certificate} and {settings.tls_key} are not a certificate and its unencrypted private key, "
            "in PEM, or the authorities of clients are not certificates",
            option="tls_certificate",
        ) from error
    return context


def _identities(settings: GatewaySettings) -> tuple[tuple[int, ...], ...]:
    paths = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    return tuple(_identity(path) for path in paths if path)


def _identity(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
