"""A directory whose changes are recorded, and what a disk may have kept of them when the power was cut.

    recording = RecordingDisk(tmp_path, compile_recorder(tmp_path))
    with ServerProcess(recording.root / "data", wrapper=recording.wrapper) as server:
        ...
        moment = recording.moment()
    disk = recording.replay("strict", moment)
    disk.write(tmp_path / "left")  # what is there after a cut at that moment

A C library, compiled for the tests, is preloaded into the server. It appends every write, every change of an entry of
a directory, and every sync to one file, in their order. `tests/support/power_cut.py` has the rules of disks.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.power_cut import DiskModel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DiskChange", "RecordingDisk", "compile_recorder"]

_SOURCE: Final = Path(__file__).with_name("recording_disk.c")
_HEAD: Final = struct.Struct("<cQQII")


class DiskChange(NamedTuple):
    """One recorded step.

    Attributes:
        type: What was done: a letter of `recording_disk.c`.
        inode: The file or directory. Its number may be used again once it is gone.
        number: An offset, a size, or which sync it is.
        first: A path below the root, or data.
        second: The new path of a rename or a link.
        end: Where the record ends in the file of records.
    """

    type: str
    inode: int
    number: int
    first: bytes
    second: bytes
    end: int


class FirstFile(NamedTuple):
    """A file or a directory that was there before anything was recorded.

    Attributes:
        path: Its path below the root.
        inode: Its inode. Several links to one file have the same.
        content: The content of a file. None: a directory.
    """

    path: str
    inode: int
    content: bytes | None

    @classmethod
    def of(cls, path: Path, root: Path) -> FirstFile:
        content = None if path.is_dir() else path.read_bytes()
        return cls(str(path.relative_to(root)), path.stat().st_ino, content)


class RecordingDisk:
    """A directory, the changes of which are recorded while processes run with `wrapper`.

    Attributes:
        root: The directory. What is in it at first is durable.
        wrapper: For `ServerProcess`, and for other commands.
    """

    def __init__(self, directory: Path, library: Path, content: Path | None = None) -> None:
        """Creates the directory, empty or with another one that is moved into it under its name."""
        self.root = directory / "disk"
        self.root.mkdir()
        if content is not None:
            content.rename(self.root / content.name)
        self._first = [FirstFile.of(path, self.root) for path in sorted(self.root.rglob("*"))]
        self._records, mutex = directory / "records", directory / "mutex"
        self._records.touch()
        mutex.write_bytes(bytes(4096))
        variables = {
            "LD_PRELOAD": library,
            "SCANKV_RECORDED_ROOT": self.root,
            "SCANKV_RECORDED_LOG": self._records,
            "SCANKV_RECORDED_MUTEX": mutex,
        }
        self.wrapper = ("env", *(f"{name}={value}" for name, value in variables.items()))

    def moment(self) -> int:
        """Returns the moment after everything that was recorded so far."""
        return self._records.stat().st_size

    def changes(self, start: int = 0, end: int | None = None) -> Iterator[DiskChange]:
        """Yields what was recorded from one moment to another, or to the end."""
        with self._records.open("rb") as file:
            file.seek(start)
            while end is None or file.tell() < end:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                type_, inode, number, first, second = _HEAD.unpack(head)
                data = file.read(first + second)
                if len(data) < first + second:
                    return  # The process was killed while it wrote the record.
                yield DiskChange(type_.decode(), inode, number, data[:first], data[first:], file.tell())

    def replay(self, rule: str, moment: int | None = None) -> DiskModel:
        """Returns the disk at a moment, or at the end."""
        disk = DiskModel(rule)
        for file in self._first:
            disk.add_durable(*file)
        for change in self.changes(0, moment):
            disk.apply(change)
        return disk


def compile_recorder(directory: Path) -> Path:
    """Compiles the library that records changes, with the system's C compiler."""
    library = directory / "recording_disk.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True)
    return library
