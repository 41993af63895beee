"""Few rows of one bucket to write, as Python values: the path without the fixed costs of columns.

Only for tables whose rows replace each other. The results are those of the path for columns, which tests compare; where
this path does not apply, as with an index, the rows go on as `PreparedRows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streaming_server.engine.merging.prepared_rows import PreparedRows
from streaming_server.storage.bucket.bucket_change import BucketChange
from streaming_server.storage.changelog.records import Changes, RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.rows.single_rows import SingleRowCodec, Values

_NOTHING = pa.nulls(0, pa.binary())


@dataclass(frozen=True, slots=True)
class FewRows:
    """Few rows of one bucket to put, or keys to delete, each key once, in key order.

    Attributes:
        bucket: The number of the bucket.
        codec: Encodes the rows in columns.
        single: Encodes them one by one.
        deletes: Whether the keys are deleted.
        keys: The encoded keys.
        rows: The values of each row. For deletes, those of the key columns; the others are null.
    """

    bucket: int
    codec: RowCodec
    single: SingleRowCodec
    deletes: bool
    keys: list[bytes]
    rows: list[Values]

    def slice(self, start: int, rows: int) -> FewRows:
        """Returns at most `rows` keys from position `start` on."""
        end = start + rows
        if start == 0 and end >= len(self.keys):
            return self
        return FewRows(self.bucket, self.codec, self.single, self.deletes, self.keys[start:end], self.rows[start:end])

    def prepare(self) -> PreparedRows:
        """Returns the same rows in columns."""
        keys = pa.array(self.keys, pa.binary())
        if self.deletes:
            batch = self.single.to_key_batch(self.rows)
            return PreparedRows(self.bucket, self.codec, batch, keys, None)
        batch = self.single.to_batch(self.rows)
        return PreparedRows(self.bucket, self.codec, batch, keys, self.codec.encode(batch))

    def for_codec(self, codec: RowCodec) -> FewRows | PreparedRows:
        """Returns the same rows for the codec of a newer schema. Columns that were added since are null."""
        return self if codec is self.codec else self.prepare().for_codec(codec)

    @property
    def written(self) -> None:
        """No rows that have to be merged, as `PreparedRows` may have them."""
        return None


def merge_few(old: Sequence[bytes | None] | None, new: FewRows) -> BucketChange:
    """Computes what few upserts or deletes change in a bucket without indexes, as `merge_upsert` and `merge_delete` do.

    Args:
        old: The stored rows of the same keys; None: no row. None instead of all: they need not be read.
        new: The rows.

    Raises:
        NotExactError: An old row is damaged, or has a value that Python does not have.
    """
    return _merge_deletes(old, new) if new.deletes else _merge_upserts(old, new)


def _merge_upserts(old: Sequence[bytes | None] | None, new: FewRows) -> BucketChange:
    single, options = new.single, new.codec.definition.options
    puts = [single.encode(row) for row in new.rows]
    if old is None:
        return _change(new, new.keys, puts, [], _changes(new, [RowKind.UPDATE_AFTER] * len(puts), new.rows), None)
    keys: list[bytes] = []
    values: list[bytes] = []
    kinds: list[RowKind] = []
    rows: list[Values] = []
    added = 0
    for key, before, after, row in zip(new.keys, old, puts, new.rows, strict=True):
        if before is not None:
            old_row = single.decode(before)
            # Encoded again, because rows of an older schema have other bytes for the same values.
            if options.row_deduplicate and (before == after or single.encode(old_row) == after):
                continue
            if options.before_images:
                kinds.append(RowKind.UPDATE_BEFORE)
                rows.append(old_row)
        added += before is None
        kinds.append(RowKind.INSERT if before is None and options.before_images else RowKind.UPDATE_AFTER)
        rows.append(row)
        keys.append(key)
        values.append(after)
    return _change(new, keys, values, [], _changes(new, kinds, rows), added)


def _merge_deletes(old: Sequence[bytes | None] | None, new: FewRows) -> BucketChange:
    if old is None:
        changes = _changes(new, [RowKind.DELETE] * len(new.keys), new.rows)
        return _change(new, [], [], new.keys, changes, None)
    gone = [place for place, before in enumerate(old) if before is not None]
    decoded = [new.single.decode(before) for before in old if before is not None]
    rows = decoded if new.codec.definition.options.before_images else [new.rows[place] for place in gone]
    changes = _changes(new, [RowKind.DELETE] * len(gone), rows)
    return _change(new, [], [], [new.keys[place] for place in gone], changes, -len(gone))


def _changes(new: FewRows, kinds: list[RowKind], rows: list[Values]) -> Changes | None:
    """Returns what the changelog records. None: the table has no changelog."""
    if new.codec.definition.options.changelog == "none":
        return None
    return Changes(np.array(kinds, np.uint8), new.single.to_changes(rows))


def _change(
    new: FewRows,
    put_keys: list[bytes],
    put_values: list[bytes],
    delete_keys: list[bytes],
    changes: Changes | None,
    rows_added: int | None,
) -> BucketChange:
    binary = pa.binary()
    return BucketChange(
        put_keys=pa.array(put_keys, binary) if put_keys else _NOTHING,
        put_values=pa.array(put_values, binary) if put_keys else _NOTHING,
        delete_keys=pa.array(delete_keys, binary) if delete_keys else _NOTHING,
        changes=changes,
        rows_added=rows_added,
        schema_id=new.codec.definition.schema.id,
    )
