"""The certificates of clients (mutual TLS): by which names the token file may grant them something, and when they end.

TLS has verified them when their connection began. Whether they have ended since is checked for each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography import x509

KINDS: Final = ("CN", "DNS", "URI", "EMAIL")
"""The kinds of names: the common name of the subject, and alternative names."""

_MAX_NAME: Final = 300
_MOST_REMEMBERED: Final = 1000
_MOST_NAMED: Final = 5
_MOST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """What counts of the certificate of a client. Immutable.

    Attributes:
        names: Its names, each with its kind, as in `CN=reports`. Others than the token file can have do not count.
        ends: The seconds since 1970 UTC at which it stops being valid.
    """

    names: tuple[str, ...]
    ends: float

    def __str__(self) -> str:
        """Its first names, for errors. Long ones are cut."""
        shown = (name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}..." for name in self.names[:_MOST_NAMED])
        return ", ".join(shown) or "without a name"


def checked_name(text: str) -> str:
    """Returns the name of certificates that a text stands for, as certificates are compared with it.

    Raises:
        UsageError: The text is not such a name.
    """
    kind, _, name = text.partition("=")
    if kind.upper() not in KINDS or not _may_count(name):
        raise UsageError(
            f"certificate must be one of {', '.join(KINDS)}, an equals sign, and a name in certificates of clients, as "
            f"in CN=reports or DNS=reports.example.com, not {text[:_MAX_NAME]!r}"
        )
    return _name(kind.upper(), name)


@lru_cache(maxsize=_MOST_REMEMBERED)
def read_certificate(pem: bytes) -> ClientCertificate:
    """Returns the certificate of a client, as TLS has accepted it. One that cannot be read has no names."""
    # Imported on use, because few servers need it.
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = tuple(dict.fromkeys(_names_in(certificate)))
        return ClientCertificate(names, certificate.not_valid_after_utc.timestamp())
    except ValueError:
        return ClientCertificate((), 0.0)


def _names_in(certificate: x509.Certificate) -> Iterator[str]:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    common = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    # An authority may have checked only one of several.
    if len(common) == 1 and isinstance(common[0], str) and _may_count(common[0]):
        yield _name("CN", common[0])
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    kinds: tuple[tuple[str, type[x509.DNSName | x509.UniformResourceIdentifier | x509.RFC822Name]], ...] = (
        ("DNS", x509.DNSName),
        ("URI", x509.UniformResourceIdentifier),
        ("EMAIL", x509.RFC822Name),
    )
    for kind, type_ in kinds:
        for name in found.get_values_for_type(type_):
            if _may_count(name):
                yield _name(kind, name)


def _may_count(name: str) -> bool:
    """Whether a name can stand in the token file, and in a line of the log."""
    return 0 < len(name) <= _MAX_NAME and name.isprintable()


def _name(kind: str, name: str) -> str:
    return f"{kind}={name.lower() if kind == 'DNS' else name}"
