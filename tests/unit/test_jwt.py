"""JSON web tokens: which are accepted, what they grant, and where the keys come from."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from scankv.model.errors import UsageError
from streaming_server.access.callers import CallerIdentity
from streaming_server.access.grants import Role
from streaming_server.access.jwt_settings import ALGORITHMS, JwtSettings, url_problem
from streaming_server.access.jwt_verifier import IssuedCaller, JwtVerifier
from streaming_server.access.principals import principal_in_file
from streaming_server.access.signing_keys import IssuerKeys
from streaming_server.config import ServerConfig
from streaming_server.server import Server
from tests.support.certificates import Authority
from tests.support.identity_provider import (
    AUDIENCE,
    DISCOVERY,
    IdentityProvider,
    Issuer,
    encoded,
    make_key,
    public_jwk,
    public_pem,
)
from tests.support.waiting import await_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio

GRANTS = '[grants]\nanalysts = ["read:sales.*"]\n"etl:loader" = ["write:sales.*", "read:raw.*"]\n'


class SetClock:
    """A clock that tests set."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


class Verifying:
    """An issuer, a verifier that reads its keys from a file, and the clock of the verifier."""

    def __init__(self, directory: Path, algorithm: str = "ES256", **changes: Any) -> None:
        self.issuer = Issuer(algorithm=algorithm)
        self.keys, self.grants = directory / "keys", directory / "grants.toml"
        self.keys.write_text(json.dumps(self.issuer.key_set()))
        self.grants.write_text(GRANTS)
        self.settings = settings_of(self.issuer, self.grants, **{"keys": self.keys, **changes})
        self.clock = SetClock(time.time())
        self.verifier = JwtVerifier(self.settings, self.clock)

    async def verify(self, token: str) -> CallerIdentity | str:
        return await self.verifier.verify(token)

    async def caller(self, **claims: Any) -> IssuedCaller:
        found = await self.verify(self.issuer.token(**claims))
        assert isinstance(found, IssuedCaller), found
        return found

    async def reason(self, **changes: Any) -> str:
        found = await self.verify(self.issuer.token(**changes))
        assert isinstance(found, str)
        return found


def settings_of(issuer: Issuer, grants: Path, **changes: Any) -> JwtSettings:
    values: dict[str, Any] = {
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "keys": None,
        "ca": None,
        "grants": grants,
        "grants_claim": "groups",
        "principal_claim": "sub",
        "shares_names": False,
        "algorithms": ALGORITHMS,
        "leeway_seconds": 30.0,
        "max_key_age_seconds": 3600.0,
    }
    return JwtSettings(**{**values, **changes})


@pytest.fixture
def known(tmp_path: Path) -> Verifying:
    return Verifying(tmp_path)


