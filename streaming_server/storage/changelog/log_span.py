"""Which changes the changelog of a bucket has, and which of them a log offset names."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from scankv.model.errors import PositionExpired, PositionOutOfRange
from streaming_server.storage.changelog.offsets import count_of, epoch_of, make_offset


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The changes that a changelog has. Immutable.

    Attributes:
        first: The number of changes before the oldest one that is kept.
        end: The number of changes ever made.
        epoch_starts: The count at which each epoch began, from epoch 0 on.
    """

    first: int
    end: int
    epoch_starts: tuple[int, ...]

    def offset_of(self, count: int) -> int:
        """Returns the offset of change number `count`."""
        return make_offset(bisect_right(self.epoch_starts, count) - 1, count)

    def count_before(self, key: bytes) -> int:
        """Returns the number of changes with a `row_key` below a key, at least `first` and at most `end`."""
        # The bytes after an offset come after it: a position is the offset of a row that was read, and a zero byte.
        offset = int.from_bytes(key[:8].ljust(8, b"\0"), "big") + (len(key) > 8)
        epoch = epoch_of(offset)
        if epoch >= len(self.epoch_starts):
            return self.end
        count = min(max(count_of(offset), self.epoch_starts[epoch]), self._end_of(epoch), self.end)
        return max(count, self.first)

    def resolve(self, offset: int, *, location: str, clamp: bool = False) -> int:
        """Returns the offset at which reading starts for a position that a client names.

        It is the same offset, except that the end of an epoch becomes the start of the next one.

        Args:
            offset: The position.
            location: The name of the bucket in errors.
            clamp: Whether a position outside the changelog becomes the nearest one inside instead of an error.

        Raises:
            PositionExpired: Some changes from there on have been trimmed.
            PositionOutOfRange: The position is beyond the end, or in changes that a crash has undone.
        """
        epoch, count = epoch_of(offset), count_of(offset)
        if not 0 <= epoch < len(self.epoch_starts) or not self.epoch_starts[epoch] <= count <= self._end_of(epoch):
            if not clamp:
                raise self._refusal(PositionOutOfRange, "does not exist in its changelog", offset, location)
            known = 0 <= epoch < len(self.epoch_starts)
            count = min(max(count, self.epoch_starts[epoch]), self._end_of(epoch)) if known else self.end
        if count < self.first:
            if not clamp:
                raise self._refusal(PositionExpired, "is no longer in its changelog", offset, location)
            count = self.first
        return self.offset_of(count)

    def check_stop(self, offset: int, *, location: str) -> None:
        """Checks a position at which a reader stops, which may be beyond the end of the current epoch.

        Raises:
            PositionOutOfRange: The position is in changes that a crash or a recovery has undone.
        """
        epoch, last = epoch_of(offset), len(self.epoch_starts) - 1
        if epoch > last or (epoch < last and count_of(offset) > self._end_of(epoch)):
            raise self._refusal(PositionOutOfRange, "does not exist in its changelog", offset, location)

    def _end_of(self, epoch: int) -> int:
        return self.epoch_starts[epoch + 1] if epoch + 1 < len(self.epoch_starts) else self.end

    def _refusal(
        self, error: type[PositionExpired | PositionOutOfRange], what: str, offset: int, location: str
    ) -> PositionExpired | PositionOutOfRange:
        earliest, latest = self.offset_of(self.first), self.offset_of(self.end)
        return error(
            f"{location}: offset {offset} {what}, which reaches from {earliest} to {latest}: start within it, or with "
            "clamp",
            wanted=offset,
            earliest=earliest,
            latest=latest,
        )
