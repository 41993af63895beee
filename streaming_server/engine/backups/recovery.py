"""Restores what can be restored of damaged parts of a data directory, when no server uses it.

Rule: nothing is destroyed. What is replaced or removed is kept below `damaged/` in the data directory, at its path.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.backup.backup_store import instant_id
from streaming_server.storage.backup.backup_writer import link_files
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.bucket_state import STATE_KEY, BucketState, load_state
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.checked_json import make_directory, sync_directory
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.rocks.store import RocksStore

if TYPE_CHECKING:
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.rocks.store_options import RocksResources

KEPT: Final = "damaged"
"""The directory of what recoveries have replaced."""


class Recovery:
    """Recovers parts of one data directory. Its methods block, and return what they have done, for people.

    Args:
        data: The data directory, which the caller has locked.
        resources: For opening buckets.
        clock: For opening buckets.
    """

    def __init__(self, data: Path, resources: RocksResources, clock: ServerClock) -> None:
        self._data = data
        self._resources = resources
        self._clock = clock
        self._kept = data / KEPT / instant_id(clock.commit_micros())

    def remove(self, path: Path, consequence: str) -> str:
        """Removes a file or a directory that the server can do without."""
        kept = self._keep(path)
        path.rename(kept)
        sync_directory(kept.parent)
        sync_directory(path.parent)
        return f"{consequence}; it is kept as {kept}"

    def forget_bucket(self, path: Path, lost: int) -> str:
        """Lets a bucket whose files are missing begin without rows."""
        watermark = path.with_suffix(".durable")
        self.remove(watermark, "")
        if path.exists():
            path.rename(self._keep(path))
        return f"the bucket is empty now: {_changes(lost)} are lost"

    def drop_index(self, path: Path, definition: TableDefinition, columns: tuple[str, ...]) -> str:
        """Removes the entries of an index, which the server then builds again."""
        bucket = Bucket(
            path,
            str(path),
            compression=definition.options.compression,
            resources=self._resources,
            clock=self._clock,
        )
        try:
            bucket.set_indexes([each.id for each in definition.indexes if each.columns != columns])
            bucket.sync(bucket.state.log_offset)
        finally:
            bucket.close()
        return "the server builds it again"

    def reopen_bucket(self, path: Path, definition: TableDefinition) -> str:
        """Opens a bucket with the writes before the damage in its write-ahead log. The rest is lost.

        Raises:
            DataLoss: More is damaged than the write-ahead log.
        """
        kept = self._keep(path)
        link_files(path, kept)
        sync_directory(kept)
        sync_directory(kept.parent)
        try:
            store = RocksStore(
                path,
                f"the bucket in {path}",
                compression=definition.options.compression,
                resources=self._resources,
                point_in_time=True,
            )
        except DataLoss:
            # As it was, byte for byte, so that others can try.
            shutil.rmtree(path)
            link_files(kept, path)
            raise
        try:
            state = load_state(store)
            # Positions and versions that clients have got of lost changes must not mean others.
            state = replace(state, clean=True).after_unclean_stop()
            batch = store.batch()
            batch.put_meta(STATE_KEY, state.to_bytes())
            store.write(batch)
            store.sync()
        finally:
            store.close()
        bases = path.parents[1] / "bases" / path.name
        if bases.exists():
            self.remove(bases, "")  # They may have changes that are lost.
        lost = self._lower_watermark(path.with_suffix(".durable"), state)
        if not lost:
            return "every acknowledged change is there"
        return f"{_changes(lost)} are lost, the last ones; the files as they were are kept in {kept}"

    def _lower_watermark(self, path: Path, state: BucketState) -> int:
        """Records what is left as durable. Returns how many acknowledged changes are lost."""
        watermark = DurableWatermark(path)
        try:
            before = count_of(watermark.read() or 0)
            watermark.write(state.log_offset)
            watermark.sync()
        finally:
            watermark.close()
        return max(0, before - state.count)

    def _keep(self, path: Path) -> Path:
        """Returns where a path is kept, in a directory that exists."""
        kept = self._kept / path.relative_to(self._data)
        make_directory(kept.parent)
        return kept


def _changes(count: int) -> str:
    return f"{count:,} acknowledged {'change' if count == 1 else 'changes'}"