# ---- Tokens ----


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_valid_token_has_its_caller(tmp_path: Path, algorithm: str) -> None:
    known = Verifying(tmp_path, algorithm)
    caller = await known.caller(aud=["other", AUDIENCE])
    assert caller.principal == "jwt:ann"
    assert caller.token_id == ""
    assert caller.grants.allow(Role.READ, "sales.orders")
    assert not caller.grants.allow(Role.WRITE, "sales.orders")
    assert not caller.grants.allow(Role.READ, "raw.events")


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://other.example.com"}, "the token is of another issuer"),
        ({"iss": None}, "the token lacks exp, iss or aud"),
        ({"aud": "other"}, "the token is for another audience"),
        ({"aud": None}, "the token lacks exp, iss or aud"),
        ({"aud": [f"{AUDIENCE}2"]}, "the token is for another audience"),
        ({"exp": None}, "the token lacks exp, iss or aud"),
        ({"exp": "tomorrow"}, "a time in the token is not a number of seconds"),
        ({"exp": 1e300}, "a time in the token is not a number of seconds"),
        ({"exp": float("nan")}, "a time in the token is not a number of seconds"),
        ({"nbf": "now"}, "a time in the token is not a number of seconds"),
        ({"sub": None}, "the token has no text in the claim sub"),
        ({"sub": ""}, "the claim sub of the token is not the name of a principal"),
        ({"sub": "x" * 129}, "the claim sub of the token is not the name of a principal"),
        ({"sub": "ann\n"}, "the claim sub of the token is not the name of a principal"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused(known: Verifying, claims: dict[str, Any], reason: str) -> None:
    assert await known.reason(**claims) == reason


async def test_times_are_compared_by_the_clock_of_the_server_with_a_leeway(known: Verifying) -> None:
    now = known.clock.seconds
    for claims in ({"exp": now - 29}, {"nbf": now + 29}, {"iat": now + 29}):
        await known.caller(**claims)
    assert await known.reason(exp=now - 30) == "the token of jwt:ann has expired"
    for claims in ({"nbf": now + 31}, {"iat": now + 31}):
        assert await known.reason(**claims) == "the token of jwt:ann is not yet valid"


async def test_a_token_of_another_key_is_refused(known: Verifying) -> None:
    assert await known.reason(key=make_key()) == "the signature is wrong"
    token = known.issuer.token()
    head, body, signature = token.split(".")
    forged = encoded(known.issuer.claims(groups=["etl:loader"]))
    assert await known.verify(f"{head}.{forged}.{signature}") == "the signature is wrong"
    assert isinstance(await known.verify(f"{head}.{body}."), str)


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
async def test_a_public_key_is_no_shared_secret(tmp_path: Path, algorithm: str) -> None:
    known = Verifying(tmp_path, algorithm)
    secret = public_pem(known.issuer.keys["first"])
    for name in ("HS256", "HS384", "HS512"):
        text = f"{encoded({'alg': name, 'kid': 'first'})}.{encoded(known.issuer.claims())}"
        signature = hmac.new(secret, text.encode(), hashlib.new(f"sha{name[2:]}").name).digest()
        found = await known.verify(f"{text}.{encoded(signature)}")
        assert found == "the token is signed with an algorithm that is not allowed"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", None, 5, "ES256K"])
async def test_a_token_without_an_allowed_algorithm_is_refused(known: Verifying, name: object) -> None:
    for signature in ("", "AAAA"):
        token = f"{encoded({'alg': name, 'kid': 'first'})}.{encoded(known.issuer.claims())}.{signature}"
        assert await known.verify(token) == "the token is signed with an algorithm that is not allowed"


async def test_only_the_algorithms_of_the_settings_are_allowed(tmp_path: Path) -> None:
    known = Verifying(tmp_path, algorithms=("RS256",))
    assert await known.reason() == "the token is signed with an algorithm that is not allowed"


async def test_a_key_is_used_only_with_its_own_algorithm(tmp_path: Path) -> None:
    known = Verifying(tmp_path, "RS256")
    key = known.issuer.keys["first"]
    known.keys.write_text(json.dumps({"keys": [public_jwk(key, "first", alg="RS512")]}))
    known.verifier.check()
    assert await known.reason() == "no known key of the issuer fits the token"


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b.c", "a.b", f"{encoded([])}.e30.e30", f"{encoded({'alg': 'ES256', 'kid': 5})}.e30.e30",
     f"{encoded(b'[' * 5000)}.e30.e30", f"{encoded({'alg': 'ES256', 'crit': ['x'], 'x': 1, 'kid': 'first'})}.e30.e30",
     f"{encoded({'alg': 'ES256', 'b64': False, 'crit': ['b64'], 'kid': 'first'})}.e30.e30", "skv_1_x"],
)  # fmt: skip
async def test_a_malformed_token_is_refused(known: Verifying, token: str) -> None:
    assert await known.verify(token) == "the token is malformed"


async def test_a_key_in_the_token_itself_is_not_used(known: Verifying) -> None:
    key = make_key()
    header = {"kid": "mine", "jwk": public_jwk(key, "mine"), "jku": "http://127.0.0.1:1/keys"}
    assert await known.reason(key=key, headers=header) == "no known key of the issuer fits the token"


