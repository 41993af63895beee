"""Small JSON files with a checksum and a format: readable for people, and safe against unnoticed bit flips."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

from scankv.model.errors import DataLoss
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.file_limit import is_out_of_files, too_many_files
from streaming_server.storage.files.formats import check_format

if TYPE_CHECKING:
    from pathlib import Path

_PRIVATE: Final = 0o700
_FORMAT: Final = 1
"""The format of the file and its content. ScanKV 0.1.0 has this format, but neither writes nor reads its number."""


def write_checked_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a file atomically and durably: after a crash it is the complete old or the complete new one.

    Raises:
        DiskFull: The disk has no space left; the old file remains.
        OSError: Anything else.
    """
    data = to_checked_bytes(content)
    partial = path.with_name(path.name + ".partial")
    with translate_disk_errors(path.parent):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)


def read_checked_json(path: Path) -> dict[str, Any]:
    """Reads what `write_checked_json` wrote.

    Raises:
        NewerFormat: A newer ScanKV has written the file. The message names the file, as for DataLoss.
        DataLoss: The file cannot be read or is damaged.
        ServerBusy: Too many files are open.
    """
    content = find_checked_json(path)
    if content is None:
        raise DataLoss(f"the file {path} cannot be read: it is missing")
    return content


def find_checked_json(path: Path) -> dict[str, Any] | None:
    """Reads a file like `read_checked_json`. None: the file does not exist, or was removed just now."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_out_of_files(error):
            raise too_many_files(f"the file {path} cannot be read") from error
        raise DataLoss(f"the file {path} cannot be read: {error}") from error
    return from_checked_bytes(data, f"the file {path}")


def to_checked_bytes(content: dict[str, Any]) -> bytes:
    """Returns the bytes of a file with this content."""
    # As it is read again: JSON turns keys that are numbers into text, which has another order.
    content = json.loads(json.dumps(content))
    stored = {"format": _FORMAT, "crc32c": _checksum(content), "content": content}
    return json.dumps(stored, indent=2).encode()


def from_checked_bytes(data: bytes, what: str) -> dict[str, Any]:
    """Reads the result of `to_checked_bytes`.

    Args:
        data: The bytes.
        what: The file, for errors.

    Raises:
        NewerFormat: A newer ScanKV has written the file.
        DataLoss: The file is damaged.
    """
    try:
        stored = json.loads(data)
        check_format(what, stored.get("format", _FORMAT), _FORMAT)
        content: dict[str, Any] = stored["content"]
        intact = stored["crc32c"] == _checksum(content)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataLoss(f"{what} cannot be read: {error}") from error
    if not intact:
        raise DataLoss(f"{what} is damaged: its checksum differs; restore it from a copy")
    return content


def sync_directory(path: Path) -> None:
    """Makes the names of the files in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Creates a private directory and those above it that do not exist, and makes their names durable.

    A directory that exists may have been created right before a crash, so its name is made durable as well.
    """
    if not path.is_dir():
        if not path.parent.is_dir():
            make_directory(path.parent)
        path.mkdir(mode=_PRIVATE, exist_ok=True)
    try:
        sync_directory(path.parent)
    except PermissionError:
        # A process that may not read the parent cannot sync it. This makes the name durable on most file systems, too.
        sync_directory(path)


def sync_directories(path: Path) -> None:
    """Makes the names of the files in a directory, and in all directories below it, durable."""
    for each in (*path.rglob("*"), path):
        if each.is_dir():
            sync_directory(each)


def _checksum(content: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(content, sort_keys=True).encode()))
