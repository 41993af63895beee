"""The configuration of a client: addresses that can be parsed, and errors that name the invalid field."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from aio_client import ClientConfig, UsageError, connect, sync
from aio_client._client.connect import ClientOpener

MIB = 1 << 20


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost:7070", "localhost:7070"),
        ("scankv://localhost:7070", "localhost:7070"),
        ("scankv://db-1.example.com:9/", "db-1.example.com:9"),
        ("127.0.0.1:65535", "127.0.0.1:65535"),
        ("[::1]:7070", "[::1]:7070"),
        ("scankv://[fe80::1%25]:1", "[fe80::1%25]:1"),
    ],
)
def test_an_address_is_understood(url: str, address: str) -> None:
    assert ClientConfig(url=url).address == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:",
        ":7070",
        "localhost:0",
        "localhost:65536",
        "localhost:port",
        "http://localhost:7070",
        "localhost:7070/db",
        "::1:7070",
        "[::1]",
        "user@host:7070",
        " localhost:7070",
        "localhost:7070\n",
        7070,
    ],
)
def test_another_address_is_refused_with_what_is_expected(url: str) -> None:
    with pytest.raises(UsageError, match="write host:port or scankv://host:port") as caught:
        ClientConfig(url=url)
    assert caught.value.details["option"] == "url"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operation_timeout", 0),
        ("operation_timeout", -1.0),
        ("operation_timeout", float("inf")),
        ("operation_timeout", float("nan")),
        ("operation_timeout", "60"),
        ("operation_timeout", True),
        ("attempt_timeout", 0.0),
        ("attempt_timeout", None),
        ("next_chunk_timeout", 0),
        ("next_chunk_timeout", "30"),
        ("read_ahead_chunks", 0),
        ("read_ahead_chunks", 1025),
        ("read_ahead_chunks", 2.0),
        ("read_ahead_bytes", 0),
        ("read_ahead_bytes", 1024),
        ("read_ahead_bytes", 2**40),
        ("read_ahead_bytes", 1e6),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field) as caught:
        ClientConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.details["option"] == field
    with pytest.raises(UsageError, match=field):
        connect(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=field):
        sync.connect(**{field: value})  # type: ignore[arg-type]


def test_a_config_survives_pickling_and_can_be_connected_again() -> None:
    config = ClientConfig(
        url="h:1",
        operation_timeout=5,
        attempt_timeout=0.5,
        next_chunk_timeout=3,
        read_ahead_bytes=1 << 20,
        read_ahead_chunks=4,
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert isinstance(connect(**dataclasses.asdict(config)), ClientOpener)
    assert connect(**dataclasses.asdict(config))._config == config


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ClientConfig().url = "h:1"  # type: ignore[misc]


def test_one_call_has_the_shorter_of_both_timeouts() -> None:
    assert ClientConfig(operation_timeout=5, attempt_timeout=10).call_timeout == 5
    assert ClientConfig(operation_timeout=60, attempt_timeout=10).call_timeout == 10


@pytest.mark.parametrize(
    ("read_ahead_bytes", "read_ahead_chunks", "chunk_bytes", "window"),
    [
        (2 * MIB, 2, None, 2 * MIB),
        (2 * MIB, 2, 4 * MIB, 2 * MIB),
        (2 * MIB, 1, None, MIB),
        (16 * MIB, 3, None, 4 * MIB),
        (3 * MIB, 3, None, 3 * MIB),
        (2 * MIB, 2, 100_000, 256 << 10),
        (2 * MIB, 2, 1024, 64 << 10),
        (64 * MIB, 1024, 16 * MIB, 64 * MIB),
    ],
)
def test_a_window_is_the_lesser_of_bytes_and_chunks(
    read_ahead_bytes: int, read_ahead_chunks: int, chunk_bytes: int | None, window: int
) -> None:
    config = ClientConfig(read_ahead_bytes=read_ahead_bytes, read_ahead_chunks=read_ahead_chunks)
    assert config.window_bytes(chunk_bytes) == window


@pytest.mark.parametrize(("variable", "url"), [("db:1", "db:1"), ("", "localhost:7070"), (None, "localhost:7070")])
def test_without_an_address_the_environment_has_it(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, url: str
) -> None:
    monkeypatch.delenv("SCANKV_URL", raising=False)
    if variable is not None:
        monkeypatch.setenv("SCANKV_URL", variable)
    assert connect()._config.url == url


def test_a_bad_address_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANKV_URL", "nonsense")
    with pytest.raises(UsageError, match="nonsense"):
        connect()
