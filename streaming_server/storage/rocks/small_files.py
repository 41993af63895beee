"""Chooses the runs of small SST files of a column family that are worth merging."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SMALL_BYTES: Final = 4 << 20
"""A smaller file is merged with its neighbours. So each byte is rewritten a few times until it is in a larger file."""
FEW_FILES: Final = 8
"""This many neighbours may stay small."""


@dataclass(frozen=True, slots=True)
class SstFile:
    """An SST file: its size in bytes, and its first and last key. Immutable."""

    size: int
    first: bytes
    last: bytes


def find_small_runs(files: Iterable[SstFile]) -> list[tuple[bytes, bytes]]:
    """Returns the key ranges, ends included, that have many small files and no larger ones.

    RocksDB merges files of different levels if their keys overlap. Files with ascending keys, as a changelog writes
    them, are only moved from level to level, so every flush leaves one small file forever.

    Args:
        files: All files of one column family.
    """
    groups: list[list[SstFile]] = []
    greatest = b""
    for file in sorted(files, key=lambda file: (file.first, file.last)):
        # Files with overlapping keys form one group, because compacting one of them would rewrite all.
        if groups and file.first <= greatest:
            groups[-1].append(file)
        else:
            groups.append([file])
        greatest = max(greatest, file.last)
    runs = []
    for is_small, neighbours in groupby(groups, key=lambda group: sum(file.size for file in group) < SMALL_BYTES):
        run = [file for group in neighbours for file in group]
        if is_small and len(run) > FEW_FILES:
            runs.append((run[0].first, max(file.last for file in run)))
    return runs
