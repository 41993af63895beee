"""Deletes all rows in a range of keys of one bucket at once: a range delete, and one marker in the changelog.

No row is read if the range is the complete bucket. Otherwise one read counts the rows and finds their index entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.bucket.entry_changes import entries_of_deletes
from streaming_server.storage.bucket.bucket_change import BucketChange, EntryChange
from streaming_server.storage.bucket.index_build import entry_range

if TYPE_CHECKING:
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.rows.table_codec import TableCodec

_STEP_ROWS: Final = 8192
_STEP_BYTES: Final = 1 << 20
_INDEXED_ROWS: Final = 50_000
"""The most rows of one change of a table with indexes, whose entries are all in one WriteBatch."""

_NOTHING: Final = pa.nulls(0, pa.binary())


class RangeDeletion:
    """The deletion of the rows in a range of keys of a bucket, as one change or, for many index entries, several.

    Hold the bucket's mutex, or bypass its barrier, from the first call of `read` until the change is applied:

        deletion = RangeDeletion(keys)
        while not deletion.is_done:
            while not deletion.read(bucket, codec):
                ...  # let others use the processor
            apply(deletion.take_change(bucket, codec))

    Args:
        keys: The range.

    Attributes:
        rows: How many rows the changes taken so far delete. Less than that if the bucket does not know its rows.
        is_done: Whether all changes were taken.
    """

    def __init__(self, keys: KeyRange) -> None:
        self.rows = 0
        self.is_done = keys.is_empty
        self._rest = keys
        self._found = 0
        self._last_key: bytes | None = None
        self._at_end = False
        self._deleted: dict[int, list[pa.BinaryArray]] = {}

    def read(self, bucket: Bucket, codec: TableCodec) -> bool:
        """Reads the next rows of the range, for a few milliseconds. Returns whether `take_change` can be called.

        Raises:
            DataLoss: A row is damaged.
        """
        if self._is_complete_bucket:
            self._at_end = True
            return True
        rest = self._rest if self._last_key is None else self._rest.after(self._last_key)
        columns = {name: None for index in codec.indexes.values() for name in index.covered}
        cursor = bucket.cursor(codec.rows, codec.rows.decoder([*columns]), codec.key_codec, rest)
        try:
            if not codec.indexes:
                found = cursor.skim(_STEP_ROWS, _STEP_BYTES)
            else:
                rows = cursor.next_batch(_STEP_ROWS, _STEP_BYTES)
                found = None if rows is None else rows.num_rows
                if rows is not None and rows.num_rows:
                    self._add_entries(rows, codec)
            self._last_key = cursor.last_key or self._last_key
        finally:
            cursor.close()
        if found is None:
            self._at_end = True
            return True
        self._found += found
        return bool(codec.indexes) and self._found >= _INDEXED_ROWS

    def _add_entries(self, rows: pa.RecordBatch, codec: TableCodec) -> None:
        keys = codec.keys.encode_stored(rows)
        for number, index in codec.indexes.items():
            self._deleted.setdefault(number, []).append(entries_of_deletes(index, rows, keys).delete_keys)

    def take_change(self, bucket: Bucket, codec: TableCodec) -> BucketChange | None:
        """Returns the next change, which deletes what was read. None: no row is left to delete.

        A bucket whose number of rows is unknown gets a change in any case.
        """
        keys, rest = self._rest, self._rest
        if self._at_end:
            self.is_done = True
        else:
            assert self._last_key is not None
            rest = self._rest.after(self._last_key)
            keys = KeyRange(keys.start, rest.start)
        is_complete = self._is_complete_bucket
        rows = bucket.state.rows if is_complete else self._found
        change = BucketChange.of_deleted_range(
            keys,
            definition=codec.definition,
            rows=rows,
            entries=tuple(self._entry_change(index) for index in self._deleted),
            entry_ranges=tuple(KeyRange(*entry_range(index)) for index in bucket.state.indexes) if is_complete else (),
        )
        self._rest, self._found, self._last_key, self._deleted = rest, 0, None, {}
        self.rows += rows or 0
        return None if rows == 0 else change

    @property
    def _is_complete_bucket(self) -> bool:
        return not self._rest.start and self._rest.end is None

    def _entry_change(self, index: int) -> EntryChange:
        keys = pa.concat_arrays(self._deleted[index])
        return EntryChange(index=index, put_keys=_NOTHING, put_values=_NOTHING, delete_keys=keys)
