"""A changelog in RocksDB without the bucket around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.clock import ServerClock
from streaming_server.storage.changelog.bucket_log import BucketLog
from streaming_server.storage.changelog.log_state import LogState

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.storage.changelog.range_markers import RangeMarker
    from streaming_server.storage.changelog.records import Changes
    from streaming_server.storage.changelog.segments import Segment
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch

AGE_SECONDS = 10.0
"""How precisely the log knows the ages of changes."""


class RocksLog:
    """An empty `BucketLog`, and the state that its bucket would store. Close it before another one uses the store.

    Args:
        store: The store, which loses the changelog that it has.
        watermark: The file of the durable watermark, which is created again.
        clock: The clock of the server.

    Attributes:
        log: The changelog.
        state: Its current state.
    """

    def __init__(self, store: RocksStore, watermark: Path, clock: ServerClock | None = None) -> None:
        self.store = store
        batch = store.batch()
        batch.delete_log(b"", b"\xff" * 9)
        batch.delete_meta_range(b"", b"\xff" * 9)
        store.write(batch)
        watermark.unlink(missing_ok=True)
        self.log = BucketLog(
            store, lambda: self.state, watermark=watermark, clock=clock or ServerClock(), age_seconds=AGE_SECONDS
        )
        self.state = self.log.recover(LogState())

    def append(self, changes: Changes | RangeMarker, schema_id: int, micros: int) -> None:
        """Appends the changes of a commit, or a marker."""
        batch = self.store.batch()
        state = self.log.append(batch, self.state, changes, schema_id=schema_id, commit_micros=micros)
        self._write(batch, state)

    def trim(self, offset: int) -> int:
        """Trims the changes before an offset; returns the count of the first change that is kept."""
        batch = self.store.batch()
        self._write(batch, self.log.trim(batch, self.state, offset))
        return self.state.log_first

    def clear(self) -> None:
        """Removes all changes."""
        batch = self.store.batch()
        self._write(batch, self.log.clear(batch, self.state))

    def put_segment(self, segment: Segment) -> None:
        """Replaces the records of a segment."""
        batch = self.store.batch()
        self._write(batch, self.log.put_segment(batch, self.state, segment))

    def _write(self, batch: StoreBatch, state: LogState) -> None:
        self.store.write(batch)
        self.state = state

    def close(self) -> None:
        """Closes the log, and leaves the store open."""
        self.log.close()
