"""Makes one bucket of a bootstrapped table: merges its staged rows, and has RocksDB take them in as files."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from scankv.model.errors import DuplicateKeys
from streaming_server.engine.merging.preparing import WriteKind, prepare_upsert
from streaming_server.engine.writes.partition_counts import count_by_partition
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.bucket_change import BucketChange, FewBytes
from streaming_server.storage.bucket.write_times import set_write_times
from streaming_server.storage.changelog.range_markers import RangeMarker
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.rocks.sorted_file import SortedFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    import pyarrow as pa

    from streaming_server.clock import ServerClock
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.storage.bootstrap.bootstrap_directory import BootstrapDirectory
    from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, StagedRange, StagedRuns
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
class BuildRules:
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


class BucketBuild:
    """Makes one bucket. Its methods block, and may run in different threads one after the other.

    Args:
        number: The number of the bucket.
        directory: The directory of the bootstrap.
        rules: How rows are merged.
        resources: Shared by all buckets of the process.
        clock: The clock of the server.

    Attributes:
        merged_rows: How many staged rows are in files.
        rows: How many rows the bucket has.
    """

    def __init__(
        self,
        number: int,
        directory: BootstrapDirectory,
        rules: BuildRules,
        resources: RocksResources,
        clock: ServerClock,
    ) -> None:
        self.merged_rows = self.rows = 0
        self._number = number
        self._directory = directory
        self._path = directory.table / "buckets" / f"{number:04}"
        self._rules = rules
        self._definition = rules.merger.definition
        # Indexes are built from the rows once the table exists; their limits are checked here.
        self._merger = rules.merger.without_indexes().without_tracking()
        self._resources = resources
        self._clock = clock
        self._files: list[Path] = []
        self._least: bytes | None = None
        self._greatest = b""
        self._longest_row = 0
        self._partitions: Counter[bytes] = Counter()

    def restore(self) -> bool:
        """Takes over the bucket that an earlier process has made, and returns True. Removes one that is incomplete."""
        built = self._directory.find_built(self._number)
        if built is not None:
            self.merged_rows, self.rows = built["merged_rows"], built["rows"]
            return True
        for path in self._path.parent.glob(f"{self._path.name}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return False

    def merge(self, runs: StagedRuns, requests: Collection[BootstrapRequest]) -> Iterator[int]:
        """Merges all staged rows of the bucket into files. Yields the number of rows of each file, once it is written.

        Raises:
            DuplicateKeys: Two rows have the same key.
            InvalidRequest, RequestTooLarge: The rows cannot be merged.
            DiskFull, DiskFailed: The files cannot be written.
        """
        for rows in runs.read(self._number, requests, RANGE_BYTES):
            self._check_unique(rows)
            file = self._path.parent / f"{self._path.name}-{len(self._files)}.sst"
            self._write(rows, file)
            self.merged_rows += len(rows.keys)
            yield len(rows.keys)

    def finish(self) -> None:
        """Makes the bucket from the files, durably, unless it has no rows. Then records that it is complete."""
        if self._least is not None:
            self._make_bucket(self._least)
            for path in (self._path, self._path.parent):
                sync_directory(path)
        self._directory.mark_built(self._number, {"merged_rows": self.merged_rows, "rows": self.rows})

    def _make_bucket(self, least: bytes) -> None:
        definition, options = self._definition, self._definition.options
        bucket = Bucket(
            self._path,
            f"bucket {self._number} of {definition.name}",
            compression=options.compression,
            resources=self._resources,
            clock=self._clock,
        )
        try:
            marker = None if options.changelog == "none" else RangeMarker.between(least, self._greatest)
            change = BucketChange(
                put_keys=FewBytes(),
                put_values=FewBytes(),
                delete_keys=FewBytes(),
                changes=None,
                rows_added=self.rows,
                schema_id=definition.schema.id,
                marker=marker,
                partitions=dict(self._partitions),
            )
            micros = self._rules.micros
            bucket.ingest(self._files, change, longest_row=self._longest_row, commit_micros=micros)
        finally:
            bucket.close()

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
            if self._least is None:
                self._least = keys[0]
            self._greatest = keys[-1]
        file.finish()
        self._files.append(path)

    def _merge(self, rows: pa.RecordBatch, keys: pa.BinaryArray) -> Iterator[BucketChange]:
        """Merges rows in key order with each other, and yields what that does to the bucket, in key order."""
        rules, codec = self._rules, self._merger.codec.rows
        kind = WriteKind(overwrite=rules.overwrite, tracks_changes=False)
        known = keys, np.full(len(keys), self._number, np.int32)
        for part in prepare_upsert(rows, rules.merger, kind, known=known):
            change = set_write_times(self._merger.merge(_NO_ROWS, part), codec, rules.micros)
            self.rows += len(change.put_keys)
            self._longest_row = max(self._longest_row, change.longest_row)
            if self._definition.partitioning is not None:
                counts = count_by_partition(change, self._definition.partitioning)
                self._partitions.update({name: count or 0 for name, count in counts.items()})
            yield replace(change, marker=None)
