"""`scankv publish` keeps a table in an open format."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from scankv.cli.outcome import TERMINATED
from tests.support.lake_readers import IcebergReader, ParquetReader, read_delta

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine


def test_a_table_is_published_once(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    first = scankv("publish", scores, uri, "--once").text
    assert re.fullmatch(
        rf"{scores}: version 0 as of \S+ UTC, 3 rows in (1 file|2 files) written \([\d.,]+ \w+\), 0 files kept, "
        r"in [\d.]+ s; all rows, because the table was not published before\n",
        first,
    )
    assert sorted(read_delta(uri)["player"].to_pylist()) == ["ann", "bob", "cem"]
    assert scankv("publish", scores, uri).text == f"{scores}: nothing has changed since version 0\n"


def test_versions_are_printed_as_json(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    scankv("publish", scores, uri)
    scankv("put", scores, "player=dan", "score=1")
    report = scankv("publish", scores, uri, "--json").json
    assert (report["version"], report["mode"], report["reason"]) == (1, "changes", None)
    assert report["rows"] >= 1
    assert set(report["log_offsets"]["log_offsets"]) == {"0", "1"}


@pytest.mark.breadth
def test_published_versions_are_scanned(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    scankv("publish", scores, uri)
    scankv("put", scores, "player=dan", "score=1")
    time = scankv("publish", scores, uri, "--json").json["taken_at"]
    scankv("delete", scores, "ann")
    reads: dict[tuple[str, ...], list[str]] = {
        (): ["bob", "cem", "dan"],
        ("--as-of", "0"): ["ann", "bob", "cem"],
        ("--as-of", time): ["ann", "bob", "cem", "dan"],
    }
    for options, players in reads.items():
        found = scankv("scan", scores, "--lake", uri, *options, "--columns", "player", "--format", "csv").text
        assert sorted(found.split()[1:]) == players
    assert f"version 1 in {uri}" in scankv("scan", scores, "--lake", uri, "--as-of", time, "--explain").text
    refused: dict[tuple[str, ...], str] = {
        ("--as-of", "0"): "--as-of 0 needs --lake URI",
        ("--as-of", "x", "--lake", uri): "no snapshot 'x' exists",
        ("--as-of", "2020-01-01T00:00:00Z", "--lake", uri): "choose one from version 0, as of",
    }
    for options, message in refused.items():
        assert message in scankv("scan", scores, *options, code=1).stderr


def test_a_scan_says_why_the_published_table_is_not_read(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    for format_ in ("csv", "table"):
        done = scankv("scan", scores, "--lake", nowhere, "--format", format_)
        assert "ann" in done.text
        assert "scankv: warning: the server is read alone, because " in done.stderr


def test_changes_begin_with_published_rows(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    scankv("publish", scores, uri)
    scankv("put", scores, "player=dan", "score=1")
    lines = scankv("tail", scores, "--from", f"lake:{uri}", "--until", "latest", "--format", "jsonl").text.splitlines()
    changes = [json.loads(line) for line in lines]
    assert sorted(each["player"] for each in changes[:3]) == ["ann", "bob", "cem"]
    assert [(each["_change_type"], each["player"], each["_log_offset"] is None) for each in changes[3:]] == [
        ("+I", "dan", False)
    ]


def test_a_limit_of_changes_that_begin_with_published_rows_is_refused_with_what_to_do(
    scankv: CommandLine, scores: str, tmp_path: Path
) -> None:
    said = scankv.fails("tail", scores, "--from", f"lake:{tmp_path}", "--limit", "2")
    assert said.startswith("--limit is not for --from lake:URI: give --until")


@pytest.mark.breadth
def test_versions_follow_the_table_until_sigterm(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    with scankv.start("publish", scores, uri, "--every", "0.1", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["version"] == 0
        scankv("put", scores, "player=dan", "score=1")
        assert json.loads(process.stdout.readline())["version"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == TERMINATED
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert sorted(read_delta(uri)["player"].to_pylist()) == ["ann", "bob", "cem", "dan"]


def test_a_publisher_survives_what_ends_by_itself(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text("in the way")
    with scankv.start("publish", scores, str(place / "published"), "--every", "0.1", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"cannot be" in process.stderr.readline()
        place.unlink()
        assert json.loads(process.stdout.readline())["version"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == TERMINATED


def test_once_and_every_exclude_each_other(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    assert "exclude" in scankv.fails("publish", scores, str(tmp_path / "published"), "--once", "--every", "1")


def test_the_format_is_an_option(scankv: CommandLine, scores: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "published")
    scankv("publish", scores, uri, "--format", "parquet")
    assert sorted(ParquetReader(uri).read()["player"].to_pylist()) == ["ann", "bob", "cem"]
    scankv("publish", scores, f"{uri}2", "--format", "iceberg")
    assert len(IcebergReader(f"{uri}2").read()) == 3
    catalog = ("--catalog", "missing:a.b")
    assert "missing" in scankv.fails("publish", scores, f"{uri}3", "--format", "iceberg", *catalog)
    assert 'needs the format "iceberg"' in scankv.fails("publish", scores, f"{uri}3", *catalog)
    assert "needs --format delta" in scankv.fails("publish", scores, uri, "--format", "parquet", "--deletes", "vectors")


def test_what_cannot_be_published_is_an_error(scankv: CommandLine, table: str, tmp_path: Path) -> None:
    scankv("create", table, "--schema", "at time64[us], n int64", "--key", "n")
    message = scankv.fails("publish", table, str(tmp_path / "published"))
    assert 'column "at" cannot be published' in message
    assert not (tmp_path / "published").exists()
