"""The state of a bucket: counters and positions that change in the same WriteBatch as the rows."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.log_span import LogSpan
from streaming_server.storage.changelog.offsets import count_of, make_offset
from streaming_server.storage.files.formats import check_format, locate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.storage.rocks.store import RocksStore

STATE_KEY: Final = b"state"
"""The key of the state in the column family `meta`."""

_FORMAT: Final = 1
"""The format of a record that does not name its format in the field `format`. No other format exists yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketState:
    """The state of a bucket. Every change of the bucket stores the new state in the same WriteBatch. Immutable.

    Attributes:
        epoch: Grows by one with each unclean start.
        count: Changes that the bucket has had, over all epochs.
        epoch_starts: The count at which each epoch began, from epoch 0 on.
        rows: Live rows, exact. None: unknown, because rows were written without reading their predecessors.
        longest_row: Bytes of the longest row ever written, or of the longest key ever deleted.
        commit_micros: The commit time of the last commit; no later commit has an earlier time.
        clean: False from the first write after a start until the bucket is closed cleanly.
        log_first: The number of changes before the oldest one in the changelog.
        log_rewritten: The number of changes before the first one that has not been considered for a segment yet.
        log_bytes: Bytes of all changelog records ever written, as they were written.
        log_marked: The value of `log_bytes` at the last mark, see `LogMark`.
        log_micros: The service time of the last change, in microseconds.
        log_marked_micros: The service time of the last mark.
        last_marker: The number of changes up to and including the last range marker. 0: the bucket has never had one.
        indexes: The ids of the indexes that may have entries in this bucket, ascending.
        ready_indexes: The ids of the indexes that have an entry for every row, ascending. Only these may be read.
        changelog_starts: For each change of the table option `changelog`, the number of changes before the first one
            that was recorded with the new value. Fewer than the table has had: the bucket still records as before.
        last_drop: The number of the last drop of partitions that the bucket has followed. 0: none.
        time_restarts: How many WriteBatches have set the time of the last write of rows without a change of them.
    """

    epoch: int = 0
    count: int = 0
    epoch_starts: tuple[int, ...] = (0,)
    rows: int | None = 0
    longest_row: int = 0
    commit_micros: int = 0
    clean: bool = True
    indexes: tuple[int, ...] = ()
    ready_indexes: tuple[int, ...] = ()
    log_first: int = 0
    log_rewritten: int = 0
    log_bytes: int = 0
    log_marked: int = 0
    log_micros: int = 0
    log_marked_micros: int = 0
    last_marker: int = 0
    changelog_starts: tuple[int, ...] = ()
    last_drop: int = 0
    time_restarts: int = 0

    @property
    def log_offset(self) -> int:
        """The offset of the next change."""
        return make_offset(self.epoch, self.count)

    def has_markers_since(self, offset: int) -> bool:
        """Whether the changelog has a range marker at an offset or after it."""
        return count_of(offset) < self.last_marker

    def changelog_at(self, offset: int, changelogs: Sequence[str]) -> str:
        """Returns the value of the option `changelog` with which the change at an offset was recorded, or will be.

        Args:
            offset: The offset.
            changelogs: All values that the option of the table has had: see `TableDefinition.changelogs`.
        """
        return changelogs[bisect_right(self.changelog_starts, count_of(offset))]

    def is_recorded_as_now(self, offset: int) -> bool:
        """Whether all changes from an offset on were recorded with the same value of the option `changelog`."""
        return not self.changelog_starts or count_of(offset) >= self.changelog_starts[-1]

    @property
    def log_span(self) -> LogSpan:
        """The changes that the changelog has."""
        return LogSpan(self.log_first, self.count, self.epoch_starts)

    def to_bytes(self) -> bytes:
        """Returns the stored form. It is JSON, so that fields can be added and an operator can read it."""
        # Not `asdict`, which copies every value, and takes three times as long.
        stored = {name: getattr(self, name) for name in _FIELDS}
        for name in _LATER_FIELDS:
            if not stored[name]:
                del stored[name]  # Earlier versions refuse fields that they do not know.
        return json.dumps(stored).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> BucketState:
        """Reads the result of `to_bytes`. Raises NewerFormat."""
        stored: dict[str, Any] = json.loads(data)
        check_format("its state", stored.pop("format", _FORMAT), _FORMAT)
        # JSON has no tuples. Buckets written before indexes existed lack fields.
        tuples: dict[str, Any] = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
        return cls(**{**stored, **tuples})

    def after_unclean_stop(self) -> BucketState:
        """Returns the state of a bucket that was not closed cleanly: in a new epoch."""
        return replace(self, epoch=self.epoch + 1, epoch_starts=(*self.epoch_starts, self.count), clean=True)


_FIELDS: Final = tuple(field.name for field in fields(BucketState))
_LATER_FIELDS: Final = ("last_marker", "changelog_starts", "last_drop", "time_restarts")


def load_state(store: RocksStore) -> BucketState:
    """Reads the state of a bucket from its store; a new store has the initial one. Raises DataLoss."""
    try:
        stored = store.meta.get(STATE_KEY)
        return BucketState() if stored is None else BucketState.from_bytes(stored)
    except DataLoss as error:
        raise locate(error, store.location) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLoss(f"{store.location} is damaged: its state cannot be read") from error
    except Exception as error:
        raise store.failure(error) from error
