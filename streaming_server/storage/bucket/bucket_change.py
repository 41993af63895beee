"""A change of one bucket that has been computed and validated, and is ready to be applied atomically."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from streaming_server.storage.changelog.range_markers import RangeMarker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.changelog.records import Changes

_FEW = 32  # values, for which NumPy takes longer


class FewBytes(list[bytes]):
    """Few binary values, with what a change needs of an Arrow array.

    Arrow releases the interpreter lock to make an array. Where several threads make small changes, each then waits for
    the others before it continues.
    """

    def to_pylist(self) -> list[bytes]:
        """Returns the values."""
        return self

    @property
    def nbytes(self) -> int:
        """The number of bytes of the values."""
        return sum(map(len, self))

    def to_array(self) -> pa.BinaryArray:
        """Returns the values as an array."""
        return pa.array(self, pa.binary())


Binary: TypeAlias = pa.BinaryArray | FewBytes
"""Binary values of a change."""


def as_array(values: Binary) -> pa.BinaryArray:
    """Returns the values of a change as an array."""
    return values.to_array() if isinstance(values, FewBytes) else values


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """Writes to the entries of one index: entries to put, and keys of entries to delete. No key is in both."""

    index: int
    put_keys: Binary
    put_values: Binary
    delete_keys: Binary


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChange:
    """Writes to one bucket: stored rows to put, keys to delete, changes for the changelog, and index entries.

    Ranges are deleted before anything is put.

    Attributes:
        put_keys: Encoded keys of the rows to put.
        put_values: The rows to put, as they are stored.
        delete_keys: Encoded keys of the rows to delete.
        changes: What the changelog records. None: it records `marker`; or the table has no changelog, and each key
            counts as one change.
        rows_added: By how many rows the bucket grows. None: unknown, because the old rows were not read.
        schema_id: The version of the table's schema that the rows have.
        entries: The writes to the entries of every index of the table.
        marker: What the changelog records instead of changes.
        delete_ranges: The ranges of encoded keys whose rows are deleted. `marker` must cover them if the table has a
            changelog.
        delete_entry_ranges: The ranges of keys of index entries to delete; each has a start and an end.
        inserted: Which of the rows to put are new. None: unknown, as `rows_added`.
        partitions: By how many rows each partition grows, by its encoded values. None for a partition: unknown. Empty:
            the table is not partitioned.
        last_drop: After a drop of the partitions in `delete_ranges`, the number of the last drop that the bucket has
            followed completely. None: no partitions are dropped.
        restarts_times: Whether the time of the last write is all that differs in some of the rows to put, so that no
            change stands for them.
    """

    put_keys: Binary
    put_values: Binary
    delete_keys: Binary
    changes: Changes | None
    rows_added: int | None
    schema_id: int
    entries: tuple[EntryChange, ...] = ()
    marker: RangeMarker | None = None
    delete_ranges: tuple[KeyRange, ...] = ()
    delete_entry_ranges: tuple[KeyRange, ...] = ()
    inserted: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None
    partitions: Mapping[bytes, int | None] = field(default_factory=dict)
    last_drop: int | None = None
    restarts_times: bool = False

    @classmethod
    def of_deleted_range(
        cls,
        keys: KeyRange,
        *,
        definition: TableDefinition,
        rows: int | None,
        entries: tuple[EntryChange, ...] = (),
        entry_ranges: tuple[KeyRange, ...] = (),
    ) -> BucketChange:
        """Returns the deletion of all rows in a range of encoded keys, with one marker and no change for each row.

        It takes one log offset, and constant time apart from `entries`.

        Args:
            keys: The range, which is not empty.
            definition: The table.
            rows: How many rows the range has. None: unknown.
            entries: Index entries to delete.
            entry_ranges: Ranges of index entries to delete: see `delete_entry_ranges`.
        """
        return cls(
            put_keys=FewBytes(),
            put_values=FewBytes(),
            delete_keys=FewBytes(),
            changes=None,
            rows_added=None if rows is None else -rows,
            schema_id=definition.schema.id,
            entries=entries,
            marker=None if definition.options.changelog == "none" else RangeMarker.of_deletion(keys),
            delete_ranges=(keys,),
            delete_entry_ranges=entry_ranges,
        )

    @property
    def clears_bucket(self) -> bool:
        """Whether no row of the bucket is left, so that the number of rows is known."""
        return any(keys.start in (None, b"") and keys.end is None for keys in self.delete_ranges)

    @property
    def count(self) -> int:
        """How many log offsets the change takes."""
        logged = self.logged
        if logged is not None:
            return len(logged)
        return len(self.put_keys) + len(self.delete_keys) + len(self.delete_ranges)

    @property
    def logged(self) -> Changes | RangeMarker | None:
        """What the changelog records. None: nothing."""
        return self.changes if self.marker is None else self.marker

    @property
    def longest_row(self) -> int:
        """Bytes of the longest row to put."""
        return _longest(self.put_values)

    @property
    def longest_deleted_key(self) -> int:
        """Bytes of the longest key to delete."""
        return _longest(self.delete_keys)


def _longest(values: Binary) -> int:
    """Returns the bytes of the longest of some binary values, 0 without values."""
    if isinstance(values, FewBytes) or len(values) <= _FEW:
        return max(map(len, values.to_pylist()), default=0)
    return int(np.diff(np.frombuffer(values.buffers()[1], np.int32)).max())
