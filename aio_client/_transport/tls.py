"""TLS settings of a client, and the certificates that they name."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from aio_client._input.immutable import Immutable
from scankv.model.errors import UsageError

Pem: TypeAlias = "str | os.PathLike[str] | bytes"
"""The path of a PEM file, or PEM as bytes."""

# Where Linux distributions, the BSDs and macOS keep the certificates of the authorities that the system trusts. Python
# knows one of these places, which depends on how it was built.
_SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9._:-]+")


class Tls(Immutable):
    """How a client encrypts its connections and whom it trusts. Immutable.

    Certificates and keys are PEM, given as the path of a file or as bytes; a `str` is a path, and `~` stands for the
    home directory. Files are read for each new connection, so renewed ones are used without a restart.

    Picklable, unless `key` is bytes: a pickle has the paths, and the process that unpickles it reads its own files.

    Attributes:
        ca: The certificates of the authorities that may have issued the server's certificate. None: those that this
            machine trusts.
        certificate: The client's own certificate, followed by intermediate ones. None: the client has none.
        key: The private key of `certificate`, not encrypted. Not shown in `repr`.
        server_name: The name that must be in the server's certificate. None: the host of the url.
    """

    __slots__ = ("ca", "certificate", "key", "server_name")

    ca: Pem | None
    certificate: Pem | None
    key: Pem | None
    server_name: str | None

    def __init__(
        self,
        *,
        ca: Pem | None = None,
        certificate: Pem | None = None,
        key: Pem | None = None,
        server_name: str | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            ca: The certificates of the authorities that may have issued the server's certificate. Default: those that
                this machine trusts.
            certificate: The client's own certificate, for a server that requires one.
            key: The private key of `certificate`, not encrypted.
            server_name: The name that must be in the server's certificate. Default: the host of the url.

        Raises:
            UsageError: A value is of the wrong type, or only one of `certificate` and `key` is given.
        """
        for name, value in (("ca", ca), ("certificate", certificate), ("key", key)):
            _check_pem(name, value)
        if (certificate is None) != (key is None):
            missing, given = ("key", "certificate") if key is None else ("certificate", "key")
            raise UsageError(
                f"tls has a {given} without its {missing}: a client certificate needs both", option=f"tls_{missing}"
            )
        if server_name is not None and not (isinstance(server_name, str) and _SERVER_NAME.fullmatch(server_name)):
            raise UsageError(
                f"tls server_name must be the name in the server's certificate, such as db.example.com, not "
                f"{server_name!r:.80}",
                option="tls_server_name",
            )
        self._set(ca=ca, certificate=certificate, key=key, server_name=server_name)

    def __repr__(self) -> str:
        shown = [f"{name}={_shown(value)}" for name in ("ca", "certificate") if (value := getattr(self, name))]
        shown += ["key=<hidden>"] if self.key is not None else []
        shown += [f"server_name={self.server_name!r}"] if self.server_name is not None else []
        return f"Tls({', '.join(shown)})"

    def __reduce__(self) -> tuple[object, ...]:
        if isinstance(self.key, bytes):
            raise UsageError(
                "a private key that was given as bytes is not pickled, because any reader of the pickle could use it: "
                "give the path of its file",
                option="tls_key",
            )
        return _restore, self._values()


@dataclass(frozen=True, slots=True)
class Certificates:
    """The PEM data that gRPC needs. `roots` is None for gRPC's own list of authorities."""

    roots: bytes | None
    chain: bytes | None
    key: bytes | None = field(repr=False)


def read_certificates(tls: Tls) -> Certificates:
    """Reads the files of TLS settings, and checks them: gRPC would only report that no server answers.

    Raises:
        UsageError: A file cannot be read, is not PEM, or the key does not belong to the certificate.
    """
    roots = _system_roots() if tls.ca is None else _read_authorities(tls.ca)
    if tls.certificate is None or tls.key is None:
        return Certificates(roots, None, None)
    chain, key = _read("certificate", tls.certificate), _read("key", tls.key)
    if not isinstance(tls.certificate, bytes) and not isinstance(tls.key, bytes):
        try:
            # An empty password, since OpenSSL would ask for one on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(_path(tls.certificate), _path(tls.key), "")
        except (ssl.SSLError, OSError):
            raise UsageError(
                f"tls certificate and key must be a certificate in PEM and its private key, not encrypted, and "
                f"{_shown(tls.certificate)} and {_shown(tls.key)} are not: are they of the same pair?",
                option="tls_key",
            ) from None
    return Certificates(roots, chain, key)


def _read_authorities(ca: Pem) -> bytes:
    data = _read("ca", ca)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise UsageError(
            f"tls ca must contain certificates in PEM, and {_shown(ca)} does not", option="tls_ca"
        ) from None
    return data


def _system_roots() -> bytes | None:
    """Returns the authorities that this machine trusts. None: they are not found, and gRPC's own list is used."""
    for path in (ssl.get_default_verify_paths().cafile, *_SYSTEM_BUNDLES):
        if path is not None:
            try:
                return Path(path).read_bytes()
            except OSError:
                continue
    return None


def _restore(ca: Pem | None, certificate: Pem | None, key: Pem | None, server_name: str | None) -> Tls:
    return Tls(ca=ca, certificate=certificate, key=key, server_name=server_name)


def _check_pem(name: str, value: object) -> None:
    if value is None or (isinstance(value, bytes) and b"-----BEGIN " in value):
        return
    if isinstance(value, bytes):
        raise UsageError(f"tls {name} must be PEM if it is bytes, and does not begin like PEM", option=f"tls_{name}")
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise UsageError(
            f"tls {name} must be the path of a PEM file, or PEM as bytes, not {type(value).__name__}",
            option=f"tls_{name}",
        )
    # The message must not contain a key that is given as the wrong type.
    if "-----BEGIN" in os.fspath(value) or "\n" in os.fspath(value):
        raise UsageError(
            f"tls {name} must be the path of a PEM file if it is a str: give PEM itself as bytes", option=f"tls_{name}"
        )


def _read(name: str, value: Pem) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return _path(value).read_bytes()
    except OSError as error:
        raise UsageError(
            f"tls {name} cannot be read from {_shown(value)}: {error.strerror}", option=f"tls_{name}"
        ) from None


def _path(value: str | os.PathLike[str]) -> Path:
    return Path(value).expanduser()


def _shown(value: Pem) -> str:
    return f"<{len(value):,} bytes>" if isinstance(value, bytes) else repr(os.fspath(value))
