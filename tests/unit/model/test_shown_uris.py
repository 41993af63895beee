"""Which parts of an address does an error show? None that may be a password."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest

from aio_client import ClientConfig, StartFrom
from aio_client._transport.access import resolve_access
from aio_client._transport.profiles import ServerAccess
from scankv.lake.iceberg.catalogs import translate_errors
from scankv.lake.location import LakeLocation
from scankv.model.errors import DataLoss, ScanKvError, UsageError
from scankv.model.shown_uris import hide_secrets, show_location, show_reason, show_server, show_uri
from streaming_server.storage.backup.backup_store import BackupStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PASSWORD = "pa55word"
SECRETS = [
    f"scankv://ann:{PASSWORD}@localhost:7070",
    f"https://ann:{PASSWORD}@localhost:7070",
    f"{PASSWORD}@localhost:7070",
    f"scankv://localhost:7070?token={PASSWORD}",
    f"scankv:/ann:{PASSWORD}@localhost:7070",
    f"s3://key:{PASSWORD}@bucket/table",
    f"s3://key:{PASSWORD}/x@bucket/table",
    f"s3://key:x/{PASSWORD}@bucket/table",
    f"s3://key:{PASSWORD}[@bucket/table",
    f"s3://bucket/table?secret_key={PASSWORD}",
    f"s3://bucket/table?scheme={PASSWORD}",
    f"nonsense://key:{PASSWORD}@bucket",
    f"nonsense://bucket?x={PASSWORD}",
]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("scankv://localhost:7070", "scankv://localhost:7070"),
        ("localhost:7070", "localhost:7070"),
        ("[::1]:7070", "[::1]:7070"),
        ("scankvs://ann:pa55word@db:7070", "scankvs://***@db:7070"),
        ("skv_1_pa55word@db:7070", "***@db:7070"),
        ("ann:pa55word/x@db:7070", "***@db:7070"),
        ("scankv://db:7070?token=pa55word", "scankv://db:7070?***"),
        ("s3://key:pa55/word@bucket/table", "s3://***@bucket/table"),
        ("s3://key:pa@55?word@bucket/table", "s3://***@bucket/table"),
        ("s3://bucket/a@b?secret_key=pa55word", "s3://bucket/a@b?***"),
        ("hdfs://name:8020/a@b", "hdfs://name:8020/a@b"),
        ("file:///data/a@b", "file:///data/a@b"),
    ],
)
def test_what_may_be_a_password_is_hidden(uri: str, shown: str) -> None:
    assert show_uri(uri) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("scankv://localhost:70700", "scankv://localhost:70700"),
        ("scankv://localhost", "scankv://localhost"),
        ("localhost:7070/", "localhost:7070/"),
        ("[::1]:7070", "[::1]:7070"),
        ("scankvs://ann:pa55word@db:7070", "scankvs://***@db:7070"),
        ("scankv://db:7070/skv_pa55word", "scankv://db:7070/***"),
        ("scankv://ann:12/34pa55word@db:1", "scankv://***@db:1"),
        ("scankv://db:1#pa55word", "scankv://db:1#***"),
        ("scankv://db:1?token=pa55word@x", "***"),
        ("scankvs//ann:pa55word@db:1", "***@db:1"),
        ("scankv:/ann:pa55word@db:1", "***@db:1"),
        ("scankv://ann:pa55?word@db:1", "***"),
        ("scankv://ann:pa55word", "***"),
        ("skv_1_pa55word", "***"),
        (f"eyJ{'pa55word' * 20}.eyJ", "***"),
        ("scankv://db:1\n/pa55word", "***"),
    ],
)
def test_of_the_address_of_a_server_only_scheme_host_and_port_are_shown(url: str, shown: str) -> None:
    assert show_server(url) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://ann:pa55/word@db/c: no", "at postgresql://***@db/c: no"),
        ("at postgresql://ann:12/pa55word@db/c.", "at postgresql://***@db/c."),
        ("('http://db/c?user=a&password=pa55word')", "('http://db/c?***')"),
        ("http://ann:pa55'word@db/c", "http://***@db/c"),
        ("http://ann:pa55?word@db/c?x=1, http://db:80/c", "http://***@db/c?***, http://db:80/c"),
        ("at s3://bucket/a@b", "at s3://bucket/a@b"),
    ],
)
def test_a_text_about_uris_shows_no_user_and_no_query(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


@pytest.mark.parametrize("error", [OSError, FileNotFoundError])
def test_the_traceback_of_an_error_of_a_catalog_shows_no_password(error: type[OSError], tmp_path: Path) -> None:
    with pytest.raises(ScanKvError) as raised, translate_errors(LakeLocation(str(tmp_path))):
        raise error(f"postgresql://ann:{PASSWORD}@db/c")
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


def test_the_error_of_a_damaged_backup_shows_no_query(tmp_path: Path) -> None:
    store = BackupStore(f"file://{tmp_path}?x={PASSWORD}")
    with pytest.raises(DataLoss) as raised:
        store.read_manifest("missing")
    assert PASSWORD not in raised.value.message
    assert str(tmp_path) in raised.value.message


def test_a_directory_is_shown_as_it_is() -> None:
    assert show_location("/data/a:b@c?d") == "/data/a:b@c?d"
    assert hide_secrets("at postgresql://ann:x@db/c, or s3://b/a@b") == "at postgresql://***@db/c, or s3://b/a@b"
    assert show_reason(ValueError("no port pa55"), "s3://key:pa55/x@b?a=b&c") == "ValueError"
    assert show_reason(ValueError("no b c"), "s3://bucket?x=b%20c") == "ValueError"
    assert show_reason(ValueError("no file"), "s3://bucket/x?region=eu") == "no file"


@pytest.mark.parametrize(
    ("use", "uri"),
    [
        *((lambda uri: ClientConfig(url=uri), uri) for uri in [*SECRETS, f"scankv://localhost:7070/{PASSWORD}"]),
        # What has no scheme is a directory.
        *((use, uri) for use in (LakeLocation, BackupStore) for uri in SECRETS if "://" in uri),
    ],
)
@pytest.mark.represented_by("<lambda>-scankv://ann:pa55word@localhost:7070", "BackupStore-nonsense://bucket?x=pa55word")
def test_a_refused_address_shows_no_password_and_neither_does_its_traceback(
    use: Callable[[str], object], uri: str
) -> None:
    with pytest.raises(UsageError) as refused:
        use(uri)
    assert PASSWORD not in refused.value.message
    # The lines of the source, which a traceback shows too, do not have it.
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


def test_other_texts_about_an_address_show_no_password() -> None:
    with pytest.raises(UsageError) as refused:
        resolve_access(ServerAccess(url=f"scankvs://ann:{PASSWORD}@db:7070", token=None, tls=False), None)
    assert "scankvs://***@db:7070" in refused.value.message
    assert repr(StartFrom.lake(f"s3://key:{PASSWORD}@bucket")) == "StartFrom.lake('s3://***@bucket')"