async def test_a_verified_token_is_not_verified_again_until_it_expires(
    known: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = known.issuer.token()
    caller = await known.verify(token)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a signature is checked")

    monkeypatch.setattr(jwt, "decode", fail)
    assert await known.verify(token) is caller
    assert isinstance(caller, IssuedCaller)
    known.clock.seconds += 631
    assert known.verifier.renewed(caller) == "the token of jwt:ann has expired"
    assert await known.verify(token) == "the token of jwt:ann has expired"


async def test_the_memory_of_verified_tokens_is_bounded(known: Verifying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_server.access.jwt_verifier._MAX_REMEMBERED", 3)
    for number in range(10):
        await known.caller(jti=str(number))
    assert len(known.verifier._verified) == 3


async def test_no_reason_has_a_token(known: Verifying, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for changes in ({"iss": "x"}, {"exp": 5}, {"key": make_key()}, {"headers": {"kid": "z"}}):
        token = known.issuer.token(**changes)
        found = repr(await known.verify(token)) + caplog.text
        assert not any(part in found for part in token.split("."))


# ---- Grants ----


@pytest.mark.parametrize(
    ("claim", "value", "settings"),
    [
        ("groups", ["x", "etl:loader"], {}),
        ("scope", "openid etl:loader", {"grants_claim": "scope"}),
        ("sub", "etl:loader", {"grants_claim": "sub"}),
        ("realm_access", {"roles": ["etl:loader"]}, {"grants_claim": "realm_access.roles"}),
        ("https://example.com/roles", ["etl:loader"], {"grants_claim": "https://example.com/roles"}),
    ],
)
async def test_groups_are_found_where_issuers_write_them(
    tmp_path: Path, claim: str, value: object, settings: dict[str, Any]
) -> None:
    caller = await Verifying(tmp_path, **settings).caller(**{claim: value})
    assert caller.grants.allow(Role.WRITE, "sales.orders")
    assert caller.grants.allow(Role.READ, "raw.events")


@pytest.mark.parametrize("groups", [None, [], ["none"], 5, {"analysts": 1}, [["analysts"]], "admin:*"])
async def test_a_caller_without_a_known_group_may_do_nothing(known: Verifying, groups: object) -> None:
    caller = await known.caller(groups=groups)
    assert not caller.grants.allow_somewhere(Role.READ)


async def test_the_principal_is_in_the_claim_of_the_settings(tmp_path: Path) -> None:
    caller = await Verifying(tmp_path, principal_claim="email").caller(email="ann@example.com")
    assert caller.principal == "jwt:ann@example.com"


@pytest.mark.parametrize("name", ["root", "jwt:root", "token:root", "token:jwt:root"])
async def test_a_name_in_a_token_is_no_principal_of_the_token_file_unless_the_settings_say_so(
    tmp_path: Path, name: str
) -> None:
    names = ["root", "jwt:root", "token:root", "token:jwt:root", "token:token:root"]
    in_file = {principal_in_file(each) for each in names}
    assert len(in_file) == len(names)
    assert (await Verifying(tmp_path).caller(sub=name)).principal not in in_file
    shared = await Verifying(tmp_path, shares_names=True).caller(sub=name)
    assert shared.principal == principal_in_file(name)


async def test_changed_grants_hold_for_running_streams_and_known_tokens(
    known: Verifying, caplog: pytest.LogCaptureFixture
) -> None:
    token = known.issuer.token()
    caller = await known.verify(token)
    assert isinstance(caller, IssuedCaller)
    known.grants.write_text('[grants]\nanalysts = ["read:raw.*"]\n')
    known.verifier.check()
    for found in (known.verifier.renewed(caller), await known.verify(token)):
        assert isinstance(found, CallerIdentity)
        assert not found.grants.allow(Role.READ, "sales.orders")
        assert found.grants.allow(Role.READ, "raw.events")
    assert await known.verify(token) is await known.verify(token)
    known.grants.write_text("no toml")
    known.verifier.check()
    assert isinstance(await known.verify(token), CallerIdentity)
    assert "the grants read last stay valid" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "must have the table"),
        ("[grants]\na = 1", 'grants of "a"'),
        ("[grants]\na = [1]", 'grants of "a"'),
        ('[grants]\na = ["owner:x"]', "is not valid: write read"),
        ("[grants", "is not valid TOML"),
        ("[grants]\n[more]", "and nothing else"),
    ],
)
async def test_unusable_grants_are_refused(tmp_path: Path, known: Verifying, text: str, message: str) -> None:
    known.grants.write_text(text)
    with pytest.raises(UsageError, match=message):
        JwtVerifier(known.settings, known.clock)


