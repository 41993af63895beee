"""`scankv backup` creates, lists, verifies, restores and removes backups, and says what is wrong with bad input."""

from __future__ import annotations

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
    assert restored["tables"] == [{"name": "game.scores", "restored_as": "game.scores", "rows": 1}]
    text = scankv("backup", "restore", location, "--data", str(tmp_path / "new"), "--table", "game.scores=game.b").text
    assert "game.scores as game.b, 1 row, " in text

    assert scankv("backup", "prune", location, "--keep", "1", "--json").json["backups"] == [first["backup_id"]]
    for path in (tmp_path / "backups" / "objects").glob("*/*"):
        path.unlink()
    assert "is missing" in scankv("backup", "verify", location, code=1).stderr
    assert "is missing" in scankv.fails("backup", "restore", location, "--data", str(tmp_path / "none"))


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
