"""Certificates for tests: an authority, and what it issues."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

_DAY = dt.timedelta(days=1)
# Python 3.13 and later demand this of an authority, and that certificates name its key.
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A certificate authority, which issues certificates into a directory.

    Attributes:
        path: The file with its own certificate.
    """

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = dt.datetime.now(dt.UTC)
        own = (
            _builder(self._name, self._name, self._key, now - 2 * _DAY, now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, expired: bool = False, self_signed: bool = False) -> tuple[Path, Path]:
        """Issues a certificate for some hosts, or URIs. Returns the files of the certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        signer = key if self_signed else self._key
        now = dt.datetime.now(dt.UTC)
        ends = now - _DAY / 2 if expired else now + 7 * _DAY
        certificate = (
            _builder(_name(name), _name(name) if self_signed else self._name, key, now - _DAY, ends)
            .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts or (name,)]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        path, key_path = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.touch(0o600)
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return path, key_path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: dt.datetime, ends: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