@pytest.mark.parametrize("name", ["keys", "grants"])
async def test_files_that_others_may_change_or_that_are_missing_are_refused(known: Verifying, name: str) -> None:
    path = str(getattr(known, name))
    os.chmod(path, 0o666)
    with pytest.raises(UsageError, match="other users may change the file of"):
        JwtVerifier(known.settings, known.clock)
    os.remove(path)
    with pytest.raises(UsageError, match="cannot be read: No such file or directory"):
        JwtVerifier(known.settings, known.clock)


# ---- Keys in a file ----


async def test_public_keys_and_certificates_in_pem_need_no_name(tmp_path: Path) -> None:
    known = Verifying(tmp_path)
    known.keys.write_bytes(public_pem(make_key("RS256")) + public_pem(known.issuer.keys["first"]))
    known.verifier.check()
    for headers in ({}, {"kid": "any"}):
        await known.caller(headers=headers)


async def test_a_changed_file_of_keys_is_read_and_callers_of_removed_keys_are_refused(
    known: Verifying, caplog: pytest.LogCaptureFixture
) -> None:
    token = known.issuer.token()
    caller = await known.verify(token)
    assert isinstance(caller, IssuedCaller)
    known.issuer.rotate("second")
    known.keys.write_text(json.dumps(known.issuer.key_set()))
    await known.caller()
    assert known.verifier.renewed(caller) == "the key that signed the token of jwt:ann is no longer valid"
    assert "is no longer valid" in str(await known.verify(token))
    known.keys.write_text("{}")
    known.verifier.check()
    await known.caller(jti="another")
    assert "the keys of tokens read last stay valid" in caplog.text


async def test_a_token_without_a_name_needs_a_single_key(known: Verifying) -> None:
    await known.caller(headers={})
    known.issuer.keys["second"] = make_key()
    known.keys.write_text(json.dumps(known.issuer.key_set()))
    known.verifier.check()
    assert await known.reason(headers={}) == "no known key of the issuer fits the token"


def oct_key() -> dict[str, Any]:
    return {"kty": "oct", "kid": "shared", "k": encoded(b"x" * 32), "alg": "HS256"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"keys": [oct_key()]}, "has no public key of a kind"),
        ({"keys": [public_jwk(make_key(), "a", use="enc")]}, "has no public key of a kind"),
        ({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}, "has no public key of a kind"),
        ({"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}, "has no public key of a kind"),
        ({"keys": [5, None, {}]}, "has no public key of a kind"),
        ({"keys": [{}] * 101}, "a list of at most 100 keys"),
        ({"keys": {}}, "a list of at most 100 keys"),
    ],
)
async def test_a_key_set_without_usable_keys_is_refused(known: Verifying, keys: object, message: str) -> None:
    known.keys.write_text(json.dumps(keys))
    with pytest.raises(UsageError, match=message):
        JwtVerifier(known.settings, known.clock)


async def test_a_private_key_and_other_text_are_refused(known: Verifying) -> None:
    from cryptography.hazmat.primitives import serialization

    private = make_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    broken = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"
    for text, message in (
        (private, "has a private key"),
        (b"keys", "must have 1 to 4 public keys"),
        (b"{" * 10_000, "is not JSON"),
        (broken, "neither a public key nor a certificate"),
        (b"x" * 600_000, "must have at most"),
    ):
        known.keys.write_bytes(text)
        with pytest.raises(UsageError, match=message):
            JwtVerifier(known.settings, known.clock)


# ---- Keys of the issuer ----


class Fetching:
    """A verifier that fetches keys, with the clocks that it uses."""

    def __init__(self, settings: JwtSettings) -> None:
        self.monotonic = SetClock(1000.0)
        self.keys = IssuerKeys(settings, self.monotonic)
        self.verifier = JwtVerifier(settings, time.time, self.keys)

    async def is_accepted(self, token: str) -> bool:
        return isinstance(await self.verifier.verify(token), CallerIdentity)


