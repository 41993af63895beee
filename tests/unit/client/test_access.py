"""Where a client takes its address, token and TLS settings from, and that no secret leaves them."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import ClientConfig, ScanSpec, Tls, TokenEnv, TokenFile, UsageError, connect, sync
from aio_client._transport.authorization import StoredAuthorization
from aio_client._transport.profiles import ProfileToken, profile_names
from aio_client._transport.tls import read_certificates
from aio_client._transport.tokens import StoredToken
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "s3cr3t-Xq7"
VARIABLES = (
    "SCANKV_URL",
    "SCANKV_TOKEN",
    "SCANKV_TOKEN_FILE",
    "SCANKV_TLS_CA",
    "SCANKV_CLIENT_CERTIFICATE",
    "SCANKV_CLIENT_KEY",
    "SCANKV_PROFILE",
)


@pytest.fixture(autouse=True)
def config_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without settings, and where the profiles are read from; the file does not exist."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "scankv").mkdir()
    return tmp_path / "scankv" / "config.toml"


def config(*args: Any, **kwargs: Any) -> ClientConfig:
    return connect(*args, **kwargs)._config


def read_token(found: ClientConfig) -> str | None:
    assert found.token is None or isinstance(found.token, StoredToken)
    return None if found.token is None else found.token.read()


def test_without_settings_a_client_has_neither_token_nor_tls() -> None:
    assert config() == ClientConfig(url="localhost:7070", token=None, tls=None)


@pytest.mark.parametrize(
    ("url", "tls", "is_encrypted"),
    [
        ("h:1", None, False),
        ("h:1", True, True),
        ("h:1", False, False),
        ("scankv://h:1", None, False),
        ("scankv://h:1", False, False),
        ("scankvs://h:1", None, True),
        ("scankvs://h:1", True, True),
        ("scankvs://[::1]:1/", None, True),
    ],
)
def test_the_scheme_or_the_argument_says_whether_tls_is_used(url: str, tls: bool | None, is_encrypted: bool) -> None:
    assert (config(url, tls=tls).tls is not None) == is_encrypted


@pytest.mark.parametrize(("url", "tls"), [("scankv://h:1", True), ("scankv://h:1", Tls()), ("scankvs://h:1", False)])
def test_a_scheme_that_contradicts_the_argument_is_refused(url: str, tls: bool | Tls) -> None:
    with pytest.raises(UsageError, match=url):
        connect(url, tls=tls)


@pytest.mark.parametrize("url", ["h:1", "scankv://h:1", "10.0.0.1:1", "[2001:db8::1]:1", "localhost.example.com:1"])
@pytest.mark.parametrize("open_", [connect, sync.connect])
def test_a_token_is_not_sent_in_the_clear_beyond_this_machine(open_: Callable[..., object], url: str) -> None:
    with pytest.raises(UsageError, match="connect to scankvs://") as caught:
        open_(url, token=SECRET)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "scankv://LOCALHOST:1"])
def test_a_token_may_be_sent_in_the_clear_on_this_machine(url: str) -> None:
    assert read_token(config(url, token=SECRET)) == SECRET


def test_arguments_come_before_the_environment_and_that_before_a_profile_of_the_environment(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text('[profiles.p]\nurl = "scankvs://p:1"\ntoken_file = "p"\ntls_ca = "/p"\n')
    monkeypatch.setenv("SCANKV_PROFILE", "p")
    assert config() == ClientConfig(url="scankvs://p:1", token=TokenFile(config_file.parent / "p"), tls=Tls(ca="/p"))
    monkeypatch.setenv("SCANKV_TOKEN", "e")
    assert config() == ClientConfig(url="scankvs://p:1", token=TokenEnv("SCANKV_TOKEN"), tls=Tls(ca="/p"))
    monkeypatch.setenv("SCANKV_TLS_CA", "/e")
    assert config().tls == Tls(ca="/e")
    monkeypatch.setenv("SCANKV_URL", "scankvs://p:1/")
    assert config().url == "scankvs://p:1/"
    assert read_token(config(token="a")) == "a"
    assert config(tls=Tls(server_name="a")).tls == Tls(server_name="a")
    assert config(tls=True).tls == Tls()
    assert config(token=Path("/a")).token == TokenFile("/a")


def test_a_profile_in_the_call_comes_before_the_environment(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_file.write_text('[profiles.p]\nurl = "scankvs://p:1"\ntoken_file = "/p"\n[profiles.q]\nurl = "q:1"\n')
    monkeypatch.setenv("SCANKV_PROFILE", "q")
    monkeypatch.setenv("SCANKV_URL", "scankvs://e:1")
    monkeypatch.setenv("SCANKV_TOKEN", "e")
    monkeypatch.setenv("SCANKV_TLS_CA", "/e")
    assert config(profile="p") == ClientConfig(url="scankvs://p:1", token=TokenFile("/p"), tls=Tls())
    # The caller has chosen both.
    assert config("scankvs://a:1", profile="p").token == TokenFile("/p")
    monkeypatch.delenv("SCANKV_URL")
    assert config(profile="p").tls == Tls(ca="/e")


def test_a_token_is_used_for_no_other_server_than_the_one_beside_it(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text('[profiles.p]\nurl = "scankvs://p:1"\ntoken_file = "/p"\n')
    monkeypatch.setenv("SCANKV_PROFILE", "p")
    monkeypatch.setenv("SCANKV_URL", "scankvs://e:1")
    monkeypatch.setenv("SCANKV_TOKEN", "e")
    monkeypatch.setenv("SCANKV_TLS_CA", "/e")
    assert config("localhost:1") == ClientConfig(url="localhost:1")
    assert config("scankvs://e:1").token == TokenEnv("SCANKV_TOKEN")
    assert config("scankvs://p:1").token == TokenFile("/p")
    assert config("scankvs://p:1").tls == Tls()
    monkeypatch.delenv("SCANKV_URL")
    assert config("localhost:1").token == TokenEnv("SCANKV_TOKEN")


def test_a_url_without_tls_overrides_the_tls_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANKV_TLS_CA", "/e")
    assert config("scankv://h:1").tls is None
    assert config("h:1").tls == Tls(ca="/e")
    monkeypatch.setenv("SCANKV_URL", "scankv://h:1")
    with pytest.raises(UsageError, match="write scankvs://h:1"):
        connect()


def test_two_tokens_in_the_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANKV_TOKEN", SECRET)
    monkeypatch.setenv("SCANKV_TOKEN_FILE", "/a")
    with pytest.raises(UsageError, match="both SCANKV_TOKEN and SCANKV_TOKEN_FILE are set"):
        connect()


def test_the_environment_may_name_a_client_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANKV_CLIENT_CERTIFICATE", "/c")
    with pytest.raises(UsageError, match="a certificate without its key"):
        connect("h:1")
    monkeypatch.setenv("SCANKV_CLIENT_KEY", "/k")
    assert config("h:1").tls == Tls(certificate="/c", key="/k")


# ---- Profiles ----


def test_a_profile_has_all_settings_and_paths_relative_to_its_file(config_file: Path) -> None:
    config_file.write_text(
        '[profiles.a]\nurl = "h:1"\ntoken_env = "T"\ntls_ca = "ca.pem"\ntls_certificate = "~/c.pem"\n'
        'tls_key = "/k.pem"\ntls_server_name = "db"\n[profiles.b]\nurl = "h:2"\ntls = true\n[profiles.c]\n'
    )
    assert config(profile="a") == ClientConfig(
        url="h:1",
        token=TokenEnv("T"),
        tls=Tls(
            ca=str(config_file.parent / "ca.pem"),
            certificate=str(Path.home() / "c.pem"),
            key="/k.pem",
            server_name="db",
        ),
    )
    assert config(profile="b") == ClientConfig(url="h:2", tls=Tls())
    assert config(profile="c") == ClientConfig()
    assert profile_names() == ["a", "b", "c"]


def test_profiles_are_in_the_home_directory_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".config" / "scankv" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[profiles.a]\nurl = "h:1"\n')
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert config(profile="a").url == "h:1"


def test_the_file_is_not_read_unless_a_profile_is_named(config_file: Path) -> None:
    config_file.write_text("not TOML")
    assert config("h:1").url == "h:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'no profile "prod" in'),
        ("[profiles.prd]\n", 'did you mean "prd"'),
        ("[profiles.prod]\nulr = 'h:1'\n", 'unknown key "ulr"; did you mean "url"'),
        ("[profiles.prod]\nurl = 7\n", 'key "url" of profile "prod" of .* must be a string'),
        ("[profiles.prod]\ntls = 'yes'\n", 'key "tls" of profile "prod" of .* must be true or false'),
        ("[profiles.prod]\ntoken_env = ''\n", "must be a string that is not empty"),
        ("[profiles.prod]\ntls = false\ntls_ca = 'a'\n", "leave one of them out"),
        ("[profiles.prod]\ntoken_env = 'a'\ntoken_file = 'b'\n", "has token_file and token_env"),
        ("[profiles.prod]\nurl = 'nonsense'\n", "'nonsense' is not the address"),
        ("[profile.prod]\n", 'unknown key "profile"'),
        ("profiles = 3\n", "must be tables"),
        ("profiles.prod = 3\n", "must be tables"),
        (f"[profiles.prod]\ntoken = '{SECRET}\n\n", "is not valid TOML: see "),
        (f"[profiles.prod]\ntoken = ['{SECRET}']\n", 'key "token" of profile "prod"'),
        (f"[profiles.prod]\ntoken_env = '{SECRET}'\n", "give the name of the variable, not the token"),
        (f"[profiles.prod]\ntoken = '{SECRET} x'\n", "must contain one token of visible ASCII characters"),
    ],
)
def test_a_wrong_profile_is_refused_without_showing_its_token(config_file: Path, text: str, message: str) -> None:
    config_file.write_text(text)
    config_file.chmod(0o600)
    with pytest.raises(UsageError, match=message) as caught:
        connect(profile="prod")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_profile_without_its_file_names_the_file(config_file: Path) -> None:
    with pytest.raises(UsageError, match=f"profiles are in {config_file}, which does not exist"):
        connect(profile="prod")
    assert profile_names() == []


def test_a_profile_with_a_token_must_be_private(config_file: Path) -> None:
    config_file.write_text(f'[profiles.p]\nurl = "localhost:1"\ntoken = "{SECRET}"\n[profiles.q]\nurl = "q:1"\n')
    for mode in (0o644, 0o640, 0o604, 0o620):
        config_file.chmod(mode)
        with pytest.raises(UsageError, match=f"run chmod 600 {config_file}") as caught:
            connect(profile="p")
        assert SECRET not in str(caught.value)
        assert config(profile="q").url == "q:1"
    config_file.chmod(0o600)
    found = config(profile="p")
    assert found.token == ProfileToken("p")
    assert read_token(found) == SECRET
    config_file.chmod(0o644)
    with pytest.raises(UsageError, match="run chmod 600"):
        read_token(found)


# ---- Tokens ----


@pytest.mark.parametrize("text", [SECRET, f"{SECRET}\n", f" \t{SECRET}\r\n\n"])
def test_a_token_file_has_a_token_and_white_space(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    assert TokenFile(file).read() == SECRET


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (f"{SECRET} {SECRET}".encode(), "visible ASCII"),
        (f"{SECRET}\n{SECRET}".encode(), "visible ASCII"),
        (SECRET.encode() + b"\xff", "visible ASCII"),
        (SECRET.encode() + b"\x00", "visible ASCII"),
        (SECRET.encode() * 2000, "more than 12,288 bytes"),
    ],
)
def test_a_file_that_has_no_token_is_refused_without_showing_it(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=message) as caught:
        TokenFile(file).read()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("token", ["", " ", f"{SECRET} ", f"{SECRET}\n", f"{SECRET}é", 7, b"x", object()])
def test_a_token_that_cannot_be_sent_is_refused_without_showing_it(token: Any) -> None:
    with pytest.raises(UsageError, match="token must") as caught:
        connect(token=token)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.asyncio
async def test_a_missing_token_is_reported_when_the_client_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    with pytest.raises(UsageError, match=f"the token file {tmp_path}/none cannot be read: No such file"):
        await connect(token=tmp_path / "none")
    with pytest.raises(UsageError, match="environment variable MISSING must contain a token"):
        await connect(token=TokenEnv("MISSING"))
    with pytest.raises(UsageError, match="MISSING"):
        sync.connect(token=TokenEnv("MISSING"))


class SetSeconds:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_changed_token_file_is_noticed_within_a_second(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", SetSeconds()
    file.write_text("first")
    found = StoredAuthorization(TokenFile(file), clock)
    assert found.metadata() == (("authorization", "Bearer first"),)
    file.write_text("another")
    assert found.metadata() == (("authorization", "Bearer first"),)
    clock.seconds = 1.5
    assert found.metadata() == (("authorization", "Bearer another"),)
    # A file that is being replaced is missing, and then empty.
    file.unlink()
    clock.seconds = 3
    assert found.metadata() == (("authorization", "Bearer another"),)
    file.touch()
    clock.seconds = 4.5
    assert found.metadata() == (("authorization", "Bearer another"),)


def test_a_token_file_behind_a_link_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    """Kubernetes replaces a projected token this way, long before it expires."""
    clock = SetSeconds()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    found = StoredAuthorization(TokenFile(tmp_path / "token"), clock)
    assert found.metadata() == (("authorization", "Bearer one"),)
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    clock.seconds = 1.5
    assert found.metadata() == (("authorization", "Bearer two"),)


@pytest.mark.asyncio
async def test_a_refused_token_is_read_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    found = StoredAuthorization(TokenFile(file), SetSeconds())
    refused = found.metadata()
    assert not await found.renew(refused)
    file.write_text("other")
    assert await found.renew(refused)
    assert not await found.renew(found.metadata())
    assert not await StoredAuthorization(None).renew(None)
    monkeypatch.setenv("T", "first")
    variable = StoredAuthorization(TokenEnv("T"), SetSeconds())
    refused = variable.metadata()
    monkeypatch.setenv("T", "other")
    assert await variable.renew(refused)


# ---- TLS settings ----


def test_tls_settings_are_immutable_values() -> None:
    tls = Tls(ca="/a", server_name="db")
    assert tls == Tls(ca="/a", server_name="db") != Tls(ca="/a")
    assert hash(tls) == hash(Tls(ca="/a", server_name="db"))
    with pytest.raises(AttributeError, match="make another one"):
        tls.ca = "/b"
    assert pickle.loads(pickle.dumps(tls)) == tls
    assert repr(tls) == "Tls(ca='/a', server_name='db')"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ca": 7}, "tls ca must be the path of a PEM file"),
        ({"ca": ""}, "tls ca must be the path of a PEM file"),
        ({"ca": b"no PEM"}, "tls ca must be PEM"),
        ({"key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}", "certificate": "/c"}, "give PEM itself as bytes"),
        ({"key": SECRET.encode(), "certificate": "/c"}, "tls key must be PEM"),
        ({"key": "/k"}, "a key without its certificate"),
        ({"certificate": "/k"}, "a certificate without its key"),
        ({"server_name": ""}, "tls server_name must be the name"),
        ({"server_name": "a b"}, "tls server_name must be the name"),
    ],
)
def test_wrong_tls_settings_are_refused_without_showing_a_key(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Tls(**settings)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("tls", ["yes", 1, {"ca": "/a"}])
def test_tls_of_another_type_is_refused(tls: Any) -> None:
    with pytest.raises(UsageError, match="tls must be True, False or a Tls"):
        connect(tls=tls)


def test_certificates_are_read_from_files_or_bytes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    files = read_certificates(Tls(ca=authority.path, certificate=str(certificate), key=key))
    data = [path.read_bytes() for path in (authority.path, certificate, key)]
    assert files == read_certificates(Tls(ca=data[0], certificate=data[1], key=data[2]))
    assert (files.roots, files.chain, files.key) == tuple(data)
    assert data[2].decode() not in repr(files)
    roots = read_certificates(Tls()).roots
    assert roots is None or b"-----BEGIN CERTIFICATE-----" in roots


def test_certificates_that_cannot_be_used_are_refused_before_connecting(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.issue("client")
    _, wrong_key = other.issue("wrong")
    with pytest.raises(UsageError, match=r"tls ca cannot be read from '/none/ca\.pem': No such file"):
        sync.connect("h:1", tls=Tls(ca="/none/ca.pem"))
    with pytest.raises(UsageError, match="tls ca must contain certificates in PEM"):
        sync.connect("h:1", tls=Tls(ca=key))
    with pytest.raises(UsageError, match="are they of the same pair"):
        sync.connect("h:1", tls=Tls(certificate=certificate, key=wrong_key))
    with pytest.raises(UsageError, match="are they of the same pair"):
        sync.connect("h:1", tls=Tls(certificate=key, key=certificate))


# ---- Secrets ----


def secrets_of(tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> list[ClientConfig]:
    """Configurations with a secret from every place."""
    pem = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "key").write_text(pem)
    config_file.write_text(f'[profiles.p]\nurl = "localhost:1"\ntoken = "{SECRET}"\n')
    config_file.chmod(0o600)
    monkeypatch.setenv("SCANKV_TOKEN", SECRET)
    return [
        config(),
        config(profile="p"),
        config(token=tmp_path / "token"),
        config(tls=Tls(certificate="/c", key=tmp_path / "key")),
        config(token=SECRET),
        config(tls=Tls(certificate="/c", key=pem.encode())),
    ]


def test_no_secret_is_shown_or_pickled(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    by_name, by_value = (found := secrets_of(tmp_path, config_file, monkeypatch))[:4], found[4:]
    for each in found:
        logging.getLogger("test").info("%r %s %r", each, each, dataclasses.asdict(each))
        assert SECRET not in repr(each) + str(dataclasses.asdict(each)) + repr(connect(**dataclasses.asdict(each)))
        assert copy.deepcopy(each) == each
        assert dataclasses.replace(each, operation_timeout=5).token == each.token
        assert connect(**dataclasses.asdict(each))._config == each
    for each in by_name:
        pickled = pickle.dumps(each)
        assert SECRET.encode() not in pickled
        assert pickle.loads(pickled) == each
    for each in by_value:
        with pytest.raises(UsageError, match="is not pickled") as caught:
            pickle.dumps(each)
        assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text


def test_a_client_does_not_show_its_token() -> None:
    with sync.connect("localhost:1", token=SECRET) as client:
        assert SECRET not in repr(client) + repr(client.config) + repr(client.scan(ScanSpec(table="game.scores")))
