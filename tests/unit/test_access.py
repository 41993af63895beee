"""Grants, the token file, and when a token is valid."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from scankv.model.errors import UsageError
from streaming_server.access.callers import CallerIdentity, TokenStore
from streaming_server.access.certificates import ClientCertificate, read_certificate
from streaming_server.access.grants import Grants, Role
from streaming_server.access.token_file import create_token, id_of, read_tokens, revoke_tokens
from streaming_server.services.authorization import GATEWAY
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def create(path: Path, *grants: str, **options: Any) -> str:
    return create_token(path, "etl", grants or ("read:*",), now=NOW, **options)[1]


def store(path: Path, seconds: float = 0.0) -> TokenStore:
    return TokenStore(path, lambda: NOW.timestamp() + seconds)


def test_a_role_includes_the_lower_ones_for_the_tables_of_its_pattern() -> None:
    grants = Grants(["read:sales.*", "write:sales.o?ders", "admin:tmp.[a-c]*"])
    assert grants.allow(Role.READ, "sales.customers")
    assert not grants.allow(Role.WRITE, "sales.customers")
    assert grants.allow(Role.WRITE, "sales.orders")
    assert not grants.allow(Role.ADMIN, "sales.orders")
    assert grants.allow(Role.READ, "tmp.bx")
    assert grants.allow(Role.ADMIN, "tmp.bx")
    assert not grants.allow(Role.READ, "tmp.x")
    assert not grants.allow(Role.READ, "SALES.customers")
    assert not grants.allow(Role.READ, "other.sales.x")
    assert grants.allow_somewhere(Role.ADMIN)
    assert not grants.allow_everywhere(Role.READ)


@pytest.mark.parametrize("pattern", ["*", "*.*"])
def test_two_patterns_stand_for_the_server(pattern: str) -> None:
    assert Grants([f"write:{pattern}"]).allow_everywhere(Role.WRITE)
    assert not Grants([f"write:{pattern}"]).allow_everywhere(Role.ADMIN)
    assert not Grants(["write:?*"]).allow_everywhere(Role.WRITE)


@pytest.mark.parametrize(
    "text", ["", "read", "read:", "owner:*", "READ:*", ":x", "read: x", "read:x\n", "read:" + "x" * 301]
)
def test_a_malformed_grant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not valid: write read, write or admin, a colon, and a pattern"):
        Grants([text])


def test_the_file_has_the_hash_of_a_token_and_belongs_to_its_user(path: Path) -> None:
    token = create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.split("_", 2)[2] not in path.read_text()
    ((id_, record),) = read_tokens(path).items()
    assert id_ == id_of(token) == record.id
    assert record.sha256 not in repr(record)
    assert [file.name for file in path.parent.iterdir()] == ["tokens"]


def test_a_valid_token_has_its_caller_and_others_a_reason_for_the_log(path: Path) -> None:
    token, expiring, revoked = (
        create(path, "read:a.*"),
        create(path, expires=NOW + timedelta(hours=1)),
        create(path),
    )
    assert revoke_tokens(path, [id_of(revoked) or "", "none"], now=NOW) == ["none"]
    tokens = store(path, 3599)
    caller = tokens.verify(token)
    assert isinstance(caller, CallerIdentity)
    assert (caller.principal, caller.grants.texts) == ("etl", ("read:a.*",))
    assert isinstance(tokens.verify(expiring), CallerIdentity)
    assert store(path, 3600).verify(expiring) == f"the token {id_of(expiring)} of etl has expired"
    assert tokens.verify(revoked) == f"the token {id_of(revoked)} of etl was revoked"
    for wrong in (token[:-1], token + "x", f"skv_{id_of(token)}_wrong", "skv_none_secret"):
        assert tokens.verify(wrong) == "the token is unknown"
    for malformed in ("", "skv", "skv_", "skv_a", "skv__b", "x_y_z", token.removeprefix("skv_")):
        assert tokens.verify(malformed) == "the token is malformed"


def certificate(*names: str, seconds: float = 60.0) -> ClientCertificate:
    return ClientCertificate(names, NOW.timestamp() + seconds)


def test_a_certificate_has_the_caller_of_the_last_valid_line_that_names_it(path: Path) -> None:
    create(path, "read:a.*", certificate="cn=reports")
    last = create_token(path, "etl", ["write:a.*"], now=NOW, certificate="DNS=Reports.Example", limits={"scans": 3})[0]
    tokens = store(path)
    presented = certificate("CN=reports", "DNS=reports.example")
    caller = tokens.identify(presented)
    assert isinstance(caller, CallerIdentity)
    assert (caller.token_id, caller.grants.texts, caller.limits) == (last.id, ("write:a.*",), (("scans", 3),))
    assert tokens.identify(presented) is tokens.renewed(caller) is tokens.certified(last.id, presented.ends) is caller
    for other in ("CN=Reports", "CN=reports.example", "DNS=reports", "EMAIL=reports"):
        assert tokens.identify(certificate(other)) == f"no line of the token file names the certificate {other}"
    revoke_tokens(path, [last.id], now=NOW)
    tokens.reload()
    assert tokens.renewed(caller) == f"the token {last.id} of etl was revoked"
    earlier = tokens.identify(presented)
    assert isinstance(earlier, CallerIdentity)
    assert earlier.grants.texts == ("read:a.*",)


def test_a_caller_with_a_certificate_ends_with_the_certificate_or_the_line_whichever_ends_first(path: Path) -> None:
    create(path, certificate="CN=a", expires=NOW + timedelta(seconds=30))
    caller = store(path).identify(certificate("CN=a"))
    assert isinstance(caller, CallerIdentity)
    assert caller.expires_at == NOW.timestamp() + 30
    assert store(path, 30).renewed(caller) == f"the token {caller.token_id} of etl has expired"
    caller = store(path).identify(certificate("CN=a", seconds=10))
    assert isinstance(caller, CallerIdentity)
    assert caller.expires_at == NOW.timestamp() + 10
    assert store(path, 10).renewed(caller) == "the certificate of etl has expired"


@pytest.mark.parametrize("changed", [{"certificate": "CN=b"}, {"certificate": None, "sha256": "0" * 64}])
def test_a_caller_ends_when_the_line_is_for_another_certificate(path: Path, changed: dict[str, str | None]) -> None:
    create(path, certificate="CN=a")
    tokens = store(path)
    caller = tokens.identify(certificate("CN=a"))
    assert isinstance(caller, CallerIdentity)
    line = {**json.loads(path.read_text()), **changed}
    path.write_text(json.dumps({name: value for name, value in line.items() if value is not None}) + "\n")
    tokens.reload()
    assert "certificate" in str(tokens.renewed(caller))
    assert not isinstance(tokens.renewed(caller), CallerIdentity)


@pytest.mark.parametrize("name", ["a\nERROR of another", "a\x1b[2J", "a\u202eb", "x" * 301])
def test_names_that_no_line_can_have_do_not_count(tmp_path: Path, name: str) -> None:
    found = read_certificate(self_signed(name))
    assert (found.names, str(found)) == ((), "without a name")


def test_long_names_of_a_certificate_are_cut_in_errors() -> None:
    assert str(certificate("CN=" + "x" * 300, "DNS=a")) == "CN=" + "x" * 97 + "..., DNS=a"


def self_signed(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    # A common name has at most 64 characters.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= 64 else [])
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)] if name.isascii() else [])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), NOW, NOW)
    return builder.add_extension(names, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_names_of_a_certificate_are_read_with_their_kinds(tmp_path: Path) -> None:
    pem = Authority(tmp_path).issue("reports", "Reports.Example", "spiffe://a/b", "127.0.0.1")[0].read_bytes()
    assert read_certificate(pem).names == ("CN=reports", "DNS=reports.example", "URI=spiffe://a/b")
    assert read_certificate(b"nothing").names == ()


@pytest.mark.parametrize("name", ["", "reports", "CN=", "IP=127.0.0.1", "CN=a\n", f"CN={'x' * 301}"])
def test_a_line_names_certificates_by_a_kind_and_a_name(path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="certificate must be one of CN, DNS, URI, EMAIL, an equals sign, and a name"):
        create(path, certificate=name)


def test_a_name_in_the_file_is_never_the_principal_of_another_source(path: Path) -> None:
    for name in ("jwt:root", "token:root", GATEWAY.principal):
        with pytest.raises(UsageError, match=f"principal must not begin with .*:, not {name}: choose another name"):
            create_token(path, name, ["read:*"], now=NOW)
    token = create(path)
    # As an earlier version has written it.
    path.write_text(path.read_text().replace('"etl"', '"jwt:root"'))
    caller = store(path).verify(token)
    assert isinstance(caller, CallerIdentity)
    assert caller.principal == "token:jwt:root"


def test_a_line_has_either_a_hash_or_a_certificate(path: Path) -> None:
    create(path, certificate="CN=a")
    ((_, record),) = read_tokens(path).items()
    stored = json.loads(path.read_text())
    assert "sha256" not in stored
    for changes, problem in (
        ({"sha256": "0" * 64}, "it must have either sha256 or certificate"),
        ({"certificate": ""}, "it must have either sha256 or certificate"),
        ({"certificate": "cn=a"}, "certificate must be written as CN=a, not cn=a"),
        ({"certificate": 1}, "a field has a value of the wrong type"),
    ):
        path.write_text(json.dumps({**stored, **changes}))
        with pytest.raises(UsageError, match=problem):
            read_tokens(path)
    path.write_text(json.dumps(stored))
    assert read_tokens(path) == {record.id: record}


def test_no_reason_and_no_repr_has_a_token(path: Path) -> None:
    token = create(path)
    secret = token.split("_", 2)[2]
    tokens = store(path)
    assert secret not in f"{tokens.verify(token)!r} {tokens!r} {tokens.verify(token + 'x')!r}"


def test_changes_of_the_file_are_read_at_once_for_new_tokens_and_on_reload_for_others(path: Path) -> None:
    first = create(path)
    tokens = store(path)
    caller = tokens.verify(first)
    assert isinstance(caller, CallerIdentity)
    second = create(path)
    assert isinstance(tokens.verify(second), CallerIdentity)
    revoke_tokens(path, [caller.token_id], now=NOW)
    tokens.reload()
    assert isinstance(tokens.renewed(caller), str)


@pytest.mark.parametrize("changed", [{"sha256": "0" * 64}, {"sha256": None, "certificate": "CN=a"}])
def test_a_caller_ends_when_the_line_is_for_another_token(path: Path, changed: dict[str, str | None]) -> None:
    token = create(path)
    tokens = store(path)
    caller = tokens.verify(token)
    assert isinstance(caller, CallerIdentity)
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "grants": ["read:*"]}) + "\n")
    tokens.reload()
    assert isinstance(tokens.renewed(caller), CallerIdentity)
    line.update(changed)
    path.write_text(json.dumps({name: value for name, value in line.items() if value is not None}) + "\n")
    tokens.reload()
    assert tokens.renewed(caller) == f"the line {caller.token_id} of etl is now for another token"


def test_tokens_stay_valid_when_the_file_is_damaged_or_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = create(path)
    tokens = store(path)
    path.write_text("not a record")
    tokens.reload()
    assert isinstance(tokens.verify(token), CallerIdentity)
    path.unlink()
    tokens.reload()
    assert isinstance(tokens.verify(token), CallerIdentity)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 2


def test_an_unusable_file_is_refused_without_its_content(path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file or directory; create a token with"):
        read_tokens(path)
    create(path)
    record = json.loads(path.read_text())
    for wrong, problem in (
        ("secret", "it is not JSON"),
        ("[]", "it must be a JSON object with certificate, created, expires"),
        (json.dumps({**record, "extra": 1}), "it must be a JSON object"),
        (json.dumps({**record, "grants": ["owner:x"]}), "is not valid: write read"),
        (json.dumps({**record, "grants": 5}), "a field has a value of the wrong type"),
        (json.dumps({**record, "sha256": "ab"}), "sha256 must be 64 hexadecimal digits"),
        (json.dumps({**record, "sha256": "secret"}), "wrong type"),
        (json.dumps({**record, "expires": "2026-01-01T00:00:00"}), "a time has no time zone"),
        (json.dumps(record) + "\n" + json.dumps(record), "occurs twice"),
    ):
        path.write_text(wrong)
        with pytest.raises(UsageError, match=problem) as caught:
            read_tokens(path)
        assert "secret" not in caught.value.message
    path.write_text("")
    path.chmod(0o620)
    with pytest.raises(UsageError, match="other users may change the token file"):
        read_tokens(path)


def test_a_token_needs_a_grant_a_name_and_a_future(path: Path) -> None:
    for principal, grants, expires in (
        ("", ["read:*"], None),
        ("a\n", ["read:*"], None),
        ("a", [], None),
        ("a", ["read:*"], NOW),
    ):
        with pytest.raises(UsageError):
            create_token(path, principal, grants, now=NOW, expires=expires)
    assert not path.exists()
