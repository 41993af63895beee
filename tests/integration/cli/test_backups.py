"""`scankv backup` creates, lists, verifies, restores and removes backups, and says what is wrong with bad input."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

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
    first = scankv("backup", "create", "--json").json
    assert (first["tables"], first["left_out"]) == (1, {})
    assert "of which 0 bytes were copied" in scankv("backup", "create").text
    listed = scankv("backup", "list", location, "--json").json
    assert [(each["tables"], each["rows"]) for each in listed] == [(1, 1), (1, 1)]
    assert listed[0]["backup_id"] == first["backup_id"]
    assert first["backup_id"] in scankv("backup", "list", location).text
    assert scankv("backup", "verify", location, "--json").json == {each["backup_id"]: [] for each in listed}
    assert "complete" in scankv("backup", "verify", location, "latest", "--quick").text

    restored = scankv("backup", "restore", location, first["backup_id"], "--data", str(tmp_path / "new"), "--json").json
    (table,) = restored["tables"]
    assert (table["name"], table["restored_as"], table["rows"], table["why"]) == ("game.scores", "game.scores", 1, "")
    assert not [path for path in (tmp_path / "new").rglob("*") if path.stat().st_mode & 0o077]
    text = scankv("backup", "restore", location, "--data", str(tmp_path / "new"), "--table", "game.scores=game.b").text
    assert "game.scores as game.b, 1 row, " in text

    assert scankv("backup", "prune", location, "--keep", "1", "--json").json["backups"] == [first["backup_id"]]
    for path in (tmp_path / "backups" / "objects").glob("*/*"):
        path.unlink()
    assert "is missing" in scankv("backup", "verify", location, code=1).stderr
    assert "is missing" in scankv.fails("backup", "restore", location, "--data", str(tmp_path / "none"))


def test_tables_are_restored_as_of_an_instant(backed_up: CommandLine, tmp_path: Path) -> None:
    scankv, location = backed_up, str(tmp_path / "backups")
    scankv("create", "game.plain", "--schema", "player string", "--key", "player", "--set", "changelog=none")
    scankv("backup", "create")
    scankv("put", "game.plain", '{"player": "ann"}')
    scankv("put", "game.scores", '{"player": "bob", "score": 2}')
    before = dt.datetime.now(dt.UTC).isoformat()
    assert "needs a backup after it" in scankv.fails("backup", "restore", location, "--data", "x", "--at", before)
    scankv("put", "game.scores", '{"player": "bob", "score": 3}')
    scankv("delete", "game.scores", "ann")
    scankv("create", "game.later", "--schema", "player string", "--key", "player")
    scankv("backup", "create")
    done = scankv("backup", "restore", location, "--data", str(tmp_path / "then"), "--at", before, code=1)
    assert "game.scores, 2 rows" in done.text
    assert "restored 2 tables" in done.text
    assert "game.plain is only restored as of" in done.stderr
    assert 'its changelog, which is "none", lacks the rows before changes' in done.stderr
    with ServerProcess(tmp_path / "then") as server:
        restored = CommandLine(server.url)
        assert restored("get", "game.scores", "bob", "--json").json == {"player": "bob", "score": 2}
        assert restored("count", "game.plain").text == "0\n"
        assert "all consistent" in restored("check").text
    table = ("--data", str(tmp_path / "then"), "--table", "game.scores=game.two", "--at", before, "--buckets", "2")
    assert "game.scores as game.two, 2 rows" in scankv("backup", "restore", location, *table).text
    for at, problem in (("yesterday", "is no instant"), ("2026-11-24T14:02:00", "has no time zone")):
        assert problem in scankv.fails("backup", "restore", location, "--data", "x", "--at", at)
    assert "leave out the backup" in scankv.fails(
        "backup", "restore", location, "latest", "--data", "x", "--at", before
    )
    early = "2020-01-01T00:00:00Z"
    assert (
        "restored 0 tables" in scankv("backup", "restore", location, "--data", str(tmp_path / "e"), "--at", early).text
    )


def test_bad_input_is_refused_with_what_to_do(backed_up: CommandLine, tmp_path: Path) -> None:
    scankv, location = backed_up, str(tmp_path / "backups")
    assert "is not a directory" in scankv.fails("backup", "list", str(tmp_path / "missing"))
    backup_id = scankv("backup", "create", "--json").json["backup_id"]
    assert f'did you mean "{backup_id}"' in scankv.fails("backup", "verify", location, backup_id[:-1])
    restore = ("backup", "restore", location)
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
