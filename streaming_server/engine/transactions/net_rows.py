"""The net rows of a transaction in one bucket: what its requests make of each key, all of them together.

Rule: the changes of a transaction are net. However many of its requests write a key, the bucket changes it once, as
for a single request: three upserts are one change, and an insert that is deleted again is none.

This is for tables whose rows are merged; where the last row of a key replaces those before it, `repeated_keys` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from streaming_server.engine.merging.outcome import both, merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import PreparedRows
from streaming_server.engine.writes.bucket_steps import step_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.engine.merging.merger import Merger
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.rows.table_codec import TableCodec

Columns: TypeAlias = "tuple[str, ...] | None"
"""The columns that a partial write names; None: all."""


class NetRows:
    """The requests of a transaction merged in memory: a refusal is found before anything is decided or written.

    Not thread-safe; memory: the keys, and the merged rows.

    Args:
        bucket: The bucket that they are for, as it is without them.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._rows: dict[bytes, bytes | None] = {}
        self._columns: dict[bytes, Columns] = {}
        self._applied: frozenset[bytes] = frozenset()

    @property
    def state(self) -> BucketState:
        """The bucket's, without these rows."""
        return self._bucket.state

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored rows of some encoded keys as they would be, None where there would be none."""
        missing = [key for key in keys if key not in self._rows]
        stored = dict(zip(missing, self._bucket.get(missing), strict=True)) if missing else {}
        return [stored[key] if key in stored else self._rows[key] for key in keys]

    def note(self, rows: PreparedRows) -> None:
        """Takes notice of the keys of a request, and of the columns that it writes; of each request once, in order."""
        columns = None if rows.written is None else rows.written.columns
        for key in rows.keys.to_pylist():
            self._columns[key] = _union(self._columns.get(key, columns), columns)

    def leave_out(self, applied: int) -> None:
        """Merges no rows of keys that the bucket has already, once all requests are noted.

        Args:
            applied: How many keys these are, of those in `steps`, from the first on.
        """
        keys = [key for _, group in self._groups() for key in group]
        self._applied = frozenset(keys[:applied])

    def merge(self, rows: PreparedRows, merger: Merger) -> None:
        """Merges rows in, request by request. Blocks; hold the bucket's mutex.

        Raises:
            InvalidRequest, RequestTooLarge: They cannot be merged.
        """
        if self._applied:
            rows = rows.where(np.array([key not in self._applied for key in rows.keys.to_pylist()], np.bool_))
        rows = rows.for_codec(merger.codec.rows)
        step = step_rows(self.state, len(merger.codec.indexes))
        for start in range(0, len(rows.keys), step):
            change = merger.merge(self, rows.slice(start, step))
            self._rows.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
            self._rows.update(dict.fromkeys(change.delete_keys.to_pylist()))

    def __len__(self) -> int:
        return len(self._columns)

    def _groups(self) -> Iterator[tuple[Columns, list[bytes]]]:
        """The keys, by the columns that are written of them: a changelog record is of one set of columns."""
        groups: dict[Columns, list[bytes]] = {}
        for key, columns in self._columns.items():
            groups.setdefault(columns, []).append(key)
        yield from groups.items()

    def steps(self, applied: int, indexes: int) -> Iterator[tuple[Columns, list[bytes]]]:
        """The keys that one WriteBatch each is for, behind the first `applied`, with the columns that are written."""
        for columns, keys in self._groups():
            left, applied = keys[applied:], max(applied - len(keys), 0)
            while left:
                step = step_rows(self.state, indexes)
                yield columns, left[:step]
                left = left[step:]

    def change(self, keys: list[bytes], number: int, codec: TableCodec) -> BucketChange:
        """What becomes of some keys of bucket `number`. Blocks; hold the bucket's mutex. Raises DataLoss."""
        rows, old = self._rows, dict(zip(keys, self._bucket.get(keys), strict=True))
        # At keys that are not in `rows`, nothing counted.
        put = [key for key in keys if rows.get(key) is not None]
        gone = [key for key in keys if key in rows and rows[key] is None and old[key] is not None]
        values = pa.array([rows[key] for key in put], pa.binary())
        indexes = codec.indexes.values()
        decoder = codec.rows.decoder()
        change = merge_upsert(
            [old[key] for key in put],
            PreparedRows(number, codec.rows, decoder.decode(values), pa.array(put, pa.binary()), values),
            row_deduplicate=codec.definition.options.row_deduplicate,
            indexes=indexes,
        )
        if not gone:
            return change
        before = [old[key] for key in gone]
        key_rows = decoder.decode(pa.array(before, pa.binary())).select(list(codec.definition.primary_key))
        deleted = PreparedRows(number, codec.rows, key_rows, pa.array(gone, pa.binary()), None)
        return both(change, merge_delete(before, deleted, indexes))


def _union(columns: Columns, others: Columns) -> Columns:
    if columns == others or columns is None:
        return columns
    return None if others is None else tuple(sorted({*columns, *others}))
