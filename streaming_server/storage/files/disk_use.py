"""How much disk space a data directory takes, by purpose. Reads directories, and opens no bucket."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_BLOCK = 512
"""Bytes of the unit of `st_blocks`, whatever the block size of the file system is."""


@dataclass(frozen=True, slots=True)
class FamilyBytes:
    """Bytes of a bucket's SST files, by what they hold."""

    rows: int
    changelog: int
    indexes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFiles:
    """Bytes of the files of one bucket: its SST files (`tables`), its write-ahead logs, and all others."""

    tables: int
    logs: int
    others: int

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return self.tables + self.logs + self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """Bytes of the files of one table. A file with several hard links counts in the first group that has one."""

    buckets: Mapping[int, BucketFiles] = field(default_factory=dict)
    bases: int
    snapshots: int
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBytes:
    """Bytes on disk by purpose. See `DiskUse` in `protos/scankv/v1/table.proto`."""

    rows: int = 0
    changelog: int = 0
    indexes: int = 0
    write_ahead_logs: int = 0
    bases: int = 0
    snapshots: int = 0
    staging: int = 0
    unopened: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return sum(getattr(self, each.name) for each in fields(self))

    def __add__(self, more: DiskBytes) -> DiskBytes:
        return DiskBytes(**{each.name: getattr(self, each.name) + getattr(more, each.name) for each in fields(self)})

    @classmethod
    def of_table(cls, files: TableFiles, known: Mapping[int, FamilyBytes]) -> Self:
        """Returns the disk use of a table. For the buckets in `known`, SST files are split by what they hold."""
        use = {name: sum(getattr(each, name) for each in known.values()) for name in ("rows", "changelog", "indexes")}
        tables = sum(each.tables for number, each in files.buckets.items() if number in known)
        return cls(
            **use,
            write_ahead_logs=sum(each.logs for each in files.buckets.values()),
            bases=files.bases,
            snapshots=files.snapshots,
            unopened=sum(each.tables for number, each in files.buckets.items() if number not in known),
            # Includes the difference of SST files that were written or removed between the two measurements.
            other=max(
                0, files.others + sum(each.others for each in files.buckets.values()) + tables - sum(use.values())
            ),
        )


def measure_table(path: Path) -> TableFiles:
    """Measures the directory of a table. Blocks. Tolerates files that are created or removed concurrently."""
    seen: set[int] = set()
    buckets = {}
    for directory in _directories(path / "buckets"):
        sizes = {"tables": 0, "logs": 0, "others": 0}
        for name, size in _files(directory.path, seen):
            sizes["tables" if name.endswith(".sst") else "logs" if name.endswith(".log") else "others"] += size
        buckets[int(directory.name)] = BucketFiles(**sizes)
    # In this order, so that a base that a snapshot shares counts as the table's.
    bases = directory_bytes(path / "bases", seen)
    snapshots = directory_bytes(path / "snapshots", seen)
    directory_bytes(path / "tablets", seen)  # Each tablet is measured by itself.
    return TableFiles(buckets=buckets, bases=bases, snapshots=snapshots, others=directory_bytes(path, seen))


def directory_bytes(path: Path, seen: set[int] | None = None) -> int:
    """Returns the bytes of the files below a directory whose inodes are not in `seen`; adds the inodes. Blocks."""
    return sum(size for _, size in _files(str(path), set() if seen is None else seen))


def _directories(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name.isdecimal()]
    except FileNotFoundError:
        return []


def _files(path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yields the name and bytes of every file below a directory whose inode is not in `seen`."""
    if os.path.isfile(path):
        yield path, _BLOCK * os.stat(path).st_blocks
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                status = os.stat(os.path.join(directory, name), follow_symlinks=False)
            except FileNotFoundError:
                continue
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                yield name, _BLOCK * status.st_blocks
