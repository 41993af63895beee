"""How far the changelog of a bucket has come: counters that are stored in one write with its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from streaming_server.storage.changelog.log_span import LogSpan
from streaming_server.storage.changelog.offsets import count_of, make_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """How far a changelog has come. Every operation that changes the log returns the state after it. Immutable.

    The caller stores it in the WriteBatch of the operation, so rows, changes and state are changed together or not at
    all.

    Attributes:
        epoch: Grows with each unclean start and with each recovery that loses changes.
        count: Changes that the bucket has had, over all epochs.
        epoch_starts: The count at which each epoch began, from epoch 0 on.
        clean: False from the first write after a start until the bucket is closed cleanly.
        log_first: The number of changes before the oldest one in the changelog.
        log_rewritten: The number of changes before the first one that has not been considered for a segment yet.
        log_bytes: Bytes of all changelog records ever written, as they were written.
        log_marked: The value of `log_bytes` at the last mark, see `LogMark`.
        log_micros: The service time of the last change, in microseconds.
        log_marked_micros: The service time of the last mark.
        last_marker: The number of changes up to and including the last range marker. 0: the bucket has never had one.
    """

    epoch: int = 0
    count: int = 0
    epoch_starts: tuple[int, ...] = (0,)
    clean: bool = True
    log_first: int = 0
    log_rewritten: int = 0
    log_bytes: int = 0
    log_marked: int = 0
    log_micros: int = 0
    log_marked_micros: int = 0
    last_marker: int = 0

    @property
    def log_offset(self) -> int:
        """The offset of the next change."""
        return make_offset(self.epoch, self.count)

    @property
    def log_span(self) -> LogSpan:
        """The changes that the changelog has."""
        return LogSpan(self.log_first, self.count, self.epoch_starts)

    def has_markers_since(self, offset: int) -> bool:
        """Whether the changelog has a range marker at an offset or after it."""
        return count_of(offset) < self.last_marker

    def after_unrecorded(self, changes: int) -> Self:
        """Returns the state after so many changes that the changelog does not record: it begins after them."""
        count = self.count + changes
        return replace(self, count=count, log_first=count, log_rewritten=count)

    def in_epoch(self, epoch: int) -> Self:
        """Returns the state of a bucket in a later epoch, which begins with the next change.

        The epochs in between are empty. So a position in lost changes belongs to an epoch that ended before it.
        """
        starts = (*self.epoch_starts, *[self.count] * (epoch - self.epoch))
        return replace(self, epoch=epoch, epoch_starts=starts, clean=True)
