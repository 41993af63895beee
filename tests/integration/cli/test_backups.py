"""`scankv backups` creates, lists, verifies, restores and removes backups, and says what is wrong with bad input."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from streaming_server.storage.backup.backup_store import BackupStore
from tests.support.archived import wait_archived
from tests.support.command_line import CommandLine
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def backed_up(tmp_path: Path) -> Iterator[CommandLine]:
    with ServerProcess(tmp_path / "data", "--backup-location", str(tmp_path / "backups")) as server:
        scankv = CommandLine(server.url)
        scankv("create", "game.scores", "--schema", "player string, score int64", "--key", "player")
        scankv("put", "game.scores", '{"player": "ann", "score": 1}')
        yield scankv


def test_backups_are_created_listed_verified_restored_and_removed(backed_up: CommandLine, tmp_path: Path) -> None:
    scankv, location = backed_up, str(tmp_path / "backups")
    first = scankv("backups", "create", "--json").json
    assert (first["tables"], first["left_out"]) == (1, {})
    assert "of which 0 bytes were copied" in scankv("backups", "create").text
    listed = scankv("backups", "list", location, "--json").json
    assert [(each["tables"], each["rows"]) for each in listed] == [(1, 1), (1, 1)]
    assert listed[0]["backup_id"] == first["backup_id"]
    assert first["backup_id"] in scankv("backups", "list", location).text
    assert scankv("backups", "verify", location, "--json").json == {each["backup_id"]: [] for each in listed}
    assert "complete" in scankv("backups", "verify", location, "latest", "--quick").text

    restore = ["backups", "restore", location, first["backup_id"], "--data", str(tmp_path / "new")]
    restored = scankv(*restore, "--json").json
    (table,) = restored["tables"]
    assert (table["name"], table["restored_as"], table["rows"], table["why"]) == ("game.scores", "game.scores", 1, "")
    assert not [path for path in (tmp_path / "new").rglob("*") if path.stat().st_mode & 0o077]
    text = scankv("backups", "restore", location, "--data", str(tmp_path / "new"), "--table", "game.scores=game.b").text
    assert "game.scores as game.b, 1 row, " in text

    assert scankv("backups", "prune", location, "--keep", "1", "--json").json["backups"] == [first["backup_id"]]
    for path in (tmp_path / "backups" / "objects").glob("*/*"):
        path.unlink()
    assert "is missing" in scankv("backups", "verify", location, code=1).stderr
    assert "is missing" in scankv.fails("backups", "restore", location, "--data", str(tmp_path / "none"))


def test_tables_are_restored_as_of_an_instant(tmp_path: Path) -> None:
    location, then = str(tmp_path / "backups"), str(tmp_path / "then")
    restore = ("backups", "restore", location, "--data")
    settings = ("--backup-location", location, "--set", "archive_every_seconds=0.05")
    with ServerProcess(tmp_path / "data", *settings) as server:
        scankv = CommandLine(server.url)
        scankv("create", "game.scores", "--schema", "player string, score int64", "--key", "player")
        scankv("put", "game.scores", '{"player": "ann", "score": 1}')
        early = dt.datetime.now(dt.UTC).isoformat()
        assert "no backup exists" in scankv.fails(*restore, "x", "--as-of", early)
        scankv("backups", "create")
        assert "the oldest backup is as of" in scankv.fails(*restore, "x", "--as-of", early)
        scankv("create", "game.plain", "--schema", "player string", "--key", "player", "--set", "changelog=none")
        scankv("put", "game.plain", '{"player": "ann"}')
        scankv("put", "game.scores", '{"player": "bob", "score": 2}')
        before = dt.datetime.now(dt.UTC).isoformat()
        scankv("put", "game.scores", '{"player": "bob", "score": 3}')
        scankv("delete", "game.scores", "ann")
        scankv("delete", "game.plain", "ann")
        wait_archived(BackupStore(location))
    done = scankv(*restore, then, "--as-of", before)
    assert "game.scores, 2 rows" in done.text
    assert "restored 2 tables" in done.text
    assert "The archive reaches up to 20" in scankv("backups", "list", location).text
    assert "archive: complete" in scankv("backups", "verify", location).text
    latest = ("--as-of", "latest", "--table", "game.scores=game.latest")
    assert "game.scores as game.latest, 1 row" in scankv(*restore, then, *latest).text
    table = ("--table", "game.scores=game.two", "--as-of", before, "--buckets", "2")
    assert "game.scores as game.two, 2 rows" in scankv(*restore, then, *table).text
    with ServerProcess(tmp_path / "then") as server:
        restored = CommandLine(server.url)
        assert restored("get", "game.scores", "bob", "--format", "jsonl").json == {"player": "bob", "score": 2}
        assert restored("count", "game.plain").text == "1\n"
        assert "all consistent" in restored("check").text
    assert "the archive reaches up to" in scankv.fails(*restore, "x", "--as-of", "2100-01-01T00:00:00Z")
    for at, problem in (("yesterday", "is no instant"), ("2026-11-24T14:02:00", "has no time zone")):
        assert problem in scankv.fails(*restore, "x", "--as-of", at)
    assert "leave out the backup" in scankv.fails(
        "backups", "restore", location, "latest", "--data", "x", "--as-of", before
    )


def test_a_damaged_manifest_is_reported_once_with_what_to_do(backed_up: CommandLine, tmp_path: Path) -> None:
    scankv, location = backed_up, str(tmp_path / "backups")
    early = scankv("backups", "create", "--json").json["backup_id"]
    late = scankv("backups", "create", "--json").json["backup_id"]
    manifest = tmp_path / "backups" / "manifests" / f"{late}.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    damaged = f"the backup manifest manifests/{late}.json in {location} cannot be read"

    listed = scankv("backups", "list", location, code=1)
    assert early in listed.text
    (line,) = listed.stderr.splitlines()
    assert damaged in line
    restore = ("backups", "restore", location, "--data")
    for options in ((), ("--as-of", "latest")):
        said = scankv.fails(*restore, str(tmp_path / "none"), *options)
        assert damaged in said
        assert f"the newest backup that can be read is {early}" in said
    (shown,) = scankv("backups", "list", location, "--json", code=1).json
    assert shown["backup_id"] == early
    # A restore as of an instant before the damaged backup does not need that.
    assert "restored 1 table" in scankv(*restore, str(tmp_path / "then"), "--as-of", shown["taken_at"]).text
    said = scankv.fails("backups", "prune", location, "--keep", "1")
    assert damaged in said
    assert f"move manifests/{late}.json out of {location}" in said
    assert scankv("backups", "verify", location, early).text == f"{early}: complete\n"

    manifest.rename(tmp_path / "moved.json")
    assert scankv("backups", "prune", location, "--keep", "1", "--json").json["backups"] == []
    assert "restored 1 table" in scankv(*restore, str(tmp_path / "new")).text


def test_a_damaged_object_is_reported_with_the_tables_that_need_it(backed_up: CommandLine, tmp_path: Path) -> None:
    scankv, location = backed_up, str(tmp_path / "backups")
    scankv("backups", "create")
    for path in (tmp_path / "backups" / "objects").glob("*/*"):
        path.write_bytes(b"")
    for options in ((), ("--quick",)):
        lines = scankv("backups", "verify", location, *options, code=1).stderr.splitlines()
        assert lines
        assert all(line.endswith("; needed by game.scores") for line in lines if "the object " in line)


def test_bad_input_is_refused_with_what_to_do(backed_up: CommandLine, tmp_path: Path) -> None:
    scankv, location = backed_up, str(tmp_path / "backups")
    assert "is not a directory" in scankv.fails("backups", "list", str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    assert "empty has no backup" in scankv.fails("backups", "verify", str(tmp_path / "empty"))
    backup_id = scankv("backups", "create", "--json").json["backup_id"]
    assert f'did you mean "{backup_id}"' in scankv.fails("backups", "verify", location, backup_id[:-1])
    restore = ("backups", "restore", location)
    data = str(tmp_path / "data")
    assert "in use by the server" in scankv.fails(*restore, "--data", data, "--table", "game.scores")
    new = str(tmp_path / "new")
    assert 'no table "game.score"; did you mean' in scankv.fails(*restore, "--data", new, "--table", "game.score")
    assert "named twice" in scankv.fails(
        *restore, "--data", new, "--table", "game.scores", "--table", "game.scores=b.c"
    )
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("")
    assert "not a ScanKV data directory" in scankv.fails(*restore, "--data", str(tmp_path / "foreign"))
