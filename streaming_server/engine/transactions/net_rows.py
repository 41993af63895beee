"""The net rows of a transaction in one bucket: each key as all of its requests together leave it.

Rule: the changes of a transaction are net. However many of its requests write a key, the bucket changes it once, as
for a single request: three upserts are one change, and an insert that is deleted again is none.

This module serves tables whose rows are merged. Where the last row of a key replaces the earlier ones, see
`repeated_keys`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from scankv.model.rows.row_values import NotExactError
from streaming_server.engine.merging.expired_rows import UnexpiredRows
from streaming_server.engine.merging.few_rows import change_few
from streaming_server.engine.merging.outcome import combine_changes, merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import PreparedRows
from streaming_server.engine.writes.bucket_steps import step_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.merging.merger import Merger
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.bucket.bucket_state import BucketState
    from streaming_server.storage.rows.table_codec import TableCodec

_FEW: Final = 128
"""The most keys whose change is computed without columns, which are faster for more."""

Columns: TypeAlias = "tuple[str, ...] | None"
"""The columns that a partial write names. None: all."""


class MergedTransactionRows:
    """Merges the requests of a transaction in memory, so that a refusal comes before anything is decided or written.

    Not thread-safe; memory: the keys, and the merged rows.

    Args:
        bucket: The bucket that the rows are for. It does not have these rows yet.
        codec: The table.
        now_micros: The time as of which rows have expired, in microseconds since 1970 UTC.
    """

    def __init__(self, bucket: Bucket, codec: TableCodec, now_micros: int) -> None:
        self._bucket = bucket
        self._without_expired = partial(codec.rows.without_expired, now_micros=now_micros)
        self._rows: dict[bytes, bytes | None] = {}
        self._columns: dict[bytes, Columns] = {}
        self._applied: frozenset[bytes] = frozenset()

    @property
    def state(self) -> BucketState:
        """The state of the bucket, without these rows."""
        return self._bucket.state

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the rows of some encoded keys as the transaction leaves them, None where no row is left."""
        missing = [key for key in keys if key not in self._rows]
        stored = dict(zip(missing, self._bucket.get(missing), strict=True)) if missing else {}
        return self._without_expired([stored[key] if key in stored else self._rows[key] for key in keys])

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """See `StoredRows`."""
        return bool(self._rows) or self._bucket.has_rows_among(keys)

    def add_keys(self, rows: BucketRows) -> None:
        """Adds the keys of a request, and the columns that it writes. Call it once for each request, in order."""
        columns = rows.columns
        for key in rows.key_list:
            self._columns[key] = _union(self._columns.get(key, columns), columns)

    def skip_applied(self, applied: int) -> None:
        """Makes `merge` skip the keys that the bucket has already. Call it once the keys of all requests are added.

        Args:
            applied: How many of the first keys of `steps` the bucket has.
        """
        keys = [key for _, group in self._groups() for key in group]
        self._applied = frozenset(keys[:applied])

    def stored(self, codec: TableCodec, micros: int) -> UnexpiredRows:
        """Returns the rows of the bucket, without these rows, that have not expired at a time."""
        return UnexpiredRows(self._bucket, codec, self._bucket.commit_time_of(micros))

    def merge(self, rows: BucketRows, merger: Merger) -> None:
        """Merges the rows of the next request. Blocks; hold the bucket's mutex.

        Raises:
            InvalidRequest, RequestTooLarge: The rows cannot be merged.
        """
        if self._applied:
            rows = rows.where(np.array([key not in self._applied for key in rows.key_list], np.bool_))
        rows = rows.for_codec(merger.codec.rows)
        step = step_rows(self.state, len(merger.codec.indexes))
        for start in range(0, len(rows.keys), step):
            change = merger.merge(self, rows.slice(start, step))
            self._rows.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
            self._rows.update(dict.fromkeys(change.delete_keys.to_pylist()))

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def is_few(self) -> bool:
        """Whether it has few keys, whose change is mostly computed without columns."""
        return len(self) <= _FEW

    def _groups(self) -> Iterator[tuple[Columns, list[bytes]]]:
        """Groups the keys by written columns, because a changelog record has one set of columns."""
        groups: dict[Columns, list[bytes]] = {}
        for key, columns in self._columns.items():
            groups.setdefault(columns, []).append(key)
        yield from groups.items()

    def steps(self, applied: int, indexes: int) -> Iterator[tuple[Columns, list[bytes]]]:
        """Yields the keys of one WriteBatch at a time, with their written columns; skips the first `applied` keys."""
        for columns, keys in self._groups():
            left, applied = keys[applied:], max(applied - len(keys), 0)
            while left:
                step = step_rows(self.state, indexes)
                yield columns, left[:step]
                left = left[step:]

    def change(self, keys: list[bytes], number: int, stored: UnexpiredRows) -> BucketChange:
        """Returns the change of some keys of bucket `number`, given the rows of the bucket.

        Blocks; hold the bucket's mutex. Raises DataLoss.
        """
        rows, old, codec = self._rows, dict(zip(keys, stored.get(keys), strict=True)), stored.codec
        # A key that is not in `rows` has no effective write.
        put = [key for key in keys if rows.get(key) is not None]
        gone = [key for key in keys if key in rows and rows[key] is None and old[key] is not None]
        if codec.single is not None and len(keys) <= _FEW:
            with suppress(NotExactError):
                changed = [*put, *gone]
                return change_few(changed, [old[key] for key in changed], [rows[key] for key in changed], codec)
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
        return combine_changes(change, merge_delete(before, deleted, indexes))


def _union(columns: Columns, others: Columns) -> Columns:
    if columns == others or columns is None:
        return columns
    return None if others is None else tuple(sorted({*columns, *others}))
