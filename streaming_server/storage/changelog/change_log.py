"""The interface between the server and the storage of changes. `docs/internals/changelog-interface.md` explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from streaming_server.storage.changelog.log_state import LogState

if TYPE_CHECKING:
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.changelog.range_markers import MarkerRecord, RangeMarker
    from streaming_server.storage.changelog.records import Changes, LogRecord
    from streaming_server.storage.changelog.retention_holds import RetentionHolds
    from streaming_server.storage.changelog.segments import Segment
    from streaming_server.storage.rocks.store_batch import StoreBatch

State = TypeVar("State", bound=LogState)


@dataclass(frozen=True, slots=True)
class ChangelogUsage:
    """How much of a changelog is retained, and by which hold.

    Attributes:
        bytes: Bytes of its changes, as they were written.
        holder: The owner of the retention hold that reaches furthest back. Empty: no hold exists.
        held_bytes: Bytes of the changes from that hold on.
    """

    bytes: int = 0
    holder: str = ""
    held_bytes: int = 0


class LogReader(Protocol):
    """Reads the changes of a range one after another, as of one instant."""

    def read(self) -> LogRecord | None:
        """Returns the next record, without changes outside of the range; None at the proven end. Raises DataLoss."""

    def close(self) -> None:
        """Frees what the reader keeps. Closing twice is allowed."""


class ReadableLog(Protocol):
    """The changes of one bucket, in order and without gaps."""

    @property
    def span(self) -> LogSpan:
        """The changes that the log has now."""

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

    def reader(self, keys: KeyRange, definition: TableDefinition, *, reverse: bool = False) -> LogReader:
        """Returns a reader of the changes whose offsets are in a range; with `reverse`, it reads the last record first.

        It shows the log as of now, whatever is appended, trimmed or rewritten later. Create it under the bucket's
        mutex; then use it from one thread at a time, and close it.

        Args:
            keys: Offsets, as `row_key` encodes them; or any other bytes in their order.
            definition: The table, with the schemas of all records.
            reverse: Whether to read backward.
        """

    def offset_at(self, micros: int, definition: TableDefinition) -> int:
        """Returns the offset of the first change committed at or after a time; the end of the log if none exists."""


class ChangeLog(ReadableLog, Protocol):
    """A log that one owner appends to.

    Not thread-safe: callers hold the bucket's mutex. Reads, `next_segment` and `sync` may run concurrently with
    everything, one sync at a time.

    Attributes:
        holds: The retention holds on the log, which `trim` respects.
    """

    holds: RetentionHolds

    @property
    def durable_offset(self) -> int:
        """The offset below which all changes are known to be durable."""

    def recover(self, state: State, known: LogState | None = None) -> State:
        """Begins to use the log, and returns the state with which it continues. Call it once, before anything else.

        A new epoch begins unless it is certain that no reader has seen changes that are lost now.

        Args:
            state: The state that was stored with the rows.
            known: The state with which this process last had the log open. None: it has not had it open.

        Raises:
            DataLoss: Durable changes are missing.
        """

    def append(
        self, batch: StoreBatch, state: State, changes: Changes | RangeMarker, *, schema_id: int, commit_micros: int
    ) -> State:
        """Adds the changes of a commit, or a range marker, to a batch of writes, after all others.

        They are visible to reads once the caller has applied the batch, and durable after the next `sync`.

        Args:
            batch: The batch, to which the caller adds the rows and the state.
            state: The current state.
            changes: The changes.
            schema_id: The version of the table's schema that the changes have.
            commit_micros: Their commit time in microseconds since 1970 UTC, no earlier than that of the last commit.

        Returns:
            The state after the batch is applied.
        """

    def sync(self, offset: int) -> None:
        """Makes the changes before `offset`, all of them already applied, durable, with the rows of their batches.

        Raises:
            ScanKvError: They may not be durable, or another owner has replaced this one. No later sync succeeds.
        """

    def trim(self, batch: StoreBatch, state: State, offset: int) -> State:
        """Adds the removal of the changes before an offset to a batch of writes; returns the state after it.

        Changes under a retention hold are kept, and the state is unchanged if no change is removed. Changes that share
        a record with a later change may stay on disk.
        """

    def clear(self, batch: StoreBatch, state: State) -> State:
        """Adds the removal of all changes to a batch of writes, and ends all holds; returns the state after it."""

    @property
    def is_rewrite_due(self) -> bool:
        """Whether the log may have small records that read faster as one."""

    def next_segment(self, end: int, definition: TableDefinition) -> Segment | None:
        """Plans the segment that replaces the next small records before an offset. Changes nothing.

        Takes up to about 50 ms. Returns None if too few records exist so far. Raises DataLoss.
        """

    def put_segment(self, batch: StoreBatch, state: State, segment: Segment) -> State:
        """Adds the replacement of the records of a segment to a batch of writes; returns the state after it.

        The state is unchanged if these records were removed in the meantime.
        """

    def offset_of_bytes(self, size: int, *, round_down: bool = False) -> int:
        """Returns the offset at which the bytes ever written to the log reach a size; rounded up or down by a MiB."""

    def bytes_before(self, offset: int) -> int:
        """Returns the bytes ever written to the log before an offset; rounded up by at most a MiB."""

    def space_before(self, count: int) -> tuple[KeyRange, int]:
        """Returns the stored keys of the changes before the one with a number, and about their bytes."""

    def offset_of_age(self, before: int, now: int) -> int:
        """Returns an offset before which all changes were written at or before a time.

        Rule: retention never looks at commit times, because they follow the wall clock.

        Args:
            before: The time, in microseconds of service time.
            now: The current service time.
        """

    def set_age_precision(self, seconds: float) -> None:
        """Sets how precisely `offset_of_age` knows the ages of changes from now on. Safe in any thread."""

    def usage(self) -> ChangelogUsage:
        """Returns how much of the log is retained, and by which hold. Takes milliseconds for gigabytes."""

    def close(self) -> None:
        """Ends the use of the log by this owner. It can no longer append or sync."""
