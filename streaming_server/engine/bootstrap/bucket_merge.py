"""Merges the staged rows of one bucket of a bootstrap into files, which RocksDB can take in."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from scankv.model.errors import DuplicateKeys
from streaming_server.engine.merging.preparing import WriteKind, prepare_upsert
from streaming_server.engine.writes.partition_counts import count_by_partition
from streaming_server.storage.bucket.write_times import set_write_times
from streaming_server.storage.rocks.sorted_file import SortedFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    import pyarrow as pa

    from streaming_server.engine.merging.merger import Merger
    from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, StagedRange, StagedRuns
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.rocks.store_options import RocksResources

RANGE_BYTES: Final = 48 << 20
"""About how many bytes of staged rows become one file."""
_SLICE_ROWS: Final = 16_384


class _NoRows:
    """The stored rows of a bucket that has none."""

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def has_rows_among(self, keys: list[bytes]) -> bool:
        return False


_NO_ROWS: Final = _NoRows()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """How the rows of a bootstrap become those of its table. Immutable.

    Attributes:
        merger: The rules of the table.
        overwrite: Whether the rows are already merged.
        merges_duplicates: Whether rows with the same key are merged. If not, they are an error.
        micros: The commit time of all rows, in microseconds since 1970 UTC.
    """

    merger: Merger
    overwrite: bool
    merges_duplicates: bool
    micros: int


@dataclass(slots=True)
class MergedFiles:
    """What became of the staged rows of one bucket.

    Attributes:
        paths: The files, in key order.
        merged_rows: How many staged rows are in them.
        rows: How many rows the bucket has.
        longest_row: The bytes of the longest one.
        least, greatest: The first and the last key. None: the bucket has no rows.
        partitions: The number of rows of each partition, by its encoded value.
    """

    paths: list[Path] = field(default_factory=list)
    merged_rows: int = 0
    rows: int = 0
    longest_row: int = 0
    least: bytes | None = None
    greatest: bytes = b""
    partitions: Counter[bytes] = field(default_factory=Counter)


class BucketMerge:
    """Merges one bucket. Its methods block, and may run in different threads one after the other.

    Args:
        number: The number of the bucket.
        path: The directory that the bucket will have. The files are made beside it.
        rules: How rows are merged.
        resources: Shared by all buckets of the process.

    Attributes:
        files: What became of the rows so far.
    """

    def __init__(self, number: int, path: Path, rules: MergeRules, resources: RocksResources) -> None:
        self.files = MergedFiles()
        self._number = number
        self._path = path
        # A merge process that was frozen while its server was killed cannot write into a file of the next attempt.
        self._attempt = os.urandom(4).hex()
        self._rules = rules
        self._definition = rules.merger.definition
        # Indexes are built from the rows once the table exists; their limits are checked here.
        self._merger = rules.merger.without_indexes().without_tracking()
        self._resources = resources

    def merge(self, runs: StagedRuns, requests: Collection[BootstrapRequest]) -> Iterator[None]:
        """Merges all staged rows of the bucket into files. Yields after each file.

        Raises:
            DuplicateKeys: Two rows have the same key.
            InvalidRequest, RequestTooLarge: The rows cannot be merged.
            DiskFull, DiskFailed: The files cannot be written.
        """
        for rows in runs.read(self._number, requests, RANGE_BYTES):
            self._check_unique(rows)
            file = self._path.parent / f"{self._path.name}-{self._attempt}-{len(self.files.paths)}.sst"
            self._write(rows, file)
            self.files.merged_rows += len(rows.keys)
            yield

    def _check_unique(self, rows: StagedRange) -> None:
        """Raises DuplicateKeys, which names one key, if rows with the same key are an error and there are any."""
        duplicate = None if self._rules.merges_duplicates else rows.find_duplicate()
        if duplicate is None:
            return
        name, values = self._definition.name, duplicate.select(list(self._definition.primary_key)).to_pylist()[0]
        key = ", ".join(f"{column}={str(value)[:40]}" for column, value in values.items())
        raise DuplicateKeys(
            f"several rows for the table {name} have the key {key}: correct the source, or have the merge engine merge "
            'rows with the same key (duplicates="merge")',
            table=name,
            key=key,
        )

    def _write(self, rows: StagedRange, path: Path) -> None:
        """Merges the rows of one range, and writes the result to a file, unless it is empty."""
        slices = rows.slices(_SLICE_ROWS)
        changes = (change for each in slices for change in self._merge(*each) if len(change.put_keys))
        first = next(changes, None)
        if first is None:
            return
        file = SortedFile(path, self._definition.options.compression, self._resources)
        for change in itertools.chain([first], changes):
            keys = change.put_keys.to_pylist()
            file.put(keys, change.put_values.to_pylist())
            if self.files.least is None:
                self.files.least = keys[0]
            self.files.greatest = keys[-1]
        file.finish()
        self.files.paths.append(path)

    def _merge(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> Iterator[BucketChange]:
        """Merges rows in key order with each other, and yields what that does to the bucket, in key order."""
        rules, codec = self._rules, self._merger.codec.rows
        kind = WriteKind(overwrite=rules.overwrite, tracks_changes=False)
        known = keys, np.full(len(keys), self._number, np.int32)
        for part in prepare_upsert(rows, rules.merger, kind, known=known):
            change = set_write_times(self._merger.merge(_NO_ROWS, part), codec, rules.micros)
            self.files.rows += len(change.put_keys)
            self.files.longest_row = max(self.files.longest_row, change.longest_row)
            if self._definition.partitioning is not None:
                counts = count_by_partition(change, self._definition.partitioning)
                self.files.partitions.update({name: count or 0 for name, count in counts.items()})
            yield replace(change, marker=None)
