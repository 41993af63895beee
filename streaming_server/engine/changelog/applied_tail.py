"""The changelog of a bucket up to the last change that is applied, for streams that do not wait for syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.changelog.range_markers import MarkerRecord
    from streaming_server.storage.changelog.records import LogRecord


class AppliedTail:
    """A `LogTail` that ends after the last applied change, durable or not.

    If a power failure undoes changes, the bucket begins a new epoch, so the offsets after them are refused and never
    mean other changes.

    Args:
        live: The bucket, which is open.
    """

    def __init__(self, live: LiveBucket) -> None:
        self._live = live

    @property
    def durable_offset(self) -> int:
        """See `LogTail`. Raises the error of a blocked bucket."""
        return self._live.applied_state.log_offset

    def read_log(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """See `LogTail`."""
        return self._live.read_log(start, end, definition, max_changes=max_changes, max_bytes=max_bytes)

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """See `LogTail`."""
        return self._live.read_markers(start, end, most=most)

    def has_markers_since(self, offset: int) -> bool:
        """See `LogTail`."""
        return self._live.applied_state.has_markers_since(offset)

    def retain_log(self, owner: str, offset: int) -> None:
        """See `LogTail`."""
        self._live.retain_log(owner, offset)

    def release_log(self, owner: str) -> None:
        """See `LogTail`."""
        self._live.release_log(owner)

    def is_quiet_at(self, offset: int) -> bool:
        """See `LogTail`."""
        return self._live.is_quiet_at(offset)

    def on_durable(self, listener: Callable[[], None]) -> Callable[[], None]:
        """See `LogTail`."""
        return self._live.on_applied(listener)
