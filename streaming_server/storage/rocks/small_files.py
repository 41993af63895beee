"""Which table files of a column family are so small, and so many, that they are better made one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SMALL_BYTES: Final = 4 << 20
"""A file below is made one with its neighbours; so each byte is rewritten a few times until it is in a larger one."""
FEW_FILES: Final = 8
"""So many neighbours may stay small."""


@dataclass(frozen=True, slots=True)
class SstFile:
    """A table file: its size in bytes, and its first and last key. Immutable."""

    size: int
    first: bytes
    last: bytes


def find_small_runs(files: Iterable[SstFile]) -> list[tuple[bytes, bytes]]:
    """The key ranges, ends included, in which there are many small files and no others.

    RocksDB makes files of different levels one where their keys overlap. Those of ascending keys, as a changelog has
    them, it only moves from level to level, so every flush leaves one behind for good.

    Args:
        files: All files of one column family.
    """
    groups: list[list[SstFile]] = []
    behind = b""
    for file in sorted(files, key=lambda file: (file.first, file.last)):
        # Files whose keys overlap are one group: compacting one of them would rewrite all.
        if groups and file.first <= behind:
            groups[-1].append(file)
        else:
            groups.append([file])
        behind = max(behind, file.last)
    runs = []
    for is_small, neighbours in groupby(groups, key=lambda group: sum(file.size for file in group) < SMALL_BYTES):
        run = [file for group in neighbours for file in group]
        if is_small and len(run) > FEW_FILES:
            runs.append((run[0].first, max(file.last for file in run)))
    return runs
