"""The state of a bucket: counters and positions that change in the same WriteBatch as the rows."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.log_state import LogState
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.formats import check_format, locate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.storage.rocks.store import RocksStore

STATE_KEY: Final = b"state"
"""The key of the state in the column family `meta`."""

_FORMAT: Final = 1
"""The format of a record that does not name its format in the field `format`. No other format exists yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketState(LogState):
    """The state of a bucket. Every change of the bucket stores the new state in the same WriteBatch. Immutable.

    It begins with the state of the changelog: see `LogState`.

    Attributes:
        rows: Live rows, exact. None: unknown, because rows were written without reading their predecessors.
        longest_row: Bytes of the longest row ever written, or of the longest key ever deleted.
        commit_micros: The commit time of the last commit; no later commit has an earlier time.
        indexes: The ids of the indexes that may have entries in this bucket, ascending.
        ready_indexes: The ids of the indexes that have an entry for every row, ascending. Only these may be read.
        changelog_starts: For each change of the table option `changelog`, the number of changes before the first one
            that was recorded with the new value. Fewer than the table has had: the bucket still records as before.
        last_drop: The number of the last drop of partitions that the bucket has followed. 0: none.
        time_restarts: How many WriteBatches have set the time of the last write of rows without a change of them.
    """

    rows: int | None = 0
    longest_row: int = 0
    commit_micros: int = 0
    indexes: tuple[int, ...] = ()
    ready_indexes: tuple[int, ...] = ()
    changelog_starts: tuple[int, ...] = ()
    last_drop: int = 0
    time_restarts: int = 0

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
