"""The interface between the server and the storage of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.changelog.range_markers import MarkerRecord, RangeMarker
    from streaming_server.storage.changelog.records import Changes, LogRecord
    from streaming_server.storage.rocks.store import StoreBatch


class ChangeLog(Protocol):
    """The changes of one bucket, in order and without gaps."""

    @property
    def span(self) -> LogSpan:
        """The changes that the log has now."""

    def append(self, batch: StoreBatch, changes: Changes | RangeMarker, *, schema_id: int, commit_micros: int) -> int:
        """Adds the changes of a commit, or a range marker, to a batch of writes, after all others.

        Returns their size in bytes.
        """

    def read(
        self, start: int, end: int, definition: TableDefinition, *, max_changes: int, max_bytes: int
    ) -> list[LogRecord]:
        """Returns the changes from offset `start` up to, but without, offset `end`, in order.

        Returns at least one change if one exists, and at most `max_changes`. Reads no further record after `max_bytes`
        stored bytes. Ends before a range marker.

        Raises:
            MarkerReached: A range marker is at `start`. Its record takes one offset.
            DataLoss: Changes are missing or damaged.
        """

    def read_markers(self, start: int, end: int, *, most: int) -> list[MarkerRecord]:
        """Returns the range markers from offset `start` on that no change comes between, and before offset `end`.

        Returns at most `most` of them; none if the record at `start` is no marker. Raises DataLoss.
        """

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """Returns the offset of the first change committed at or after a time; the end of the log if none exists."""

    def hold(self, owner: str, offset: int, seconds: float | None = None) -> None:
        """Keeps changes from an offset on until `release`, or for some seconds. Replaces the owner's last hold."""

    def release(self, owner: str) -> None:
        """Ends the retention hold of an owner, if it has one."""

    def trim(self, batch: StoreBatch, offset: int) -> int:
        """Adds the removal of the changes before an offset to a batch of writes.

        Changes under a retention hold are kept. Changes that share a record with a later change may stay on disk.

        Returns:
            The count of the first change that is kept. The caller makes it `span.first` when it applies the batch.
        """