@asynccontextmanager
async def fetching(provider: IdentityProvider, directory: Path, **changes: Any) -> AsyncIterator[Fetching]:
    grants = directory / "grants.toml"
    grants.write_text(GRANTS)
    made = Fetching(settings_of(provider, grants, **changes))
    running = asyncio.create_task(made.verifier.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_keys_are_fetched_once_for_many_tokens(tmp_path: Path) -> None:
    with IdentityProvider() as provider:
        async with fetching(provider, tmp_path) as made:
            tokens = [provider.token(jti=str(number)) for number in range(20)]
            assert all(await asyncio.gather(*map(made.is_accepted, tokens)))
        assert provider.requests == [f"/realm{DISCOVERY}", "/realm/keys"]


async def test_keys_are_fetched_over_tls_from_an_issuer_that_is_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    with IdentityProvider(certificate=authority.issue("idp", "localhost")) as provider:
        assert provider.url.startswith("https://")
        async with fetching(provider, tmp_path, ca=authority.path) as made:
            assert await made.is_accepted(provider.token())
        for ca in (other.path, None):
            async with fetching(provider, tmp_path, ca=ca) as made:
                assert not await made.is_accepted(provider.token())
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


async def test_an_unknown_key_is_looked_for_but_not_often(tmp_path: Path) -> None:
    with IdentityProvider() as provider:
        async with fetching(provider, tmp_path) as made:
            old = provider.token()
            assert await made.is_accepted(old)
            provider.rotate("second")
            assert not await made.is_accepted(provider.token())
            assert len(provider.requests) == 2
            made.monotonic.seconds += 10
            assert await made.is_accepted(provider.token())
            assert not await made.is_accepted(old)
            assert len(provider.requests) == 4
            for number in range(20):
                assert not await made.is_accepted(provider.token(headers={"kid": str(number)}))
            assert len(provider.requests) == 4


async def test_keys_are_refreshed_so_that_withdrawn_ones_end(tmp_path: Path) -> None:
    with IdentityProvider() as provider:
        async with fetching(provider, tmp_path) as made:
            token = provider.token()
            assert await made.is_accepted(token)
            provider.rotate("second")
            made.verifier.check()
            assert await made.is_accepted(token)
            made.monotonic.seconds += 300
            made.verifier.check()

            async def is_refused() -> bool:
                return not await made.is_accepted(token)

            await await_until(is_refused, "the withdrawn key is forgotten")


@pytest.mark.parametrize("failure", ["down", "error", "not json", "empty"])
async def test_while_the_issuer_fails_its_keys_stay_valid_until_they_are_too_old(
    tmp_path: Path, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    with IdentityProvider() as provider:
        async with fetching(provider, tmp_path) as made:
            assert await made.is_accepted(provider.token())
            match failure:
                case "down":
                    provider.answer(
                        DISCOVERY, json.dumps({"issuer": provider.url, "jwks_uri": "http://127.0.0.1:1/"}).encode()
                    )
                case "error":
                    provider.answer("/keys", b"", 500)
                case "not json":
                    provider.answer(DISCOVERY, b"<html>")
                case _:
                    provider.answer("/keys", b'{"keys": []}')
            for _ in range(3):
                made.monotonic.seconds += 1000
                await made.keys.renew()
                assert await made.is_accepted(provider.token())
            assert len([line for line in caplog.messages if "cannot be fetched" in line]) == 1
            assert "stay valid for now" in caplog.text
            made.monotonic.seconds += 1000
            assert not await made.is_accepted(provider.token(jti="x"))
            provider.answers.clear()
            made.monotonic.seconds += 10
            assert await made.is_accepted(provider.token())


async def test_an_issuer_that_does_not_answer_delays_neither_the_loop_nor_known_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with IdentityProvider() as provider:
        async with fetching(provider, tmp_path) as made:
            token = provider.token()
            assert await made.is_accepted(token)
            monkeypatch.setattr("streaming_server.access.signing_keys._FETCH_SECONDS", 0.5)
            provider.silent.set()
            made.monotonic.seconds += 10
            waiting = asyncio.create_task(made.is_accepted(provider.token(headers={"kid": "unknown"})))
            accepted = 0
            while not waiting.done():
                assert await made.is_accepted(token)
                accepted += 1
                await asyncio.sleep(0)
            assert not waiting.result()
            assert accepted > 10, "the event loop was not blocked"
            assert "cannot be fetched, so the keys fetched last stay valid for now" in caplog.text
            provider.silent.clear()


async def test_what_an_issuer_must_not_send_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with IdentityProvider() as provider:
        elsewhere = f"http://127.0.0.1:{provider.url.split(':')[2].split('/')[0]}/realm/keys"
        for number, (path, body, status, headers, message) in enumerate((
            (DISCOVERY, b" " * 600_000, 200, {}, "more than 524,288 bytes"),
            ("/keys", b" " * 600_000, 200, {}, "more than 524,288 bytes"),
            (DISCOVERY, b"{}", 200, {}, "is of another issuer"),
            (DISCOVERY, json.dumps({"issuer": f"{provider.url}/"}).encode(), 200, {}, "is of another issuer"),
            (DISCOVERY, json.dumps({"issuer": provider.url}).encode(), 200, {}, "there is none"),
            (DISCOVERY, json.dumps({"issuer": provider.url, "jwks_uri": "http://example.com/k"}).encode(), 200, {},
             "does not begin with https://"),
            (DISCOVERY, json.dumps({"issuer": provider.url, "jwks_uri": "file:///etc/passwd"}).encode(), 200, {},
             "it is not a url"),
            ("/keys", b"", 302, {"Location": elsewhere}, "status 302"),
            ("/keys", b"[" * 100_000, 200, {}, "is not JSON"),
            ("/keys", json.dumps({"keys": [oct_key()]}).encode(), 200, {}, "no public key"),
        )):  # fmt: skip
            provider.answers.clear()
            provider.answer(path, body, status, **headers)
            caplog.clear()
            async with fetching(provider, tmp_path) as made:
                assert not await made.is_accepted(provider.token()), number
            assert message in caplog.text


# ---- Settings ----


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://issuer.example.com/realms/x", True),
        ("http://localhost:8080/realms/x", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:80/", True),
        ("http://issuer.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://127.0.0.1@example.com", False),
        ("https://user:secret@example.com", False),
        ("https://", False),
        ("https://example.com:x", False),
        ("issuer.example.com", False),
        ("file:///etc/passwd", False),
        ("ftp://127.0.0.1/", False),
        ("https://example.com/a b", False),
    ],
)
async def test_keys_are_fetched_encrypted_or_on_this_machine(url: str, is_allowed: bool) -> None:
    assert (url_problem(url) == "") is is_allowed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jwt_issuer": ""}, "needs jwt_issuer"),
        ({"jwt_audience": ""}, "jwt_issuer needs jwt_audience"),
        ({"jwt_grants": ""}, "jwt_issuer needs jwt_grants"),
        ({"jwt_algorithms": ("RS256", "HS256")}, "jwt_algorithms must be of .* not HS256"),
        ({"jwt_algorithms": ("none",)}, "jwt_algorithms must be of .* not none"),
        ({"jwt_algorithms": ()}, "jwt_issuer needs jwt_algorithms"),
        ({"jwt_issuer": "http://issuer.example.com"}, "does not begin with https://"),
        ({"jwt_keys": "k", "jwt_ca": "c"}, "exclude each other"),
        ({"jwt_leeway_seconds": 301.0}, "jwt_leeway_seconds must be between 0 and 300"),
    ],
)
async def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    good = {"jwt_issuer": "https://issuer.example.com", "jwt_audience": "scankv", "jwt_grants": "g"}
    assert ServerConfig(data=tmp_path, **good).asks_for_tokens  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        ServerConfig(data=tmp_path, **{**good, **given})


@pytest.mark.breadth
async def test_a_server_without_the_library_says_how_to_install_it(
    known: Verifying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.delitem(sys.modules, "streaming_server.access.jwt_verifier")
    settings = {"jwt_issuer": "https://issuer.example.com", "jwt_audience": "a", "jwt_grants": str(known.grants)}
    with pytest.raises(UsageError, match=r'needs the package jwt, .*; .* pip install "\.\[oidc\]"'):
        async with Server(ServerConfig(data=tmp_path / "data", port=0, **settings)):  # type: ignore[arg-type]
            pass
