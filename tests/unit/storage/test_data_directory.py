"""The data directory: one user at a time, one format, and clear words when it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from streaming_server.storage.checked_json import read_checked_json, write_checked_json
from streaming_server.storage.data_directory import DataDirectory, DirectoryLocked
from table_model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from streaming_server.storage.data_directory import DataDirectory
directory = DataDirectory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


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


def test_the_lock_goes_with_the_process_that_holds_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLocked) as caught:
            DataDirectory(tmp_path)
        assert caught.value.details["pid"] == str(holder.pid)
        holder.kill()
    DataDirectory(tmp_path).close()


def test_a_stale_lock_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("123456789012345678901234567890 a longer line than a process id\n")
    directory = DataDirectory(tmp_path)
    try:
        assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"
    finally:
        directory.close()


def test_the_trash_is_emptied_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "trash" / "dropped-x" / "buckets" / "0000").mkdir(parents=True)
    (tmp_path / "trash" / "file").write_text("x")
    directory = DataDirectory(tmp_path)
    directory.close()
    assert not list(directory.trash.iterdir())


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="file"):
            DataDirectory(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "scankv.json", {"format": 2})
    with pytest.raises(UsageError, match="format 2"):
        DataDirectory(tmp_path)


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
