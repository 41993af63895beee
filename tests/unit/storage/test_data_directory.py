"""The data directory: one user at a time, one format, and clear errors if it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scankv.model.errors import NewerFormat, ScanKvError, UsageError
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json
from streaming_server.storage.tables.data_directory import (
    NEWEST_FORMAT,
    OLDEST_FORMAT,
    DataDirectory,
    DirectoryLocked,
    ForeignDirectory,
    read_format,
)


def test_a_directory_in_use_is_refused_naming_the_process(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    try:
        with pytest.raises(DirectoryLocked) as caught:
            DataDirectory(tmp_path / "data")
        assert caught.value.details["pid"] == str(os.getpid())
        assert str(os.getpid()) in caught.value.message
    finally:
        directory.close()
    DataDirectory(tmp_path / "data").close()


@pytest.mark.parametrize("below", ["", "data"])
def test_a_file_is_refused_as_no_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match="is not a directory: give an empty or a new one"):
        DataDirectory(tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_stale_lock_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("123456789012345678901234567890 a longer line than a process id\n")
    directory = DataDirectory(tmp_path)
    try:
        assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"
    finally:
        directory.close()


def test_the_trash_is_emptied_at_the_start(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    (tmp_path / "trash" / "dropped-x" / "buckets" / "0000").mkdir(parents=True)
    (tmp_path / "trash" / "file").write_text("x")
    directory = DataDirectory(tmp_path)
    directory.close()
    assert not list(directory.trash.iterdir())


@pytest.mark.parametrize("entry", ["trash/letter.txt", "tables/game/notes.md", "CURRENT", ".bashrc"])
def test_a_directory_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, entry: str) -> None:
    (tmp_path / entry).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / entry).write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(ForeignDirectory) as caught:
        DataDirectory(tmp_path)
    assert f'"{Path(entry).parts[0]}"' in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert contents(tmp_path) == before


def test_a_long_foreign_directory_is_named_by_a_few_entries(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"file{number:03}\n").touch()
    with pytest.raises(ForeignDirectory, match=r'"file000\\n", "file001\\n", "file002\\n" and 97 more') as caught:
        DataDirectory(tmp_path)
    assert "\n" not in caught.value.message


def test_an_empty_directory_a_fresh_mount_and_what_a_crash_left_at_first_are_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    DataDirectory(tmp_path).close()
    assert (tmp_path / "lost+found").is_dir()
    for left in ("LOCK", "scankv.json.partial"):
        crashed = tmp_path / f"crashed-{left}"
        crashed.mkdir()
        (crashed / left).touch()
        DataDirectory(crashed).close()
        DataDirectory(crashed).close()


def test_tables_are_private_also_in_a_directory_that_others_may_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for path in (tmp_path, tmp_path / "new"):
        DataDirectory(path).close()
        made = [path / name for name in ("tables", "trash", "transactions", "LOCK")]
        assert [oct(each.stat().st_mode & 0o077) for each in made] == ["0o0"] * 4
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    # The previous owner of the directory decides who may list it.
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def contents(path: Path) -> dict[str, str | None]:
    return {str(each): each.read_text() if each.is_file() else None for each in path.rglob("*")}


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "scankv.json", {"format": NEWEST_FORMAT + 1})
    before = contents(tmp_path)
    with pytest.raises(NewerFormat, match=f"{tmp_path} has format {NEWEST_FORMAT + 1}, .* upgrade the server"):
        DataDirectory(tmp_path)
    assert contents(tmp_path) == before


def test_an_older_format_stays_until_it_is_confirmed(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "scankv.json", {"format": OLDEST_FORMAT})
    DataDirectory(tmp_path).close()
    assert read_format(tmp_path) == OLDEST_FORMAT
    directory = DataDirectory(tmp_path)
    directory.confirm()
    directory.close()
    assert read_format(tmp_path) == NEWEST_FORMAT


def test_a_new_directory_has_the_newest_format(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "new").close()
    assert read_format(tmp_path / "new") == NEWEST_FORMAT


def test_the_format_of_another_directory_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a ScanKV data directory"):
        read_format(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\xff", '{"format": null}', "{}", '{"format": "1"}'])
def test_a_broken_format_file_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "scankv.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ScanKvError, match=str(tmp_path)):
        DataDirectory(tmp_path)
    (tmp_path / "scankv.json").unlink()
    DataDirectory(tmp_path).close()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_checked_json(file, {"is": "one"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        with pytest.raises(OSError, match="disk"):
            write_checked_json(file, {"is": "two, longer"})
    assert read_checked_json(file) == {"is": "one"}
    write_checked_json(file, {"is": "3"})
    assert read_checked_json(file) == {"is": "3"}


def _refuse(fd: int) -> None:
    raise OSError("the disk is gone")
