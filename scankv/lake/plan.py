"""Decides which data files a change of rows replaces. Pure: takes and returns values."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from scankv.model.keys.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scankv.lake.lake_table import DataFile, LakeColumn


_WIDENED_BY_READERS: Final = {("int32", "int64"), ("float", "double")}
SMALL_SHARE: Final = 8
"""A file is small if it has less than one in so many rows of a complete one."""
MOST_SMALL_FILES: Final = 8
"""So many small files side by side are joined."""
_NO_IDS: Final = 'the table had no changelog (changelog="none") before, which knows the ids of columns'


@dataclass(frozen=True, slots=True)
class Replacement:
    """A range of keys of one bucket to read from the table, and the data files that its rows replace. Immutable.

    Attributes:
        bucket: The bucket.
        keys: The range. It contains all keys of the files, and no key of another file.
        files: The files; none if the range is between files.
    """

    bucket: int
    keys: KeyRange
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class _FileGroup:
    """Data files of one bucket whose key ranges overlap, so that they can only be replaced together."""

    files: tuple[DataFile, ...]
    last_key: bytes

    @property
    def rows(self) -> int:
        return sum(file.rows - file.masked_rows for file in self.files)


class BucketPlan:
    """Collects which keys of a bucket have changed, and returns what is to be replaced.

    The keys of the bucket are divided into segments: one for each group of files, and one for each gap before, between
    and after them. Only whether a segment has a changed key is remembered, so memory depends on the files alone.

    Args:
        bucket: The bucket.
        files: Its data files, in any order.
    """

    def __init__(self, bucket: int, files: Iterable[DataFile]) -> None:
        self.bucket = bucket
        self._groups = _groups_of(files)
        # Gaps have even numbers, groups odd ones.
        self._starts = [b""]
        for group in self._groups:
            self._starts += [group.files[0].first_key, group.last_key + b"\0"]
        self._touched = [False] * len(self._starts)

    def add_keys(self, keys: Sequence[bytes]) -> None:
        """Adds changed keys, as encoded keys in ascending order."""
        place = 0
        while place < len(keys):
            segment = bisect_right(self._starts, keys[place]) - 1
            self._touched[segment] = True
            if segment + 1 == len(self._starts):
                break
            place = bisect_left(keys, self._starts[segment + 1], place)

    def add_range(self, start: bytes | None, end: bytes | None) -> None:
        """Adds a range of keys whose rows were deleted; None stands for the first and the last key of the bucket."""
        first = bisect_right(self._starts, start or b"") - 1
        after = len(self._starts) if end is None else bisect_left(self._starts, end)
        for segment in range(first, after):
            if segment % 2:
                self._touched[segment] = True

    def replacements(self, file_rows: int) -> list[Replacement]:
        """Returns what is to be replaced, in ascending order.

        A file is replaced if one of its keys has changed. New keys after a file with less than half of `file_rows` are
        added to it, so that rows which arrive in key order do not leave a small file each time. Many small files side
        by side are joined.

        Args:
            file_rows: How many rows a complete file has.
        """
        taken = list(self._touched)
        for number, group in enumerate(self._groups):
            if taken[2 * number + 2] and group.rows < file_rows // 2:
                taken[2 * number + 1] = True
        for run in self._small_runs(file_rows):
            for number in run:
                taken[2 * number + 1] = True
        for number in range(1, len(self._groups)):
            # Rows of two neighbours are cut into files again, so that small ones are joined.
            if taken[2 * number - 1] and taken[2 * number + 1]:
                taken[2 * number] = True
        runs = groupby(enumerate(taken), key=lambda each: each[1])
        return [self._replacement([segment for segment, _ in run]) for is_taken, run in runs if is_taken]

    def _small_runs(self, file_rows: int) -> list[list[int]]:
        """Returns the groups to join: many small ones side by side, of one partition."""

        def kind(number: int) -> str | None:
            group = self._groups[number]
            return group.files[0].partition_id if group.rows < file_rows // SMALL_SHARE else None

        runs = [(name, list(run)) for name, run in groupby(range(len(self._groups)), kind)]
        return [run for name, run in runs if name is not None and len(run) >= MOST_SMALL_FILES]

    def _replacement(self, segments: list[int]) -> Replacement:
        after = segments[-1] + 1
        keys = KeyRange(self._starts[segments[0]] or None, self._starts[after] if after < len(self._starts) else None)
        files = [file for segment in segments if segment % 2 for file in self._groups[segment // 2].files]
        return Replacement(self.bucket, keys, tuple(files))


def _groups_of(files: Iterable[DataFile]) -> list[_FileGroup]:
    groups: list[_FileGroup] = []
    for file in sorted(files, key=lambda file: (file.first_key, file.last_key)):
        if groups and file.first_key <= groups[-1].last_key:
            last = groups.pop()
            groups.append(_FileGroup((*last.files, file), max(last.last_key, file.last_key)))
        else:
            groups.append(_FileGroup((file,), file.last_key))
    return groups


def find_obstacle(
    written: Sequence[LakeColumn], columns: Sequence[LakeColumn], null_columns: Iterable[int]
) -> str | None:
    """Returns why data files with some columns do not show the rows of the table as it is now. None: they do.

    A reader finds columns by name, and takes a column that a file lacks as null.

    Args:
        written: The columns of the files.
        columns: The columns of the table.
        null_columns: The ids of the columns in which rows are null that were written before the column was added.
    """
    by_name = {column.name: column for column in written}
    old_names = {column.id: column.name for column in written}
    nulls = set(null_columns)
    for column in columns:
        before = by_name.get(column.name)
        if before is None and column.id in old_names:
            return f'column "{old_names[column.id]}" was renamed to "{column.name}"'
        if before is None and column.id not in nulls:
            return f'column "{column.name}" was added with a default'
        if before is not None and before.id != column.id:
            return _NO_IDS if before.id < 0 else f'column "{column.name}" replaces a column with the same name'
        if before is not None and before.type != column.type:
            return f'column "{column.name}" was changed from {before.type} to {column.type}'
    return None


def find_obstacle_by_id(
    written: Sequence[LakeColumn], columns: Sequence[LakeColumn], null_columns: Iterable[int]
) -> str | None:
    """Returns why data files with some columns do not show the rows of the table as it is now. None: they do.

    A reader finds columns by their ids, takes a column that a file lacks as null, and widens numbers.

    Args:
        written: The columns of the files.
        columns: The columns of the table.
        null_columns: The ids of the columns in which rows are null that were written before the column was added.
    """
    if any(column.id < 0 for column in written):
        return _NO_IDS
    by_id = {column.id: column for column in written}
    nulls = set(null_columns)
    for column in columns:
        before = by_id.get(column.id)
        if before is None and column.id not in nulls:
            return f'column "{column.name}" was added with a default'
        if before is not None and before.type != column.type and (before.type, column.type) not in _WIDENED_BY_READERS:
            return f'column "{column.name}" was changed from {before.type} to {column.type}'
    return None


def schemas_in_use(
    schemas: Mapping[int, Sequence[LakeColumn]], files: Iterable[DataFile]
) -> dict[int, Sequence[LakeColumn]]:
    """Returns the schemas with which some data files were written."""
    used = {file.schema_id for file in files}
    return {schema_id: columns for schema_id, columns in schemas.items() if schema_id in used}


def small_appended_files(files: Iterable[DataFile], file_rows: int) -> list[list[DataFile]]:
    """Returns the files of a bucket to join, each list to one file: small ones side by side, if they are many.

    Args:
        files: The files of a bucket of a table without a key, in any order.
        file_rows: How many rows a complete file has.
    """
    joined: list[list[DataFile]] = [[]]
    for file in sorted(files, key=lambda file: file.first_key):
        if file.rows >= file_rows // SMALL_SHARE or sum(each.rows for each in joined[-1]) + file.rows > file_rows:
            joined.append([])
        if file.rows < file_rows // SMALL_SHARE:
            joined[-1].append(file)
    return [run for run in joined if len(run) >= MOST_SMALL_FILES]
