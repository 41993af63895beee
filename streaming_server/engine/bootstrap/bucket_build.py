"""Makes one bucket of a bootstrapped table: has RocksDB take in the files with its rows."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from streaming_server.engine.bootstrap.bucket_merge import MergedFiles
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.bucket_change import BucketChange, FewBytes
from streaming_server.storage.changelog.range_markers import RangeMarker
from streaming_server.storage.files.checked_json import sync_directory

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.bootstrap.bootstrap_directory import BootstrapDirectory
    from streaming_server.storage.rocks.store_options import RocksResources


class BucketBuild:
    """Makes one bucket. Its methods block, and may run in different threads one after the other.

    Args:
        number: The number of the bucket.
        definition: The table.
        directory: The directory of the bootstrap.
        resources: Shared by all buckets of the process.
        clock: The clock of the server.

    Attributes:
        number: The number of the bucket.
        path: Its directory.
        files: What became of its staged rows so far.
    """

    def __init__(
        self,
        number: int,
        definition: TableDefinition,
        directory: BootstrapDirectory,
        resources: RocksResources,
        clock: ServerClock,
    ) -> None:
        self.number = number
        self.path = directory.table / "buckets" / f"{number:04}"
        self.files = MergedFiles()
        self._definition = definition
        self._directory = directory
        self._resources = resources
        self._clock = clock

    def restore(self) -> bool:
        """Takes over the bucket that an earlier process has made, and returns True. Removes one that is incomplete."""
        built = self._directory.find_built(self.number)
        if built is not None:
            self.files = MergedFiles(merged_rows=built["merged_rows"], rows=built["rows"])
            return True
        for path in self.path.parent.glob(f"{self.path.name}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return False

    def finish(self, micros: int) -> None:
        """Makes the bucket from the files, durably, unless it has no rows. Then records that it is complete.

        Args:
            micros: The commit time of all rows, in microseconds since 1970 UTC.
        """
        if self.files.least is not None:
            self._make_bucket(self.files.least, micros)
            for path in (self.path, self.path.parent):
                sync_directory(path)
        self._directory.mark_built(self.number, {"merged_rows": self.files.merged_rows, "rows": self.files.rows})

    def _make_bucket(self, least: bytes, micros: int) -> None:
        definition, options, files = self._definition, self._definition.options, self.files
        bucket = Bucket(
            self.path,
            f"bucket {self.number} of {definition.name}",
            compression=options.compression,
            resources=self._resources,
            clock=self._clock,
        )
        try:
            marker = None if options.changelog == "none" else RangeMarker.between(least, files.greatest)
            change = BucketChange(
                put_keys=FewBytes(),
                put_values=FewBytes(),
                delete_keys=FewBytes(),
                changes=None,
                rows_added=files.rows,
                schema_id=definition.schema.id,
                marker=marker,
                partitions=dict(files.partitions),
            )
            bucket.ingest(files.paths, change, longest_row=files.longest_row, commit_micros=micros)
        finally:
            bucket.close()
