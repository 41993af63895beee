"""Collects writes to a store that are applied together."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import rocksdict

from scankv.model.limits import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BEYOND_ALL_KEYS = b"\xff" * (MAX_KEY_BYTES + 1)
_SLOW_DELETIONS = 9
"""How many deletions more each row of a queue counts for: readers of its first rows pass those in memory one by one."""


class StoreBatch:
    """Writes to several column families that are applied together. Can be applied once.

    Attributes:
        writes: The writes.
        deletions: How many of them delete one row or index entry. Those of a queue count several times.
    """

    def __init__(self, handles: dict[str, rocksdict.ColumnFamily]) -> None:
        self._handles = handles
        self.deletions = 0
        self.writes = rocksdict.WriteBatch(raw_mode=True)

    def release(self) -> None:
        """Drops the references to the store and to all writes."""
        del self._handles, self.writes

    def put_rows(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Puts rows with these keys and values."""
        # A deque that drains `map` is Python's fastest loop for this.
        self.writes.set_default_column_family(self._handles["rows"])
        deque(map(self.writes.put, keys, values), maxlen=0)

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """Deletes rows."""
        self.writes.set_default_column_family(self._handles["rows"])
        self._delete(keys)

    def delete_adjacent_rows(self, keys: Sequence[bytes]) -> None:
        """Deletes rows with ascending keys as one range. No other rows lie between the first and the last."""
        self.delete_row_range(keys[0], keys[-1] + b"\0")
        self.deletions += len(keys)

    def delete_queued_rows(self, first: bytes, last: bytes, count: int) -> None:
        """Deletes the range of many rows that were deleted one after another. A flush removes them with their marks."""
        self.delete_row_range(first, last + b"\0")
        self.deletions += _SLOW_DELETIONS * count

    def _delete(self, keys: Iterable[bytes]) -> None:
        before = self.writes.len()
        deque(map(self.writes.delete, keys), maxlen=0)
        self.deletions += self.writes.len() - before

    def delete_row_range(self, start: bytes, end: bytes | None) -> None:
        """Deletes the rows from `start` up to, but without, `end`, in constant time. None: up to the last row."""
        self.writes.delete_range(start, _BEYOND_ALL_KEYS if end is None else end, self._handles["rows"])

    def put_entries(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Puts index entries with these keys and values."""
        self.writes.set_default_column_family(self._handles["index"])
        deque(map(self.writes.put, keys, values), maxlen=0)

    def delete_entries(self, keys: Iterable[bytes]) -> None:
        """Deletes index entries."""
        self.writes.set_default_column_family(self._handles["index"])
        self._delete(keys)

    def delete_entry_range(self, start: bytes, end: bytes) -> None:
        """Deletes the index entries from `start` up to, but without, `end`, in constant time."""
        self.writes.delete_range(start, end, self._handles["index"])

    def put_log(self, key: bytes, record: bytes) -> None:
        """Puts one changelog record."""
        self.writes.put(key, record, self._handles["log"])

    def delete_log(self, start: bytes, end: bytes) -> None:
        """Deletes the changelog records from `start` up to, but without, `end`."""
        self.writes.delete_range(start, end, self._handles["log"])

    def delete_meta_range(self, start: bytes, end: bytes) -> None:
        """Deletes the metadata of the bucket with keys from `start` up to, but without, `end`."""
        self.writes.delete_range(start, end, self._handles["meta"])

    def put_meta(self, key: bytes, value: bytes) -> None:
        """Puts one entry of the bucket's metadata."""
        self.writes.put(key, value, self._handles["meta"])

    def delete_meta(self, key: bytes) -> None:
        """Deletes one entry of the bucket's metadata."""
        self.writes.delete(key, self._handles["meta"])
