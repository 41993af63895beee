"""Few rows of one bucket to write, as Python values: the path without the fixed costs of columns.

Its results are those of the path for columns, which tests compare. Where it does not apply, as with an aggregate
function that has no fold, the rows continue as `PreparedRows`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from scankv.model.limits import MAX_ROW_BYTES
from scankv.model.rows.row_values import NotExactError
from streaming_server.engine.merging.appended_rows import AppendedRows
from streaming_server.engine.merging.prepared_rows import PreparedRows
from streaming_server.engine.merging.rows import WrittenRows
from streaming_server.storage.bucket.bucket_change import BucketChange, EntryChange, FewBytes
from streaming_server.storage.changelog.records import Changes, RowKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streaming_server.engine.functions.function import Mask
    from streaming_server.engine.merging.row_merge import RowMerge
    from streaming_server.storage.rows.row_codec import RowCodec
    from streaming_server.storage.rows.single_entries import SingleEntries
    from streaming_server.storage.rows.single_rows import SingleRowCodec, Values
    from streaming_server.storage.rows.table_codec import TableCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRows:
    """Few complete rows of one bucket to write, or keys to delete.

    Each key occurs once in each step, and its steps are in order.

    Attributes:
        bucket: The number of the bucket.
        codec: Encodes the rows in columns.
        single: Encodes them one by one.
        deletes: Whether the keys are deleted.
        merges: Whether the rows have to be merged. If not, they replace the current rows.
        keys: The encoded keys.
        rows: The rows of each key, in the order of arrival. For deletes, one with the values of the key columns.
        ends: Where steps must end, ascending, because a key after it occurs before it. Independent rows with one key
            are changes of their own.
    """

    bucket: int
    codec: RowCodec
    single: SingleRowCodec
    deletes: bool
    merges: bool
    keys: list[bytes]
    rows: Sequence[Sequence[Values]]
    ends: tuple[int, ...] = ()

    @property
    def are_few(self) -> bool:
        """Whether the rows are written in less time than a change of threads takes. Always."""
        return True

    @property
    def columns(self) -> None:
        """The columns of a partial write, of which this is none."""
        return None

    @property
    def key_array(self) -> pa.BinaryArray:
        """The encoded keys as an array."""
        return pa.array(self.keys, pa.binary())

    @property
    def key_list(self) -> list[bytes]:
        """The encoded keys as a list."""
        return self.keys

    def step_end(self, start: int, end: int) -> int:
        """Returns where a step from `start` ends, at `end` at the latest."""
        return min([end, *(each for each in self.ends if each > start)])

    def slice(self, start: int, rows: int) -> FewRows:
        """Returns at most `rows` keys from position `start` on, all of one step."""
        end = start + rows
        if start == 0 and end >= len(self.keys):
            return self
        return replace(self, keys=self.keys[start:end], rows=self.rows[start:end], ends=())

    def where(self, mask: Mask) -> FewRows:
        """Returns the rows of some of the keys, all of one step."""
        places = np.flatnonzero(mask).tolist()
        return replace(self, keys=[self.keys[place] for place in places], rows=[self.rows[place] for place in places])

    def by_key(self) -> FewRows:
        """Returns the same rows in key order. They are all of one step."""
        order = sorted(range(len(self.keys)), key=self.keys.__getitem__)
        return replace(self, keys=[self.keys[place] for place in order], rows=[self.rows[place] for place in order])

    def prepare(self) -> PreparedRows:
        """Returns the same rows in columns."""
        single, keys = self.single, self.key_array
        if self.deletes or self.merges:
            key_rows = single.to_key_batch([rows[0] for rows in self.rows])
            written = None
            if not self.deletes:
                starts = np.cumsum([0, *map(len, self.rows)])
                written = WrittenRows(single.to_batch([row for rows in self.rows for row in rows]), starts)
            return PreparedRows(self.bucket, self.codec, key_rows, keys, None, written)
        batch = single.to_batch([rows[-1] for rows in self.rows])
        return PreparedRows(self.bucket, self.codec, batch, keys, self.codec.encode(batch))

    def for_codec(self, codec: RowCodec) -> FewRows | PreparedRows:
        """Returns the same rows for the codec of a newer schema. Columns that were added since are null."""
        return self if codec is self.codec else self.prepare().for_codec(codec)


BucketRows: TypeAlias = PreparedRows | FewRows | AppendedRows
"""The rows of one bucket to write, in columns or as Python values."""


def merge_few(old: Sequence[bytes | None] | None, new: FewRows, merge: RowMerge, codec: TableCodec) -> BucketChange:
    """Computes what few rows change in a bucket, as `merge_rows`, `merge_upsert` and `merge_delete` do.

    Args:
        old: The stored rows of the same keys; None: no row. None instead of all: they need not be read.
        new: The rows.
        merge: Merges the rows of a key.
        codec: The table.

    Raises:
        NotExactError: Only the path for columns can compute it: an old row is damaged, or has a value that Python does
            not have, or the rows are refused.
    """
    single, change = new.single, FewChanges(codec, new.single)
    if old is None:
        for key, rows in zip(new.keys, new.rows, strict=True):
            if new.deletes:
                change.delete_unread(key, rows[-1])
            else:
                change.put_unread(key, rows[-1])
        return change.build(None)
    for key, stored, rows in zip(new.keys, old, new.rows, strict=True):
        before = None if stored is None else single.decode(stored)
        if new.deletes:
            if before is not None:
                change.delete(key, before, rows[-1])
            continue
        after = merge(before, rows)
        if after is not None:
            if new.merges:
                single.check_required(after)
            change.put(key, stored, before, after, single.encode(after))
    return change.build(change.rows_added)


def change_few(
    keys: Iterable[bytes], old: Sequence[bytes | None], new: Sequence[bytes | None], codec: TableCodec
) -> BucketChange:
    """Computes the change from old to new stored rows of few keys. None: no row. Raises NotExactError.

    The keys to put come before those to delete.
    """
    single = codec.single
    assert single is not None
    change = FewChanges(codec, single)
    for key, stored, value in zip(keys, old, new, strict=True):
        before = None if stored is None else single.decode(stored)
        if value is not None:
            change.put(key, stored, before, single.decode(value), value)
        elif before is not None:
            change.delete(key, before, single.key_values(before))
    return change.build(change.rows_added)


class FewChanges:
    """Collects what few rows change in a bucket. Rows have hidden columns.

    Args:
        codec: The table.
        single: Encodes its rows one by one.

    Attributes:
        rows_added: By how many rows the bucket grows.
    """

    def __init__(self, codec: TableCodec, single: SingleRowCodec) -> None:
        self.rows_added = 0
        self._definition = codec.definition
        self._single = single
        self._entries = [FewEntries(number, entries) for number, entries in codec.single_entries()]
        self._puts: list[tuple[bytes, bytes]] = []
        self._inserted: list[bool] = []
        self._unlogged: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []
        self._kinds: list[RowKind] = []
        self._rows: list[Values] = []

    def put_unread(self, key: bytes, after: Values) -> None:
        """Puts a row of a table without before-images and indexes, whose old row was not read."""
        self._puts.append((key, self._single.encode(after)))
        self._log(RowKind.UPDATE_AFTER, after)

    def delete_unread(self, key: bytes, key_values: Values) -> None:
        """Deletes a key of such a table."""
        self._deletes.append(key)
        self._log(RowKind.DELETE, key_values)

    def put(self, key: bytes, stored: bytes | None, before: Values | None, after: Values, value: bytes) -> None:
        """Puts a row.

        Args:
            key: The encoded key.
            stored: The old row as it is stored. None: no row.
            before: The old row.
            after: The new row.
            value: The new row as it will be stored.
        """
        options = self._definition.options
        if len(value) > MAX_ROW_BYTES:
            raise NotExactError
        if before is not None:
            if options.row_deduplicate and self._single.is_same(before, stored, after, value):
                # What only a merge engine sees has changed.
                if self._single.stores_hidden and stored != value:
                    self._unlogged.append((key, value))
                return
            if options.before_images:
                self._log(RowKind.UPDATE_BEFORE, before)
        self.rows_added += before is None
        self._log(RowKind.INSERT if before is None and options.before_images else RowKind.UPDATE_AFTER, after)
        self._puts.append((key, value))
        self._inserted.append(before is None)
        for entries in self._entries:
            entries.put(key, before, after)

    def delete(self, key: bytes, before: Values, key_values: Values) -> None:
        """Deletes a row."""
        self.rows_added -= 1
        self._log(RowKind.DELETE, before if self._definition.options.before_images else key_values)
        self._deletes.append(key)
        for entries in self._entries:
            entries.delete(key, before)

    def build(self, rows_added: int | None) -> BucketChange:
        """Returns the change."""
        puts = [*self._puts, *self._unlogged]
        return BucketChange(
            put_keys=FewBytes([key for key, _ in puts]),
            put_values=FewBytes([value for _, value in puts]),
            delete_keys=FewBytes(self._deletes),
            changes=self._changes(),
            rows_added=rows_added,
            inserted=None if rows_added is None else [*self._inserted, *(False for _ in self._unlogged)],
            schema_id=self._definition.schema.id,
            entries=tuple(entries.build() for entries in self._entries),
        )

    def _log(self, kind: RowKind, row: Values) -> None:
        self._kinds.append(kind)
        self._rows.append(row)

    def _changes(self) -> Changes | None:
        if self._definition.options.changelog == "none":
            return None
        return Changes(np.array(self._kinds, np.uint8), self._single.to_changes(self._rows))


class FewEntries:
    """Collects what few rows change in the entries of one index, as `entry_changes` computes it.

    Args:
        index: The id of the index.
        entries: Encodes its entries one by one.
    """

    def __init__(self, index: int, entries: SingleEntries) -> None:
        self._index = index
        self._entry = entries.entry
        self._puts: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []

    def put(self, key: bytes, before: Values | None, after: Values) -> None:
        """Replaces the entry of a row. Raises NotExactError if one of the rows has no entry."""
        new = self._entry(key, after)
        if before is not None:
            old = self._entry(key, before)
            if old == new:
                return
            if old[0] != new[0]:
                self._deletes.append(old[0])
        self._puts.append(new)

    def delete(self, key: bytes, before: Values) -> None:
        """Deletes the entry of a row. Raises NotExactError if the row has no entry."""
        self._deletes.append(self._entry(key, before)[0])

    def build(self) -> EntryChange:
        """Returns the changes."""
        return EntryChange(
            index=self._index,
            put_keys=FewBytes([key for key, _ in self._puts]),
            put_values=FewBytes([value for _, value in self._puts]),
            delete_keys=FewBytes(self._deletes),
        )
